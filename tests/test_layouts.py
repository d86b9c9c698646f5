"""Every published layout of a checkpoint, as a small one of exactly that layout (models.md sections 2 to 6).

What llama.cpp can run becomes the canonical GGUF, equal to that of the plainest spelling; what it cannot is refused
by the names of the tensors, with the dialect that can.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.draft import read_draft
from dflash_gguf.convert.ggml import F32
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufOutput
from dflash_gguf.convert.inspect_cli import main as inspect_main
from dflash_gguf.quantize import stream
from dflash_gguf.quantize.cli import main as quantize_main
from heads import (
    DOMINO_FIELDS,
    GRU,
    PAIR_TARGET,
    RANK,
    Tensors,
    convert,
    domino,
    domino_tensors,
    flat,
    markov,
    pair_draft,
    random,
    values_of,
)
from hostile import edited, refused
from llama_client import LlamaServer

REDUCED = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target as a GGUF."""
    return tiny.write_target_gguf(tmp_path_factory.mktemp("target") / "target.gguf")


def renamed(tensors: Tensors, change: Callable[[str], str]) -> Tensors:
    """The tensors under other names."""
    return {change(name): value for name, value in tensors.items()}


def speculators(kind: str, **more: Any) -> dict[str, Any]:
    """The same draft in the speculators format."""
    config = tiny.draft_config()
    backbone = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "hidden_act", "layer_types", "sliding_window", "use_sliding_window")  # fmt: skip
    return {
        "architectures": ["DFlashDraftModel"], "speculators_model_type": kind, "block_size": 4, "mask_token_id": tiny.MASK,
        "aux_hidden_state_layer_ids": [1, 3, 4], "transformer_layer_config": {k: config[k] for k in backbone},
        "draft_vocab_size": tiny.VOCAB, "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": "x"}},
    } | more  # fmt: skip


def specforge(**more: Any) -> dict[str, Any]:
    """SpecForge keeps a projector type beside z-lab's fields, and an auto_map that is never followed."""
    config = tiny.draft_config()
    config["dflash_config"] |= {"projector_type": "dspark", "markov_rank": RANK}
    return config | {"architectures": ["DSparkDraftModel"], "auto_map": {"AutoModel": "x.Y"}} | more


def interleaved_heads(tensors: Tensors) -> Tensors:
    """The tensors as a model writes them whose rotated pairs are neighbours: row 2i is ours i, row 2i+1 is ours half + i."""
    order = np.arange(tiny.HEAD_DIM).reshape(2, -1).T.ravel()

    def changed(name: str, array: np.ndarray) -> np.ndarray:
        if not any(f"self_attn.{x}" in name for x in ("q_proj", "k_proj", "q_norm", "k_norm")):
            return array
        return array.reshape(-1, tiny.HEAD_DIM, *array.shape[1:])[:, order].reshape(array.shape)

    return {name: (dtype, changed(name, array)) for name, (dtype, array) in tensors.items()}


V1, V2 = tiny.draft_tensors(), tiny.draft_tensors(True)
DSPARK = V1 | markov("markov_head.", "confidence_head.proj")
DOMINO = V1 | domino_tensors()
V2_CONFIG = tiny.draft_config(True)
BASE: dict[str, tuple[dict[str, Any], Tensors]] = {
    "v1": (tiny.draft_config(), V1), "v2": (V2_CONFIG, V2), "dspark": (flat(architectures=["Qwen3DSparkModel"]), DSPARK),
    "domino": (domino(), DOMINO),
}  # fmt: skip
"""The plainest spelling of each kind of draft."""

SAME: list[tuple[str, str, dict[str, Any], Tensors]] = [
    ("Muse assistant", "v1", flat(architectures=["MuseGlimmerAssistantModel"]), renamed(V1, lambda n: {
        "fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}.get(n, n))),
    ("speculators dflash", "v1", speculators("dflash"), V1 | {"t2d": ("BOOL", np.zeros(tiny.VOCAB, np.uint8)), "verifier_norm.weight": random(9, tiny.H)}),
    ("speculators midlayer", "v1", speculators("dflash"), renamed(V1, lambda n: n.replace("layers.0.", "midlayer."))),
    ("z-lab v1, nested config", "v1", {k: v for k, v in tiny.draft_config().items() if k not in ("block_size", "rope_theta")} | {
        "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
        "dflash_config": tiny.draft_config()["dflash_config"] | {"block_size": 4}}, V1),
    ("codebooks with .weight", "v2", V2_CONFIG, renamed(V2, lambda n: n + ".weight" * n.endswith(("_codebook", "base_kernel")))),
    ("speculators dflash2", "v2", speculators("dflash2", **{k: v for k, v in V2_CONFIG["dflash_config"].items() if k.startswith(("conv", "sel"))},
        layer_types=None, sliding_window=None) | {"transformer_layer_config": speculators("dflash2")["transformer_layer_config"] | {
        "layer_types": ["sliding_attention"] * 2}}, V2),
    ("model. prefix", "v1", tiny.draft_config(), renamed(V1, lambda n: f"model.{n}")),
    ("both aux spellings", "v1", tiny.draft_config() | {"eagle_aux_hidden_state_layer_ids": [1, 3]}, V1),
    ("label of another", "v1", tiny.draft_config() | {"architectures": ["DSparkDraftModel"]}, V1),
    ("DeepSeek DSpark", "dspark", flat(architectures=["Qwen3DSparkModel"], markov_rank=RANK, markov_head_type="vanilla", enable_confidence_head=True), DSPARK),
    ("SpecForge DSpark", "dspark", specforge(), DSPARK),
    ("SpecForge rewritten", "dspark", specforge(architectures=["Qwen3DSparkModel"], auto_map=None), DSPARK),
    ("DFlash label, Markov tensors", "dspark", tiny.draft_config(), DSPARK),
    ("ModelOpt DSpark", "dspark", flat(architectures=["DSparkDraftModel"], use_confidence_head=True), tiny.draft_tensors() | markov("", "confidence_proj")),
    ("speculators dspark", "dspark", speculators("dspark", markov_rank=RANK, sample_from_anchor=True), DSPARK),
    ("speculators dspark with t2d", "dspark", speculators("dspark", sample_from_anchor=True), DSPARK | {
        "t2d": ("BOOL", np.ones(tiny.VOCAB, np.uint8)), "verifier_lm_head.weight": random(9, tiny.VOCAB, tiny.H)}),
    ("Liquid DSpark", "dspark", specforge(architectures=["Lfm2DSparkDraftModel"], rope_is_neox_style=False), interleaved_heads(DSPARK)),
    ("Ling DSpark", "dspark", specforge(architectures=["LingDSparkModel"]), DSPARK),
    ("Lucebox's DSpark names", "dspark", tiny.draft_config(), V1 | markov("dspark_markov_head.", "dspark_confidence_head")),
    ("SpecForge Domino", "domino", domino(architectures=["DFlashDraftModel"], auto_map=None), DOMINO),
    ("ModelOpt Domino", "domino", flat(dflash_config=DOMINO_FIELDS, rope_scaling=None, torch_dtype="bfloat16"), DOMINO),
    ("Domino in logit_head", "domino", domino(), V1 | renamed(domino_tensors(), lambda n: f"logit_head.{n}")),
    ("speculators Domino", "domino", speculators("dflash", **DOMINO_FIELDS), V1 | renamed(domino_tensors(), lambda n: f"domino_head.{n}")),
    ("speculators Domino, own class", "domino", speculators("domino", architectures=["DominoDraftModel"], sample_from_anchor=True,
        pure_draft_prefix_len=1, gru_hidden_dim=GRU, logits_correction_emb_dim=RANK), V1 | renamed(domino_tensors(), lambda n: f"logits_correction.{n}")),
    ("Lucebox's Domino names", "domino", domino(), V1 | domino_tensors("domino_gru.", "domino_head.W1.", "domino_head.W2.")),
    ("old logit_head prefix", "dspark", specforge(), tiny.draft_tensors() | markov("logit_head.", "confidence_head.proj")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("plainest", "config", "tensors"), [s[1:] for s in SAME], ids=[s[0] for s in SAME]
)
def test_every_spelling_of_a_draft_gives_the_same_bytes(
    tmp_path: Path, target: Path, plainest: str, config: Any, tensors: Tensors
) -> None:
    """The layout is a spelling: the canonical file is byte-identical to that of the plainest one (bugs 14)."""
    config = {k: v for k, v in config.items() if v is not None}
    plain_config, plain_tensors = BASE[plainest]
    base = tiny.write_draft(tmp_path / "base", config=plain_config, tensors=plain_tensors)
    ours = convert(
        tiny.write_draft(tmp_path / "d", config=config, tensors=tensors),
        tmp_path / "a.gguf",
        "--target",
        target,
    )

    assert convert(base, tmp_path / "b.gguf", "--target", target).read_bytes() == ours.read_bytes()


def test_dspark_file_has_upstreams_keys_and_tensors(tmp_path: Path, target: Path) -> None:
    """Markov tables, confidence head and their flags, as llama.cpp's loader wants them."""
    source = tiny.write_draft(tmp_path / "d", config=specforge(), tensors=DSPARK)
    file = read_gguf(convert(source, tmp_path / "o.gguf", "--target", target))

    assert ("dspark", True, True) == (
        file.kv["dflash.variant"],
        file.kv["dflash.sample_from_anchor"],
        file.kv["dflash.has_confidence_head"],
    )
    assert (RANK, tiny.VOCAB) == file.tensors["markov_w1.weight"].shape
    assert (tiny.H + RANK, 1) == file.tensors["conf_proj.weight"].shape
    assert (1,) == file.tensors["conf_proj.bias"].shape


def test_reduced_vocabulary_becomes_absolute_ids(tmp_path: Path, target: Path) -> None:
    """d2t offsets are turned into target ids; the head and the second Markov table keep their own rows."""
    offsets = np.arange(REDUCED, dtype=np.int64) * 2
    tensors = tiny.draft_tensors() | markov("markov_head.", "confidence_head.proj", REDUCED) | {
        "d2t": ("I64", offsets), "embed_tokens.weight": random(5, tiny.VOCAB, tiny.H), "lm_head.weight": random(6, REDUCED, tiny.H),
    }  # fmt: skip
    config = speculators("dspark", draft_vocab_size=REDUCED)
    out = convert(
        tiny.write_draft(tmp_path / "d", config=config, tensors=tensors),
        tmp_path / "o.gguf",
        "--target",
        target,
    )
    d2t = np.frombuffer(values_of(out)["d2t"], np.int64)

    np.testing.assert_array_equal(offsets + np.arange(REDUCED), d2t)
    assert (tiny.H, REDUCED) == read_gguf(out).tensors["output.weight"].shape
    assert REDUCED == read_draft(out).spec.draft_vocab_size
    again = convert(out, tmp_path / "p.gguf", "--target", target)
    assert out.read_bytes() == again.read_bytes()


def test_reduced_vocabulary_that_leaves_the_target_is_refused(tmp_path: Path, target: Path) -> None:
    """An absolute id past the embedding, and a size that d2t does not have."""
    tensors = tiny.draft_tensors() | {
        "d2t": ("I64", np.full(REDUCED, tiny.VOCAB, np.int64)),
        "lm_head.weight": random(6, REDUCED, tiny.H),
    }
    source = tiny.write_draft(
        tmp_path / "d", config=speculators("dflash", draft_vocab_size=REDUCED), tensors=tensors
    )
    assert "d2t" in refused(main, source, tmp_path / "o.gguf", "--target", target)
    source = tiny.write_draft(
        tmp_path / "e", config=speculators("dflash", draft_vocab_size=50), tensors=tensors
    )
    assert "contradicts d2t" in refused(main, source, tmp_path / "o.gguf", "--target", target)


def test_speculators_flags_decide_causality(tmp_path: Path) -> None:
    """Sliding layers are causal unless sliding_window_non_causal says otherwise; full ones never are."""
    tensors = tiny.draft_tensors()
    found = {}
    for flag in (None, False, True):
        config = speculators("dflash") | (
            {} if flag is None else {"sliding_window_non_causal": flag}
        )
        found[flag] = read_draft(
            tiny.write_draft(tmp_path / str(flag), config=config, tensors=tensors)
        ).spec.causal_layers

    assert {None: (True, False), False: (True, False), True: (False, False)} == found


def mimo() -> tuple[dict[str, Any], Tensors]:
    """Sinks, half a rotation, a window for all layers by switch alone, a scale on the values."""
    config = tiny.draft_config() | {
        "partial_rotary_factor": 0.5,
        "v_head_dim": tiny.HEAD_DIM,
        "rope_theta": 10000,
    }
    for key in ("layer_types", "use_sliding_window", "max_window_layers"):
        del config[key]
    config["dflash_config"] |= {"use_swa": True, "swa_window_size": 8, "attention_value_scale": 0.612, "attention_sink_bias": True,
                                "backbone_rotary_base": 5000000, "num_anchors": 4, "block_size": 4}  # fmt: skip
    sinks = {
        f"layers.{i}.self_attn.attention_sink_bias": random(10 + i, tiny.HEADS) for i in range(2)
    }
    return config, tiny.draft_tensors() | sinks


def test_mimo_keeps_sinks_half_rotation_and_value_scale(tmp_path: Path, target: Path) -> None:
    """All layers slide, none is causal, half of each head rotates; sinks are F32 under upstream's name."""
    config, tensors = mimo()
    source = tiny.write_draft(tmp_path / "d", config=config, tensors=tensors)
    out = convert(source, tmp_path / "o.gguf", "--target", target)
    spec = read_draft(out).spec

    assert ((True, True), (False, False), 8, tiny.HEAD_DIM // 2, 0.612) == (
        spec.sliding_layers, spec.causal_layers, spec.sliding_window, spec.rope_dimension_count, spec.attention_value_scale
    )  # fmt: skip
    assert (tiny.HEADS,) == read_gguf(out).tensors["blk.1.attn_sinks.weight"].shape


@pytest.mark.parametrize("factor", [1e308, 10**400, 1.5, 0, -0.5])
def test_a_share_of_rotated_dims_is_a_share(tmp_path: Path, target: Path, factor: float) -> None:
    """partial_rotary_factor outside (0, 1] is refused by its name, however large."""
    config, tensors = mimo()
    source = tiny.write_draft(
        tmp_path / "d", config=config | {"partial_rotary_factor": factor}, tensors=tensors
    )
    assert "partial_rotary_factor" in refused(main, source, tmp_path / "o.gguf", "--target", target)


def test_partial_rotation_that_leaked_from_a_target_is_not_believed(tmp_path: Path) -> None:
    """Outside MiMo's layout the factor belongs to the target (quirk 9)."""
    config = tiny.draft_config() | {"partial_rotary_factor": 0.25}
    assert (
        tiny.HEAD_DIM
        == read_draft(tiny.write_draft(tmp_path / "d", config=config)).spec.rope_dimension_count
    )


def laguna() -> tuple[dict[str, Any], Tensors]:
    """Fused qkv, gates, one more norm for each captured layer; every field in dflash_config."""
    config = tiny.draft_config() | {"architectures": ["DFlashLagunaForCausalLM"], "model_type": "laguna", "gating": "per-head",
                                    "eagle_aux_hidden_state_layer_ids": [1, 3]}  # fmt: skip
    config["dflash_config"] |= {
        "causal": True,
        "num_target_layers": config.pop("num_target_layers"),
    }
    tensors = tiny.draft_tensors()
    for i in range(2):
        parts = [tensors.pop(f"layers.{i}.self_attn.{x}_proj.weight")[1] for x in "qkv"]
        tensors[f"layers.{i}.self_attn.qkv_proj.weight"] = ("BF16", np.concatenate(parts))
        tensors[f"layers.{i}.self_attn.g_proj.weight"] = random(20 + i, tiny.HEADS, tiny.H)
        tensors[f"aux_hidden_norms.{i}.weight"] = random(30 + i, tiny.H)
    return config, tensors


def test_laguna_goes_into_the_dialects_that_carry_it(tmp_path: Path, target: Path) -> None:
    """llama.cpp's file cannot carry gates and aux norms: refused with the dialects that can, which then get every byte."""
    config, tensors = laguna()
    source = tiny.write_draft(tmp_path / "d", config=config, tensors=tensors)
    message = refused(main, source, tmp_path / "o.gguf", "--target", target)
    assert "aux_hidden_norms.0.weight" in message
    assert "--dialect lucebox or ik" in message
    plain = tiny.draft_tensors()
    for dialect, norm, key in (
        ("ik", "dflash_aux_hidden_norm.1.weight", "laguna"),
        ("lucebox", "dflash.aux_hidden_norm.1.weight", "context_kv_layer_norm"),
    ):
        out = convert(
            source, tmp_path / f"{dialect}.gguf", "--target", target, "--dialect", dialect
        )
        found, kv = values_of(out), read_gguf(out).kv
        for x, name in (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v")):
            assert (
                plain[f"layers.1.self_attn.{x}_proj.weight"][1].tobytes()
                == found[f"blk.1.{name}.weight"]
            )
        assert (
            tensors["layers.0.self_attn.g_proj.weight"][1].tobytes()
            == found["blk.0.attn_gate.weight"]
        )
        assert norm in found
        assert kv[f"dflash-draft.dflash.{key}"] is True
        assert (True, True) == read_draft(out).spec.causal_layers


def u32s(values: list[int]) -> f.Field:
    """An array of 32-bit unsigned integers."""
    return f.Field(f.ARRAY, np.asarray(values, np.uint32), f.U32)


def poolside(lucebox: Path, output: Path, *drop: str, rows: int = 2, **more: f.Field) -> Path:
    """A Laguna draft's Lucebox file in Poolside's words: llama.cpp's architecture and names, shifted uint32 ids, stacked norms."""
    file, raw = read_gguf(lucebox), values_of(lucebox)
    a, tokens = file.architecture, {k: v for k, v in tiny.target_fields().items() if k.startswith("tokenizer.")}  # fmt: skip
    fields = {"general.architecture": f.text("dflash"), "dflash.decoder_arch": f.text("laguna")} | tokens | {
        "dflash.block_size": f.u32(4), "dflash.target_layers": u32s([1, 3]), "tokenizer.ggml.mask_token_id": f.u32(tiny.MASK),
    }  # fmt: skip
    for key, field in file.fields.items():
        if key.startswith(f"{a}.") and ".dflash." not in key and "causal" not in key:
            fields[f"dflash.{key.removeprefix(f'{a}.')}"] = field
    fields = {k: v for k, v in (fields | {"dflash.attention.causal": f.boolean(True)} | more).items() if k not in drop}  # fmt: skip
    names = {"dflash.fc.weight": "fc.weight", "dflash.hidden_norm.weight": "enc.output_norm.weight"}
    tensors = {
        names.get(t.name, t.name): (t.type, t.shape, raw[t.name])
        for t in file.tensors.values()
        if "aux_hidden_norm" not in t.name
    }
    norms = [raw[f"dflash.aux_hidden_norm.{i % 2}.weight"] for i in range(rows)]
    tensors["enc.aux_norm.weight"] = (F32, (tiny.H, rows), b"".join(norms))
    with GgufOutput(output, fields, [(n, k, shape) for n, (k, shape, _) in tensors.items()]) as writer:  # fmt: skip
        for name, (_, _, data) in tensors.items():
            writer.write(name, data)
    return output


@pytest.fixture
def laguna_files(tmp_path: Path, target: Path) -> dict[str, Path]:
    """One Laguna draft as the checkpoint gives it in both dialects that carry it."""
    config, tensors = laguna()
    source = tiny.write_draft(tmp_path / "laguna", config=config, tensors=tensors)
    return {
        d: convert(source, tmp_path / f"plain-{d}.gguf", "--target", target, "--dialect", d)
        for d in ("ik", "lucebox")
    }


@pytest.mark.parametrize("drop", [(), ("dflash.attention.causal",)], ids=["flag", "no flag"])
def test_poolsides_gguf_is_the_draft_of_its_checkpoint(
    tmp_path: Path, target: Path, laguna_files: dict[str, Path], drop: tuple[str, ...]
) -> None:
    """Norms unstacked, ids shifted back, causal with or without the flag: the checkpoint's bytes in both dialects; llama.cpp's is refused."""
    source = poolside(laguna_files["lucebox"], tmp_path / "poolside.gguf", *drop)
    for dialect, plain in laguna_files.items():
        out = tmp_path / f"{dialect}.gguf"
        convert(source, out, "--target", target, "--dialect", dialect)
        assert plain.read_bytes() == out.read_bytes()
    message = refused(main, source, tmp_path / "o.gguf", "--target", target)
    assert "--dialect lucebox or ik" in message
    shown = CliRunner().invoke(inspect_main, [str(source)])
    assert "Poolside's variant" in shown.output


def test_another_decoder_is_refused_by_name(
    tmp_path: Path, target: Path, laguna_files: dict[str, Path]
) -> None:
    """A decoder_arch that nobody described may compute anything."""
    source = poolside(
        laguna_files["lucebox"], tmp_path / "p.gguf", **{"dflash.decoder_arch": f.text("falcon")}
    )  # fmt: skip
    assert "falcon" in refused(main, source, tmp_path / "o.gguf", "--target", target)


@pytest.mark.parametrize("rows", [1, 3])
def test_stack_of_another_height_is_refused(
    tmp_path: Path, target: Path, laguna_files: dict[str, Path], rows: int
) -> None:
    """One norm too few or too many for the captured layers, named."""
    source = poolside(laguna_files["lucebox"], tmp_path / "p.gguf", rows=rows)
    message = refused(main, source, tmp_path / "o.gguf", "--target", target, "--dialect", "ik")
    assert f"aux_hidden_norm.{rows if rows == 1 else 2}.weight" in message


@pytest.mark.parametrize("said", [None, False])
def test_confidence_head_without_markov_embedding_is_padded_with_zeros(
    tmp_path: Path, target: Path, said: bool | None
) -> None:
    """The same bytes as a head of full width whose last columns are zero; so from a checkpoint as from a GGUF."""
    wide = dict(DSPARK)
    name = "confidence_head.proj.weight"
    wide[name] = ("BF16", np.concatenate([DSPARK[name][1][:, : tiny.H], np.zeros((1, RANK), np.uint16)], 1))  # fmt: skip
    narrow = wide | {name: ("BF16", wide[name][1][:, : tiny.H])}
    config = specforge(**({} if said is None else {"confidence_head_with_markov": said}))
    a = tiny.write_draft(tmp_path / "a", config=specforge(), tensors=wide)
    b = tiny.write_draft(tmp_path / "b", config=config, tensors=narrow)
    one = convert(a, tmp_path / "a.gguf", "--target", target)
    assert one.read_bytes() == convert(b, tmp_path / "b.gguf", "--target", target).read_bytes()

    file, raw = read_gguf(one), values_of(one)
    table = [(t.name, t.type, (tiny.H, 1) if t.name == "conf_proj.weight" else t.shape) for t in file.tensors.values()]  # fmt: skip
    with GgufOutput(tmp_path / "narrow.gguf", file.fields, table) as writer:
        for t in file.tensors.values():
            cut = 2 * tiny.H if t.name == "conf_proj.weight" else None
            writer.write(t.name, raw[t.name][:cut])
    again = convert(tmp_path / "narrow.gguf", tmp_path / "c.gguf", "--target", target)
    assert one.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("sees", [True, False])
def test_confidence_head_of_the_width_that_the_config_denies_is_refused(
    tmp_path: Path, target: Path, sees: bool
) -> None:
    """Narrow where the config says it sees the embedding, wide where it says it does not."""
    tensors = DSPARK | {"confidence_head.proj.weight": random(3, 1, tiny.H + (0 if sees else RANK))}
    source = tiny.write_draft(
        tmp_path / "d", config=specforge(confidence_head_with_markov=sees), tensors=tensors
    )
    message = refused(main, source, tmp_path / "o.gguf", "--target", target)
    assert "confidence_head_with_markov" in message


def test_gemma_4_decoder_is_refused_by_its_tensors(tmp_path: Path, target: Path) -> None:
    """DeepSeek's Gemma4DSparkModel: four norms and a scalar a layer, no values of their own, and no plain RoPE base in its config."""
    tensors = {n: t for n, t in DSPARK.items() if "v_proj" not in n} | {
        f"layers.{i}.{name}": random(7, *shape)
        for i in range(2)
        for name, shape in (("layer_scalar", (1,)), ("pre_feedforward_layernorm.weight", (tiny.H,)), ("post_feedforward_layernorm.weight", (tiny.H,)))
    }  # fmt: skip
    config = flat(architectures=["Gemma4DSparkModel"], attention_k_eq_v=True, rope_theta=None,
                  rope_parameters={"full_attention": {"rope_type": "proportional", "rope_theta": 1e6}})  # fmt: skip
    source = tiny.write_draft(tmp_path / "d", config=config, tensors=tensors)
    message = refused(main, source, tmp_path / "o.gguf", "--target", target)
    assert "Gemma 4 decoder" in message
    assert "layers.0.layer_scalar" in message


def test_fused_rows_must_fit_the_heads(tmp_path: Path, target: Path) -> None:
    """A qkv_proj of another height is refused by name."""
    config, tensors = laguna()
    tensors["layers.0.self_attn.qkv_proj.weight"] = random(1, 100, tiny.H)
    source = tiny.write_draft(tmp_path / "d", config=config, tensors=tensors)
    assert "does not fit the heads" in refused(
        main, source, tmp_path / "o.gguf", "--target", target
    )


def test_biases_go_to_ik_only(tmp_path: Path, target: Path) -> None:
    """gpt-oss drafts have 15 tensors a layer; only ik's loader takes the biases, and they are F32 there."""
    rows = {"q": 64, "k": 32, "v": 32, "o": tiny.H}
    biases = {
        f"layers.{i}.self_attn.{x}_proj.bias": random(40 + i, n)
        for i in range(2)
        for x, n in rows.items()
    }
    tensors = tiny.draft_tensors() | biases
    source = tiny.write_draft(
        tmp_path / "d", config=tiny.draft_config() | {"attention_bias": True}, tensors=tensors
    )
    message = refused(main, source, tmp_path / "o.gguf", "--target", target)
    assert "8 tensors that this dialect cannot carry" in message
    assert "--dialect ik" in message
    out = convert(source, tmp_path / "ik.gguf", "--target", target, "--dialect", "ik")
    assert len(tensors) == len(values_of(out))
    half = {k: v for k, v in tensors.items() if k != "layers.1.self_attn.q_proj.bias"}
    source = tiny.write_draft(
        tmp_path / "e", config=tiny.draft_config() | {"attention_bias": True}, tensors=half
    )
    assert "are missing" in refused(
        main, source, tmp_path / "p.gguf", "--target", target, "--dialect", "ik"
    )


def test_gemma_target_scales_borrowed_embeddings(tmp_path: Path, target: Path) -> None:
    """A Gemma target's embeddings are used times sqrt(hidden); a scale of the draft's own wins; the cap is kept."""
    gemma = edited(target, tmp_path / "gemma.gguf", general__architecture=f.text("gemma4"), **{
        k.replace("qwen3.", "gemma4.").replace(".", "__"): v for k, v in tiny.target_fields().items() if k.startswith("qwen3.")})  # fmt: skip
    config = tiny.draft_config()
    config["dflash_config"] |= {"final_logit_softcapping": 30.0}
    one = read_draft(
        convert(
            tiny.write_draft(tmp_path / "a", config=config), tmp_path / "a.gguf", "--target", gemma
        )
    ).spec
    config["dflash_config"] |= {"input_embedding_scale": 2.0, "output_multiplier": 0.5}
    two = read_draft(
        convert(
            tiny.write_draft(tmp_path / "b", config=config), tmp_path / "b.gguf", "--target", gemma
        )
    ).spec

    assert (8.0, 30.0, 1.0) == (one.embedding_scale, one.final_logit_softcapping, one.logit_scale)
    assert (2.0, 30.0, 0.5) == (two.embedding_scale, two.final_logit_softcapping, two.logit_scale)


def test_interleaved_rotation_is_rearranged(tmp_path: Path, target: Path) -> None:
    """rope_is_neox_style false: within each head the even rows come first, then the odd; nothing else moves (bugs 10)."""
    tensors = tiny.draft_tensors()
    source = tiny.write_draft(
        tmp_path / "d", config=tiny.draft_config() | {"rope_is_neox_style": False}
    )
    found = values_of(convert(source, tmp_path / "o.gguf", "--target", target))
    order = np.r_[0 : tiny.HEAD_DIM : 2, 1 : tiny.HEAD_DIM : 2]
    q = tensors["layers.1.self_attn.q_proj.weight"][1].reshape(tiny.HEADS, tiny.HEAD_DIM, tiny.H)[
        :, order
    ]
    norm = tensors["layers.1.self_attn.k_norm.weight"][1][order]

    assert q.tobytes() == found["blk.1.attn_q.weight"]
    assert (norm.astype(np.uint32) << 16).tobytes() == found["blk.1.attn_k_norm.weight"]
    assert tensors["layers.1.self_attn.v_proj.weight"][1].tobytes() == found["blk.1.attn_v.weight"]


def reduced(last: int = 2) -> tuple[dict[str, Any], Tensors]:
    """A reduced vocabulary, counted from each row; `last` is the last row's offset."""
    offsets = np.arange(REDUCED, dtype=np.int64) * 2
    offsets[-1] = last
    return speculators("dflash", draft_vocab_size=REDUCED), tiny.draft_tensors() | {
        "d2t": ("I64", offsets), "embed_tokens.weight": random(5, tiny.VOCAB, tiny.H), "lm_head.weight": random(6, REDUCED, tiny.H),
    }  # fmt: skip


def interleaved() -> tuple[dict[str, Any], Tensors]:
    """Heads whose rotated pairs are neighbours."""
    return tiny.draft_config() | {"rope_is_neox_style": False}, tiny.draft_tensors()


@pytest.mark.parametrize("more", [[], ["--tensor-type", "blk.*=keep"]], ids=["quantised", "kept"])
@pytest.mark.parametrize("layout", [reduced, interleaved])
def test_one_pass_makes_every_change_that_the_converter_makes(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, layout: Any, more: list[str]
) -> None:
    """d2t and interleaved heads: a checkpoint quantised at once equals the two commands, also where chunks are small."""
    monkeypatch.setattr(stream, "CHUNK_BYTES", 20 * 2 * tiny.H)  # 20 rows; a head has 16
    config, tensors = layout()
    source = tiny.write_draft(tmp_path / "d", config=config, tensors=tensors)
    plain = convert(source, tmp_path / "plain.gguf", "--target", target)
    for start, name, goal in ((plain, "two", ()), (source, "one", ("--target", target))):
        arguments = (start, tmp_path / f"{name}.gguf", "--scheme", "q8_0", *more, *goal)
        result = CliRunner().invoke(quantize_main, [str(a) for a in arguments])
        assert 0 == result.exit_code, result.output

    assert (tmp_path / "two.gguf").read_bytes() == (tmp_path / "one.gguf").read_bytes()


def test_one_pass_refuses_token_ids_outside_the_vocabulary(tmp_path: Path, target: Path) -> None:
    """The quantiser checks d2t as the converter does: exit 3, the tensor named."""
    config, tensors = reduced(last=tiny.VOCAB)
    source = tiny.write_draft(tmp_path / "d", config=config, tensors=tensors)

    assert "d2t" in refused(
        quantize_main, source, tmp_path / "o.gguf", "--scheme", "q8_0", "--target", target
    )


REFUSED: list[tuple[str, str, dict[str, Any], Tensors]] = [
    ("Domino that does not say how it predicts", "config does not say sample_from_anchor", tiny.draft_config(), DOMINO),
    ("Domino announced", "announces a Domino head", domino(), V1),
    ("Domino of another width", "contradicts the tensors", domino(emb_dim=RANK + 1, dflash_config=domino()["dflash_config"] | {"emb_dim": RANK + 1}), DOMINO),
    ("half a Domino head", "are missing", domino(), {k: v for k, v in DOMINO.items() if "embed_proj.2" not in k}),
    ("gated Markov head announced", "contradicts the tensors", flat(markov_head_type="gated"), DSPARK),
    ("Markov head of a kind to come", "contradicts the tensors", flat(markov_head_type="fir"), DSPARK),
    ("Gemma 4 DSpark without v_proj", "a Gemma 4 decoder is not converted", flat(architectures=["Gemma4DSparkModel"], attention_k_eq_v=True), {
        k: v for k, v in DSPARK.items() if "v_proj" not in k} | {"layers.0.post_feedforward_layernorm.weight": random(1, tiny.H)}),
    ("confidence head announced", "that the tensors lack", flat(enable_confidence_head=True), V1),
    ("gated q_proj", "shape contradicts", tiny.draft_config(), V1 | {"layers.0.self_attn.q_proj.weight": random(1, 128, tiny.H)}),
    ("mask_hidden", "do not belong", speculators("dflash"), V1 | {"mask_hidden": random(1, tiny.H)}),
    ("DeepSeek V4 stages", "", {"architectures": ["DeepseekV4DSparkModel"]}, {"mtp.0.main_proj.weight": random(1, 4, 4)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "config", "tensors"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_no_file_can_carry_is_refused_by_name(
    tmp_path: Path, target: Path, what: str, config: Any, tensors: Tensors
) -> None:
    """Exactly why not, and nothing on the disk."""
    source = tiny.write_draft(tmp_path / "d", config=config, tensors=tensors)
    assert what in refused(main, source, tmp_path / "o.gguf", "--target", target)


def test_odd_shard_names_are_found_by_the_index(tmp_path: Path, target: Path) -> None:
    """MiMo's dflash_draft_model-*.safetensors with an index of its own."""
    folder = tiny.write_draft(tmp_path / "d", shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    (folder / "model.safetensors.index.json").unlink()
    for name in set(index["weight_map"].values()):
        (folder / name).rename(folder / name.replace("model-", "dflash_draft_model-"))
    index["weight_map"] = {
        k: v.replace("model-", "dflash_draft_model-") for k, v in index["weight_map"].items()
    }
    (folder / "dflash_draft_model.safetensors.index.json").write_text(json.dumps(index))
    whole = convert(tiny.write_draft(tmp_path / "e"), tmp_path / "e.gguf", "--target", target)

    assert (
        whole.read_bytes() == convert(folder, tmp_path / "d.gguf", "--target", target).read_bytes()
    )


def test_llama_cpp_speculates_with_a_canonical_dspark_draft(tmp_path: Path) -> None:
    """Its loader takes every key and tensor, it drafts, has drafts accepted, and starts with the target's own text."""
    config, tensors, sizes = pair_draft()
    config["architectures"] = ["DSparkDraftModel"]
    tensors |= markov("markov_head.", "confidence_head.proj", **sizes)
    goal = PAIR_TARGET
    draft = convert(
        tiny.write_draft(tmp_path / "d", config=config, tensors=tensors),
        tmp_path / "o.gguf",
        "--target",
        goal,
    )
    with LlamaServer(goal, threads=1) as server:
        alone = server.complete("count: 1 2 3 4", 24)
    with LlamaServer(goal, draft, threads=1, kind="DSPARK") as server:
        drafted = server.complete("count: 1 2 3 4", 24)

    assert alone.tokens[:8] == drafted.tokens[:8]
    assert drafted.drafted > 0
    assert drafted.accepted > 0
