"""Every GGUF dialect in, every GGUF dialect out, from one spec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.canonical import TargetFacts, canonical_fields
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.ggml import BF16, F32, I64
from dflash_gguf.convert.gguf import GgufFile, read_gguf
from dflash_gguf.convert.gguf_dialects import spec_from_gguf
from dflash_gguf.convert.gguf_writer import GgufLayout, GgufOutput
from dflash_gguf.convert.names import GGUF_DIALECTS, ordered
from dflash_gguf.convert.spec import Conv, Domino, DraftSpec, RopeScaling, Selector
from dflash_gguf.convert.spelling import READERS, architecture_of, spell_fields
from heads import convert, markov
from hostile import edited
from hypothesis import assume, given, settings
from hypothesis import strategies as st

FACTS = TargetFacts("qwen35", 0, 64, 300, "a" * 64, "Tiny", True)


def as_file(spec: DraftSpec, column: str, target: str = "qwen35") -> GgufFile:
    """What a reader sees of a GGUF of `spec` in a dialect; the layout is written to no disk."""
    fields = canonical_fields(
        spec,
        FACTS,
        {"tokenizer.ggml.tokens": f.texts(["x"] * spec.vocab_size)},
        weights=1,
        type_id=BF16,
    )
    types = {"matrix": BF16, "f32": F32, "i64": I64}
    tensors = [
        (rule.spellings[column][0].format(i=i), types[rule.store], rule.dims(spec)[::-1])
        for rule, i in ordered(spec)
        if not rule.optional or rule.zeros or (rule.gguf == "d2t" and spec.draft_vocab_size)
    ]
    layout = GgufLayout(spell_fields(fields, column, spec, target), tensors)
    return GgufFile(
        Path("x.gguf"), layout.size, 3, 32, len(layout.header), dict(layout.fields), layout.infos
    )


def float32(value: float) -> float:
    """The shortest decimal of the nearest float32, which is what a GGUF can say."""
    return float(str(np.float32(value)))


scales = st.floats(0.01, 100).map(float32)


@st.composite
def specs(draw: st.DrawFn) -> DraftSpec:
    """Any draft that a spec allows, small enough to lay out."""
    variant = draw(st.sampled_from(["dflash1", "dflash2", "dspark", "domino"]))
    layers = draw(st.integers(1, 4))
    window = draw(st.integers(0, 4096))
    flags = st.tuples(*[st.booleans()] * layers)
    sliding = draw(flags.filter(any)) if window else (False,) * layers
    hidden = 32 * draw(st.integers(1, 8))
    kv_heads = draw(st.integers(1, 3))
    vocab = draw(st.integers(64, 400))
    target_layers = draw(st.integers(1, 40))
    ids = draw(st.lists(st.integers(0, target_layers - 1), min_size=1, max_size=8, unique=True))
    scaling = st.builds(
        RopeScaling, st.sampled_from(["linear", "yarn"]), scales, st.integers(0, 2**20)
    )
    block = draw(st.integers(2, 32))
    domino = st.builds(
        Domino,
        st.integers(1, 3).map(lambda n: 32 * n),
        st.integers(1, 3).map(lambda n: 32 * n),
        st.integers(0, block - 1),
    )
    return DraftSpec(
        variant=variant, hidden_size=hidden, intermediate_size=32 * draw(st.integers(1, 8)), num_hidden_layers=layers,
        num_attention_heads=kv_heads * draw(st.integers(1, 4)), num_key_value_heads=kv_heads, head_dim=32,
        vocab_size=vocab, context_length=draw(st.integers(1, 2**20)), rms_norm_eps=draw(st.sampled_from([1e-5, 1e-6])),
        rope_theta=draw(st.floats(2, 1e8).map(float32)), rope_dimension_count=draw(st.sampled_from([16, 32])),
        block_size=block, mask_token_id=draw(st.integers(0, vocab - 1)), target_layer_ids=tuple(sorted(ids)),
        target_hidden_size=32 * draw(st.integers(1, 4)), sliding_window=window, sliding_layers=sliding,
        causal_layers=draw(flags), hidden_act=draw(st.sampled_from(["silu", "gelu"])),
        conv=Conv(draw(st.integers(1, block)), draw(st.sampled_from([16, 32]))) if variant == "dflash2" else None,
        selector=Selector(32 * draw(st.integers(1, 3)), draw(st.integers(1, 5))) if variant == "dflash2" else None,
        rope_scaling=draw(st.none() | scaling), num_target_layers=target_layers,
        embedding_scale=draw(scales), logit_scale=draw(scales), final_logit_softcapping=draw(st.sampled_from([0.0, 30.0])),
        attention_value_scale=draw(scales), sample_from_anchor=draw(st.booleans()) and variant in ("dspark", "domino"),
        draft_vocab_size=draw(st.sampled_from([0, 32])), markov_rank=32 if variant == "dspark" else 0,
        markov_head_type=draw(st.sampled_from(["vanilla", "gated", "rnn"])) if variant == "dspark" else "vanilla",
        domino=draw(domino) if variant == "domino" else None,
    )  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(specs(), st.sampled_from(GGUF_DIALECTS), st.sampled_from(["qwen35", "gemma4", "llama"]))
def test_every_dialect_says_the_whole_spec(spec: DraftSpec, column: str, target: str) -> None:
    """A spec written in any dialect that carries its tensors is read back equal, field for field."""
    if spec.domino and column == "lucebox":  # its runtime knows one way to predict
        spec = replace(
            spec, sample_from_anchor=False, domino=replace(spec.domino, pure_draft_prefix_len=0)
        )
    assume(all(column in rule.spellings for rule, _ in ordered(spec) if not rule.optional))

    assert spec == spec_from_gguf(as_file(spec, column, target))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target as a GGUF."""
    return tiny.write_target_gguf(tmp_path_factory.mktemp("target") / "target.gguf")


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("dialect", ["lucebox", "ik"])
def test_round_trip_gives_the_canonical_bytes_back(
    tmp_path: Path, target: Path, dialect: str, v2: bool
) -> None:
    """canonical -> dialect -> canonical is the identity on bytes."""
    first = convert(tiny.write_draft(tmp_path / "d", v2), tmp_path / "a.gguf", "--target", target)
    other = convert(first, tmp_path / "b.gguf", "--target", target, "--dialect", dialect)
    back = convert(other, tmp_path / "c.gguf", "--target", target)

    assert first.read_bytes() != other.read_bytes()
    assert first.read_bytes() == back.read_bytes()


def test_lucebox_file_has_what_its_loader_asks_for(tmp_path: Path, target: Path) -> None:
    """Keys and tensors of models.md section 8: raw ids as int32, no tokenizer, its own names."""
    file = read_gguf(
        convert(
            tiny.write_draft(tmp_path / "d", True),
            tmp_path / "o.gguf",
            "--target",
            target,
            "--dialect",
            "lucebox",
        )
    )
    a = "dflash-draft"

    assert (a, [0, 2], 2, 128, 299, 4) == (
        file.architecture, file.kv[f"{a}.dflash.target_layer_ids"].tolist(), file.kv[f"{a}.dflash.n_target_layers"],
        file.kv[f"{a}.dflash.n_target_features"], file.kv[f"{a}.dflash.mask_token_id"], file.kv[f"{a}.dflash.block_size"],
    )  # fmt: skip
    assert f.I32 == file.fields[f"{a}.dflash.target_layer_ids"].item
    assert f.U32 == file.fields[f"{a}.dflash.mask_token_id"].type
    assert {
        f"{a}.attention.sliding_window",
        f"{a}.attention.sliding_window_pattern",
        f"{a}.vocab_size",
        f"{a}.rope.freq_base",
    } <= set(file.kv)
    assert {
        f"{a}.dflash.dflash2.{k}"
        for k in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    } <= set(file.kv)
    assert not any(
        k.startswith("tokenizer.")
        or (k.endswith("target_layers") and not k.endswith("n_target_layers"))
        for k in file.kv
    )
    assert {
        "dflash.fc.weight",
        "dflash.hidden_norm.weight",
        "blk.0.attn_conv.base",
        "dflash.selector.pred_cb",
    } <= set(file.tensors)


def test_ik_file_has_what_its_loader_asks_for(tmp_path: Path, target: Path) -> None:
    """Keys and tensors of models.md section 8: raw ids, the full tokenizer, the post-attention norm's name."""
    file = read_gguf(
        convert(
            tiny.write_draft(tmp_path / "d"),
            tmp_path / "o.gguf",
            "--target",
            target,
            "--dialect",
            "ik",
        )
    )
    a = "dflash-draft"

    assert (a, [0, 2], 128) == (
        file.architecture,
        file.kv[f"{a}.dflash.target_layer_ids"].tolist(),
        file.kv[f"{a}.dflash.n_target_features"],
    )
    assert {
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.mask_token_id",
        f"{a}.rope.dimension_count",
    } <= set(file.kv)
    assert {
        "dflash_fc.weight",
        "dflash_hidden_norm.weight",
        "blk.1.post_attention_norm.weight",
    } <= set(file.tensors)
    assert "blk.1.ffn_norm.weight" not in file.tensors


def test_lucebox_architecture_follows_the_target() -> None:
    """The name that its loader dispatches on."""
    names = [architecture_of("lucebox", t) for t in ("qwen35", "qwen35moe", "gemma4", "qwen3")]

    assert [
        "qwen35-dflash-draft",
        "qwen35-dflash-draft",
        "gemma4-dflash-draft",
        "dflash-draft",
    ] == names


def test_ik_takes_eight_captured_layers() -> None:
    """Nine are refused, with the dialects that take them."""
    spec = tiny.tiny_spec(target_layer_ids=tuple(range(9)), num_target_layers=9)
    with pytest.raises(InputError, match="no more captured layers"):
        as_file(spec, "ik")
    assert spec == spec_from_gguf(as_file(spec, "lucebox"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Path:
    """The canonical file of the tiny v1 draft."""
    folder = tmp_path_factory.mktemp("good")
    return convert(tiny.write_draft(folder / "d"), folder / "good.gguf", "--target", target)


REPAIRS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("no shifted ids", {"drop": ("dflash.target_layers",)}, ()),
    ("no raw ids", {"drop": ("dflash.target_layer_ids",)}, ()),
    ("no mask token", {"drop": ("dflash.mask_token_id", "tokenizer.ggml.mask_token_id")}, ("--mask-token-id", "299")),
    ("one mask token", {"drop": ("tokenizer.ggml.mask_token_id",)}, ()),
    ("wrong mask token", {"tokenizer__ggml__mask_token_id": f.u32(0)}, ("--mask-token-id", "299")),
    ("no ids", {"drop": ("dflash.target_layers", "dflash.target_layer_ids")}, ("--target-layer-ids", "0,2")),
    ("ids shifted twice", {"dflash__target_layers": f.i32s([2, 4])}, ("--target-layer-ids", "0,2")),
    ("no block size", {"drop": ("dflash.block_size",)}, ("--block-size", "4")),
    ("no rope base", {"drop": ("dflash.rope.freq_base",)}, ("--rope-theta", "1e7")),
    ("lost pattern", {"drop": ("dflash.attention.sliding_window_pattern",)}, ("--sliding-layers", "1,0")),
    ("lost causality", {"drop": ("dflash.attention.causal_pattern",)}, ()),
    ("wrong causality", {"dflash__attention__causal_pattern": f.booleans([True, True])}, ("--causal", "sliding")),
    ("upstream's keys only", {"drop": ("dflash.format_version", "dflash.variant", "dflash.mask_token_id", "dflash.target_layer_ids",
                                        "dflash.attention.causal_pattern", "dflash.vocab_size")}, ()),
    ("another's names", {"rename": {"fc.weight": "dflash_fc.weight", "enc.output_norm.weight": "dflash.hidden_norm.weight"}}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("what", "fault", "options"), REPAIRS, ids=[r[0] for r in REPAIRS])
def test_repair_gives_the_sound_file_back(
    tmp_path: Path, target: Path, good: Path, what: str, fault: Any, options: tuple[str, ...]
) -> None:
    """dflash-convert with the target, and the option where nothing else can know, mends the file to the same bytes."""
    broken = edited(good, tmp_path / "broken.gguf", **fault)
    mended = convert(broken, tmp_path / "mended.gguf", "--target", target, *options)

    assert good.read_bytes() == mended.read_bytes()


@pytest.mark.parametrize(
    ("what", "fault", "options"),
    [r for r in REPAIRS if r[2] and r[0] != "wrong causality"],
    ids=lambda r: str(r)[:12],
)
def test_what_cannot_be_known_is_asked_for_by_option(
    tmp_path: Path, target: Path, good: Path, what: str, fault: Any, options: tuple[str, ...]
) -> None:
    """Without the option the same file is refused, and the message names the option."""
    broken = edited(good, tmp_path / "broken.gguf", **fault)
    result = CliRunner().invoke(
        main, [str(broken), str(tmp_path / "o.gguf"), "--target", str(target)]
    )

    assert (3, True) == (result.exit_code, options[0] in result.output), result.output


def test_lost_window_is_mended_from_the_config(tmp_path: Path, target: Path, good: Path) -> None:
    """A converter that forgot the window: the checkpoint's config.json has it, and --config brings it back."""
    broken = edited(good, tmp_path / "broken.gguf", ("dflash.attention.sliding_window", "dflash.attention.sliding_window_pattern",
                                                      "dflash.attention.causal_pattern", "dflash.mask_token_id", "tokenizer.ggml.mask_token_id"))  # fmt: skip
    config = tiny.write_draft(tmp_path / "d") / "config.json"
    mended = convert(broken, tmp_path / "mended.gguf", "--target", target, "--config", config)

    assert good.read_bytes() == mended.read_bytes()


def test_config_of_another_draft_is_refused(tmp_path: Path, target: Path, good: Path) -> None:
    """A config whose geometry contradicts the file cannot mend it."""
    import json

    config = tiny.draft_config() | {"intermediate_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = CliRunner().invoke(
        main,
        [
            str(good),
            str(tmp_path / "o.gguf"),
            "--target",
            str(target),
            "--config",
            str(tmp_path / "config.json"),
        ],
    )

    assert (3, True) == (result.exit_code, "shape contradicts" in result.output), result.output


def test_transposed_fc_is_mended_only_by_the_word_for_it(
    tmp_path: Path, target: Path, good: Path
) -> None:
    """A transposed fc is refused; --fc transposed turns the weights back, --fc mislabelled only the shape."""
    file, raw = read_gguf(good), good.read_bytes()
    fc = file.tensors["fc.weight"]
    weights = np.frombuffer(raw[fc.offset : fc.offset + fc.nbytes], np.uint16).reshape(64, 128)
    for word, data in (("transposed", weights.T.copy()), ("mislabelled", weights)):
        broken = tmp_path / f"{word}.gguf"
        tensors = [
            (t.name, t.type, t.shape[::-1] if t.name == "fc.weight" else t.shape)
            for t in file.tensors.values()
        ]
        with GgufOutput(broken, file.fields, tensors) as writer:
            for t in file.tensors.values():
                writer.write(
                    t.name,
                    data.tobytes()
                    if t.name == "fc.weight"
                    else raw[t.offset : t.offset + t.nbytes],
                )
        refused = CliRunner().invoke(
            main, [str(broken), str(tmp_path / "o.gguf"), "--target", str(target)]
        )

        assert (3, True) == (refused.exit_code, "--fc" in refused.output), refused.output
        mended = convert(broken, tmp_path / f"{word}-mended.gguf", "--target", target, "--fc", word)
        assert good.read_bytes() == mended.read_bytes()


def in_keys_of(good: Path, output: Path, architecture: str, deep: bool) -> Path:
    """The canonical file under another architecture; `deep`: DFlash's own keys stand one level deeper, as patched files have them."""
    file = read_gguf(good)
    own = {"dflash.block_size", "dflash.mask_token_id", "dflash.target_layer_ids"}
    ours = {k: v for k, v in file.fields.items() if k.startswith("dflash.")}
    keys = {
        f"{architecture}.{'dflash.' if deep and k in own else ''}{k.removeprefix('dflash.')}": v
        for k, v in ours.items()
    }
    fields = {k.replace(".", "__"): v for k, v in keys.items()} | {
        "general__architecture": f.text(architecture)
    }
    return edited(good, output, tuple(ours), **fields)


@pytest.mark.parametrize("dspark", [False, True])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("architecture", sorted(READERS))
def test_any_architecture_with_any_depth_of_keys_becomes_the_canonical_file(
    tmp_path: Path, target: Path, good: Path, architecture: str, deep: bool, dspark: bool
) -> None:
    """Hand-patched files mix `dflash.dflash.*` with llama.cpp's keys, old DSpark files have an architecture of their own."""
    if dspark:
        source = tiny.write_draft(
            tmp_path / "d",
            tensors=tiny.draft_tensors() | markov("markov_head.", "confidence_head.proj"),
        )
        good = convert(source, tmp_path / "good.gguf", "--target", target)
    patched = in_keys_of(good, tmp_path / "patched.gguf", architecture, deep)
    mended = convert(patched, tmp_path / "mended.gguf", "--target", target)

    assert good.read_bytes() == mended.read_bytes()


def test_stray_tensor_of_another_variant_is_refused(tmp_path: Path) -> None:
    """A v1 file with one selector tensor is neither, and the tensors that would be needed are named."""
    spec = tiny.tiny_spec()
    file = as_file(spec, "gguf")
    tensors = dict(file.tensors)
    tensors["selector_hidden.weight"] = replace(tensors["fc.weight"], name="selector_hidden.weight")
    mixed = GgufFile(
        file.path,
        file.size,
        3,
        32,
        0,
        {k: v for k, v in file.fields.items() if k != "dflash.variant"},
        tensors,
    )
    with pytest.raises(InputError):
        spec_from_gguf(mixed)


def test_other_architecture_is_named(tmp_path: Path, target: Path) -> None:
    """A target is not a draft."""
    with pytest.raises(InputError, match="not a DFlash draft"):
        spec_from_gguf(read_gguf(target))
