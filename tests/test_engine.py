"""The forward passes are the models': target, captures and draft blocks against a plain model, bit for bit among themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import plain_model as plain
import pytest
from dflash_gguf import _native
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_dialects import spec_from_gguf
from dflash_gguf.convert.target import target_from_gguf
from dflash_gguf.quantize import dequantize_rows, quantize_rows
from dflash_gguf.runtime.engine import Engine, draft_config, native_file, run_config, target_config
from tiny_engine import EXACT, TEXT, open_pair
from tiny_gguf import V1, V2, DraftShape, Sizes, once, weights_of, write_draft, write_target

SIZES = Sizes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def native_pair(target: Path, draft: Path, tensors: Path, **config: object) -> _native.Engine:
    """The native engine with `draft`'s spec and the tensors of another file, past the checks of the readers.

    `config` changes fields of the native draft configuration.
    """
    t, d = read_gguf(target), read_gguf(draft)
    spec = spec_from_gguf(d)
    changed = draft_config(spec, d, "file")
    for name, value in config.items():
        setattr(changed, name, value)
    return _native.open_pair(
        *native_file(t), target_config(target_from_gguf(t).spec, t), *native_file(read_gguf(tensors)),
        changed, run_config(EXACT),
    )  # fmt: skip


def close(expected: np.ndarray, found: np.ndarray) -> bool:
    """Equal to what float32 allows: 1e-4 of the largest value."""
    return bool(np.abs(expected - found).max() < 1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("tied", [False, True])
def test_target_logits_are_the_models(tmp_path: Path, tied: bool) -> None:
    """The Qwen3 forward pass equals the plain one, with an output matrix of its own and without."""
    weights = write_target(tmp_path / "t.gguf", tied=tied)
    expected, _ = plain.target_pass(weights, Sizes(), TEXT)

    found = Engine(tmp_path / "t.gguf", options=EXACT).logits(TEXT)

    assert close(expected, found)


@pytest.mark.parametrize("wanted", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_target_computes_with_every_weight_type(tmp_path: Path, wanted: str) -> None:
    """F16 and BF16 weights give the plain pass over their values; quantised ones stay within the activations' 8 bits."""
    weights = write_target(tmp_path / "t.gguf", wanted=gguf.GGMLQuantizationType[wanted])
    expected, _ = plain.target_pass(weights, Sizes(), TEXT)

    found = Engine(tmp_path / "t.gguf", options=EXACT).logits(TEXT)

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
    expected = Engine(folder / f"{qtype}-f32.gguf", options=EXACT).logits(TEXT[:9])

    found = Engine(folder / f"{qtype}.gguf", options=EXACT).logits(TEXT[:9])

    assert np.array_equal(expected, found)


@pytest.mark.parametrize("ids", [(0, 3), (1,), (0, 1, 2, 3)])
def test_captures_are_the_states_after_their_layers(tmp_path: Path, ids: tuple[int, ...]) -> None:
    """Feature k is the residual stream after layer ids[k], the last layer included, in the order of the ids."""
    weights = write_target(tmp_path / "t.gguf")
    write_draft(tmp_path / "d.gguf", replace(V1, ids=ids))
    _, states = plain.target_pass(weights, Sizes(), TEXT)

    found = Engine(tmp_path / "t.gguf", tmp_path / "d.gguf", EXACT).features(TEXT)

    assert close(np.concatenate([states[i] for i in ids], -1), found)


@pytest.mark.parametrize("ids", [[2, 2, 0], [3, 0, 1], [1, 1, 1]])
def test_captures_keep_the_order_and_the_number_of_the_ids(folder: Path, ids: list[int]) -> None:
    """Ids out of order or repeated fill their own places; a duplicate neither moves nor overwrites another."""
    draft = once(folder, replace(V1, ids=(0, 1, 2)))
    _, states = plain.target_pass(weights_of(SIZES), SIZES, TEXT)

    found = native_pair(once(folder, SIZES), draft, draft, target_layer_ids=ids).features(TEXT)

    assert close(np.concatenate([states[i] for i in ids], -1), found)


@pytest.mark.parametrize("micro_batch", [1, 7, 8, 20])
def test_micro_batches_change_no_bit(folder: Path, micro_batch: int) -> None:
    """Logits, captured rows and the proposal of a prompt of 20 are the same however it is cut."""
    whole = open_pair(folder, V1, micro_batch=32)
    cut = open_pair(folder, V1, micro_batch=micro_batch)
    prompt = TEXT[:20]

    assert np.array_equal(whole.logits(prompt), cut.logits(prompt))
    assert np.array_equal(whole.features(prompt), cut.features(prompt))
    assert np.array_equal(whole.propose(prompt).logits, cut.propose(prompt).logits)


@pytest.mark.parametrize("options", [{"threads": 2}, {"isa": "scalar"}], ids=str)
def test_threads_and_instruction_set_change_no_bit(
    folder: Path, options: dict[str, object]
) -> None:
    """Another thread count and the scalar twin give the bits of the default."""
    one, other = open_pair(folder, V2), open_pair(folder, V2, **options)

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
    engine = open_pair(folder, d, swa=swa)
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
                open_pair(folder, replace(V1, **mask), swa=swa).propose(TEXT[: context + 1]).hidden
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
        expected = open_pair(folder, replace(V1, causal=(flag, flag))).propose(prompt).logits

        assert np.array_equal(expected, open_pair(folder, V1, causal=word).propose(prompt).logits)


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
    engine = open_pair(folder, d)
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
    shared = open_pair(folder, V1)
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
