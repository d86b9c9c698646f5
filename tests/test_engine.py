"""The runtime computes what the models say, and its speculation changes no token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import plain_model as plain
import pytest
from dflash_gguf import _native
from dflash_gguf.convert.errors import InputError, UsageError
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_dialects import spec_from_gguf
from dflash_gguf.convert.target import target_from_gguf
from dflash_gguf.quantize import dequantize_rows, quantize_rows
from dflash_gguf.runtime.engine import (
    Engine,
    EngineOptions,
    draft_config,
    native_file,
    run_config,
    target_config,
)
from tiny_gguf import V1, V2, DraftShape, Sizes, once, weights_of, write_draft, write_target

F32 = EngineOptions(kv_type="f32", threads=1)
TEXT = [int(t) for t in np.random.default_rng(5).integers(0, 99, 40)]
SIZES = Sizes()
SMALL = Sizes(vocab=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("engine")


def pair(folder: Path, d: DraftShape, **options: object) -> Engine:
    """Target and draft of `d` in `folder`, opened with F32 caches and one thread unless `options` say otherwise."""
    return Engine(
        once(folder, Sizes(vocab=d.sizes.vocab)), once(folder, d), replace(F32, **options)
    )


def native_pair(target: Path, draft: Path, tensors: Path) -> _native.Engine:
    """The native engine with `draft`'s spec and the tensors of another file, past the checks of the readers."""
    t, d = read_gguf(target), read_gguf(draft)
    spec = spec_from_gguf(d)
    return _native.open_pair(
        *native_file(t), target_config(target_from_gguf(t).spec, t), *native_file(read_gguf(tensors)),
        draft_config(spec, d, "file"), run_config(F32),
    )  # fmt: skip


def close(expected: np.ndarray, found: np.ndarray) -> bool:
    """Equal to what float32 allows: 1e-4 of the largest value."""
    return bool(np.abs(expected - found).max() < 1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("tied", [False, True])
def test_target_logits_are_the_models(tmp_path: Path, tied: bool) -> None:
    """The Qwen3 forward pass equals the plain one, with an output matrix of its own and without."""
    weights = write_target(tmp_path / "t.gguf", tied=tied)
    expected, _ = plain.target_pass(weights, Sizes(), TEXT)

    found = Engine(tmp_path / "t.gguf", options=F32).logits(TEXT)

    assert close(expected, found)


@pytest.mark.parametrize("wanted", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_target_computes_with_every_weight_type(tmp_path: Path, wanted: str) -> None:
    """F16 and BF16 weights give the plain pass over their values; quantised ones stay within the activations' 8 bits."""
    weights = write_target(tmp_path / "t.gguf", wanted=gguf.GGMLQuantizationType[wanted])
    expected, _ = plain.target_pass(weights, Sizes(), TEXT)

    found = Engine(tmp_path / "t.gguf", options=F32).logits(TEXT)

    limit = 1e-4 if wanted.endswith("F16") else 0.1
    assert np.abs(expected - found).max() < limit * np.abs(expected).max()


@pytest.mark.parametrize(
    "qtype", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "q4_1", "q5_0", "q5_1"]
)
def test_types_without_a_kernel_are_widened_at_load(folder: Path, qtype: str) -> None:
    """A file of any K-quant gives the bits of the F32 file with the same values."""
    wide = Sizes(hidden=256, ff=256, layers=2)

    wanted = gguf.GGMLQuantizationType[qtype.upper()]

    def store(weights: dict[str, np.ndarray]) -> None:
        for name, x in weights.items():
            if x.ndim == 2 and x.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0:
                weights[name] = dequantize_rows(quantize_rows(x, qtype), qtype, x.shape[-1])

    write_target(folder / f"{qtype}.gguf", wide, wanted=wanted)
    write_target(folder / f"{qtype}-f32.gguf", wide, change=store)
    expected = Engine(folder / f"{qtype}-f32.gguf", options=F32).logits(TEXT[:9])

    found = Engine(folder / f"{qtype}.gguf", options=F32).logits(TEXT[:9])

    assert np.array_equal(expected, found)


@pytest.mark.parametrize("ids", [(0, 3), (2, 0), (1,), (3, 2, 1, 0)])
def test_captures_are_the_states_after_their_layers(tmp_path: Path, ids: tuple[int, ...]) -> None:
    """Feature k is the residual stream after layer ids[k], the last layer included, in the order of the ids."""
    weights = write_target(tmp_path / "t.gguf")
    write_draft(tmp_path / "d.gguf", replace(V1, ids=ids))
    _, states = plain.target_pass(weights, Sizes(), TEXT)

    found = Engine(tmp_path / "t.gguf", tmp_path / "d.gguf", F32).features(TEXT)

    assert close(np.concatenate([states[i] for i in ids], -1), found)


@pytest.mark.parametrize("micro_batch", [1, 7, 8, 20])
def test_micro_batches_change_no_bit(folder: Path, micro_batch: int) -> None:
    """Logits, captured rows and the proposal of a prompt of 20 are the same however it is cut."""
    whole = pair(folder, V1, micro_batch=32)
    cut = pair(folder, V1, micro_batch=micro_batch)
    prompt = TEXT[:20]

    assert np.array_equal(whole.logits(prompt), cut.logits(prompt))
    assert np.array_equal(whole.features(prompt), cut.features(prompt))
    assert np.array_equal(whole.propose(prompt).logits, cut.propose(prompt).logits)


@pytest.mark.parametrize("options", [{"threads": 2}, {"isa": "scalar"}], ids=str)
def test_threads_and_instruction_set_change_no_bit(
    folder: Path, options: dict[str, object]
) -> None:
    """Another thread count and the scalar twin give the bits of the default."""
    one, other = pair(folder, V2), pair(folder, V2, **options)

    assert np.array_equal(one.logits(TEXT), other.logits(TEXT))
    assert np.array_equal(one.propose(TEXT).logits, other.propose(TEXT).logits)


MASKS = {
    "sliding-causal": {"sliding": (True, True), "causal": (True, True)},
    "sliding-two-sided": {"sliding": (True, True), "causal": (False, False)},
    "full-causal": {"sliding": (False, False), "causal": (True, True)},
    "mixed": {"sliding": (True, False), "causal": (True, False)},
    "narrow": {"sliding": (True, True), "causal": (False, False), "window": 2},
}


@pytest.mark.parametrize("context", [1, 3, 5, 6, 7, 20])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("base", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("swa", ["per_row", "anchored"])
def test_draft_block_is_the_plain_one(
    folder: Path, base: DraftShape, mask: str, context: int, swa: str
) -> None:
    """Block 4, window 6, contexts below, at and beyond it: states, logits and tokens equal explicit masks."""
    d = replace(base, **MASKS[mask])
    shared, weights = weights_of(SIZES), weights_of(d)
    engine = pair(folder, d, swa=swa)
    text = TEXT[: context + 1]
    features = engine.features(text)[:context]
    z = plain.draft_block(
        weights,
        d,
        shared["token_embd.weight"],
        features,
        range(context),
        context,
        text[-1],
        swa == "anchored",
    )
    logits = plain.draft_logits(z, shared["output.weight"], d)

    found = engine.propose(text)

    assert close(z, found.hidden)
    assert close(logits, found.logits)
    assert plain.draft_tokens(weights, d, z, logits, text[-1]) == found.tokens


@pytest.mark.parametrize("context", [20])
def test_the_mask_variants_all_differ(folder: Path, context: int) -> None:
    """At block 4 < window 6 < context 20 no two masks give the same block: a wrong one cannot hide."""
    blocks = []
    for mask in MASKS.values():
        for swa in ("per_row", "anchored"):
            blocks.append(
                pair(folder, replace(V1, **mask), swa=swa).propose(TEXT[: context + 1]).hidden
            )
    same = [
        (a, b) for a in range(len(blocks)) for b in range(a) if np.array_equal(blocks[a], blocks[b])
    ]

    # A full layer has no window, so there the two window rules are one.
    assert [(5, 4)] == same


def test_causal_override_equals_the_file_that_says_so(folder: Path) -> None:
    """`causal=all` and `none` give what files with those patterns give."""
    prompt = TEXT[:20]
    for word, flag in (("all", True), ("none", False)):
        expected = pair(folder, replace(V1, causal=(flag, flag))).propose(prompt).logits

        assert np.array_equal(expected, pair(folder, V1, causal=word).propose(prompt).logits)


@pytest.mark.parametrize(
    "extra",
    [
        {"embedding_scale": 8.0},
        {"logit_scale": 0.5},
        {"final_logit_softcapping": 2.0},
        {"attention.value_scale": 0.7},
    ],
    ids=lambda e: next(iter(e)),
)
def test_declared_scales_are_applied(folder: Path, extra: dict[str, float]) -> None:
    """Embedding scale, output multiplier, soft cap and value scale act where the reference has them, and matter."""
    d = replace(V2, extra=extra)
    shared, weights = weights_of(SIZES), weights_of(d)
    engine = pair(folder, d)
    features = engine.features(TEXT)[:-1]
    args = (shared["token_embd.weight"], features, range(len(features)), len(features), TEXT[-1])
    expected = plain.draft_logits(plain.draft_block(weights, d, *args), shared["output.weight"], d)
    without = plain.draft_logits(plain.draft_block(weights, V2, *args), shared["output.weight"], V2)

    found = engine.propose(TEXT).logits

    assert close(expected, found)
    assert not close(without, found)


def test_own_embedding_and_head_of_a_draft_are_used(folder: Path) -> None:
    """A draft with token_embd and output of its own reads those, not the target's."""
    own = np.random.default_rng(9).standard_normal((2, 100, 64)).astype(np.float32)
    shared = pair(folder, V1)
    weights = write_draft(
        folder / "own.gguf",
        V1,
        change=lambda w: w.update({"token_embd.weight": own[0], "output.weight": own[1]}),
    )
    native = native_pair(once(folder, SIZES), once(folder, V1), folder / "own.gguf")
    native.extend(TEXT[:-1])
    features = shared.features(TEXT)[:-1]
    z = plain.draft_block(
        weights, V1, own[0], features, range(len(features)), len(features), TEXT[-1]
    )

    _, logits, hidden = native.propose(TEXT[-1])

    assert close(z, hidden)
    assert close(plain.draft_logits(z, own[1], V1), logits)


LOOPS = {
    "v1": V1,
    "v2": V2,
    "v1-two-sided": replace(V1, causal=(False, False)),
}


@pytest.mark.parametrize("n_max", [None, 2, 1])
@pytest.mark.parametrize(
    "options", [{}, {"ring": 5}, {"kv": "full"}, {"kv_type": "f16", "ring": 4}], ids=str
)
@pytest.mark.parametrize("name", LOOPS)
def test_any_draft_changes_no_token(
    folder: Path, name: str, options: dict[str, object], n_max: int | None
) -> None:
    """Greedy text with a draft is the text without one, token for token, at every block length and ring."""
    engine = pair(folder, replace(LOOPS[name], sizes=replace(SMALL, layers=2)), **options)
    for start in range(2):
        prompt = [t % 12 for t in TEXT[start : start + 9]]
        expected = engine.generate(prompt, 40, n_max=0)

        found = engine.generate(prompt, 40, n_max=n_max)

        assert expected.tokens == found.tokens
        assert expected.margins == found.margins
        assert 40 == 1 + found.steps + sum(a for _, a in found.rounds)
        assert {d for d, _ in found.rounds} <= set(range(1, (n_max or 3) + 1))


def text_of(engine: Engine, prompt: list[int], n: int = 30) -> list[int]:
    """What the target alone says."""
    return engine.generate(prompt, n, n_max=0).tokens


class GuessedRight:
    """Drives verify by hand along a known text, as a draft that always knows it would."""

    def __init__(self, engine: Engine, prompt: list[int], text: list[int]) -> None:
        self.native, self.text = engine.native, text
        self.native.reset()
        self.native.extend(prompt)

    def round(self, at: int, drafted: list[int], keep: int) -> list[int]:
        """Verify text[at] and `drafted` behind it, commit `keep` rows; gives what the target chose."""
        return self.native.verify([self.text[at], *drafted], keep)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_verifying_many_rows_chooses_what_decoding_chooses(folder: Path, rows: int) -> None:
    """Along the target's own text every verified row chooses the next token of it, accepted wholly or in part."""
    engine = pair(folder, V1)
    prompt = TEXT[:7]
    text = text_of(engine, prompt)
    guess = GuessedRight(engine, prompt, text)
    at, keep = 0, 1
    while at + rows < len(text):
        chosen = guess.round(at, text[at + 1 : at + rows], keep)

        assert text[at + 1 : at + rows + 1] == chosen
        at, keep = at + keep, keep % rows + 1


def test_an_end_token_inside_a_block_ends_the_text_there(folder: Path) -> None:
    """For every end token the text stops at its first place in it, with a draft as without."""
    engine = pair(folder, replace(V2, sizes=replace(SMALL, layers=2)))
    inside = 0
    for start in range(8):
        prompt = [t % 12 for t in TEXT[start : start + 9]]
        whole = text_of(engine, prompt, 25)
        for eos in sorted(set(whole)):
            found = engine.generate(prompt, 25, eos=[eos])

            assert whole[: whole.index(eos) + 1] == found.tokens
            assert ("eos", len(found.tokens)) == (found.stop, len(found.margins))
            inside += len(found.tokens) < 1 + found.steps + sum(a for _, a in found.rounds)
    assert inside > 0, "no end token was an accepted draft: the case did not occur"


@pytest.mark.parametrize("max_new", [0, 1, 2, 3, 4, 5])
def test_a_length_limit_is_met_exactly(folder: Path, max_new: int) -> None:
    """No round drafts more than can still be emitted, and the text is the longer one's beginning."""
    engine = pair(folder, V1)
    expected = text_of(engine, TEXT[:5], 8)[:max_new]

    found = engine.generate(TEXT[:5], max_new)

    assert (expected, "length") == (found.tokens, found.stop)
    assert all(d <= max_new - 2 for d, _ in found.rounds)


@pytest.mark.parametrize("n_max", [0, None])
def test_the_context_limit_ends_the_text(folder: Path, n_max: int | None) -> None:
    """Prompt and text together fill the context and no more; a prompt that fills it alone is refused."""
    engine = pair(folder, V1, max_context=20)
    found = engine.generate(TEXT[:13], 100, n_max=n_max)

    assert (7, "context") == (len(found.tokens), found.stop)
    with pytest.raises(UsageError, match="no room"):
        engine.generate(TEXT[:20], 1)


def test_a_draft_that_is_not_finite_costs_speed_only(folder: Path) -> None:
    """NaN and overflow in a draft: the text is the target's, every proposal is dropped and counted."""
    expected = text_of(pair(folder, V1), TEXT[:9], 20)
    for base in (V1, V2):
        for bad in (np.nan, 3e38):

            def poison(weights: dict[str, np.ndarray], bad: float = bad) -> None:
                weights["blk.1.ffn_down.weight"][:] = bad

            write_draft(folder / "poisoned.gguf", base, change=poison)
            engine = Engine(once(folder, SIZES), folder / "poisoned.gguf", F32)

            found = engine.generate(TEXT[:9], 20)

            assert (expected, []) == (found.tokens, found.rounds)
            assert found.steps - 1 == found.bad_drafts
            assert [] == engine.propose(TEXT).tokens


def test_a_target_that_is_not_finite_is_refused(folder: Path) -> None:
    """A broken target has no text to be faithful to."""

    def poison(weights: dict[str, np.ndarray]) -> None:
        weights["output_norm.weight"][:] = np.nan

    write_target(folder / "bad.gguf", change=poison)

    with pytest.raises(InputError, match="not finite"):
        Engine(folder / "bad.gguf", options=F32).generate(TEXT[:4], 3)


def test_requests_leave_nothing_behind(folder: Path) -> None:
    """Two prompts in one engine, longer and shorter, give what fresh engines give."""
    used = pair(folder, V2, ring=5)
    prompts = [TEXT[:30], TEXT[5:9], TEXT[10:40], TEXT[:30]]
    for prompt in prompts:
        expected = pair(folder, V2, ring=5).generate(prompt, 25)
        found = used.generate(prompt, 25)

        assert (expected.tokens, expected.rounds) == (found.tokens, found.rounds)


def test_draft_kv_bytes_are_the_formula(folder: Path) -> None:
    """2 x layers x round_up(cap + q + 1, 32) x row bytes: 80.6 MiB at cap 4096 with 5 layers of 1024 in F16."""
    assert 80.625 == 2 * 5 * _native.kv_total(4096, 8) * 1024 * 2 / 2**20

    for options, cap, size in (
        ({"ring": 40, "kv_type": "f16"}, 40, 2),
        ({"ring": 0}, 2048, 4),
        ({"kv": "full"}, 256, 4),
    ):
        engine = pair(folder, V1, **options)
        rows = (cap + 4 + 1 + 31) // 32 * 32

        assert 2 * 2 * rows * 32 * size == engine.draft_kv_bytes
        assert (cap, rows) == (engine.describe()["ring"], engine.describe()["kv_total"])


def refused(folder: Path, target: Sizes = SIZES, **kw: object) -> InputError:
    """The error of opening a pair whose weights `edit_target` or `edit_draft` changed."""
    nothing = lambda weights: None  # noqa: E731
    write_target(folder / "rt.gguf", target, change=kw.get("edit_target", nothing))  # type: ignore[arg-type]
    write_draft(folder / "rd.gguf", change=kw.get("edit_draft", nothing))  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        Engine(folder / "rt.gguf", folder / "rd.gguf", F32)
    return caught.value


def test_a_pair_that_does_not_fit_is_refused(folder: Path) -> None:
    """Other vocabulary, other hidden size, a captured layer the target lacks: named, with both numbers."""
    error = refused(folder, Sizes(vocab=90))
    assert ("100", True) == (error.found, "90" in error.expected)

    error = refused(folder, Sizes(hidden=32))
    assert ("64", True) == (error.found, "32" in error.expected)

    error = refused(folder, Sizes(layers=2))
    assert ("2", "0 to 1") == (error.found, error.expected)


def test_tensors_the_pass_would_not_use_are_refused_by_name(folder: Path) -> None:
    """Biases and strangers in the target, a missing tensor, another shape: each is an error that names it."""
    bias = refused(
        folder, edit_target=lambda w: w.update({"blk.0.attn_q.bias": np.zeros(64, np.float32)})
    )
    assert "biases" in bias.what
    assert "blk.0.attn_q.bias" in bias.found

    stray = refused(
        folder, edit_target=lambda w: w.update({"rope_freqs.weight": np.ones(8, np.float32)})
    )
    assert "rope_freqs.weight" in stray.found

    missing = refused(folder, edit_target=lambda w: w.pop("blk.3.ffn_up.weight"))
    assert "blk.3.ffn_up.weight" in missing.where

    shape = refused(
        folder, edit_target=lambda w: w.update({"blk.1.ffn_norm.weight": np.ones(32, np.float32)})
    )
    assert ("[32]", "[64]") == (shape.found, shape.expected)


def test_a_tensor_outside_the_file_is_refused(folder: Path) -> None:
    """Whatever the table says, the mapping is checked again: past the end, and so far that a sum would wrap."""
    write_target(folder / "t.gguf")
    file = read_gguf(folder / "t.gguf")
    path, table = native_file(file)
    config = target_config(target_from_gguf(file).spec, file)
    for offset in (file.size - 4, 2**64 - 16):
        broken = [
            (n, t, s, offset, size) if n == "output.weight" else (n, t, s, o, size)
            for n, t, s, o, size in table
        ]

        with pytest.raises(InputError, match="outside the file"):
            _native.open_engine(path, broken, config, run_config(F32))


def test_settings_that_cannot_be_meant_are_usage_errors(folder: Path) -> None:
    """A ring below a block, no threads, an unknown word, a token outside the vocabulary, an empty prompt."""
    for options in ({"ring": 3}, {"threads": 0}, {"kv": "half"}, {"micro_batch": 0}):
        with pytest.raises(UsageError):
            pair(folder, V1, **options)
    engine = pair(folder, V1)
    for prompt in ([], [100], [-1]):
        with pytest.raises(UsageError):
            engine.generate(prompt, 3)
