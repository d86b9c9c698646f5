"""The heads on top of a draft: Domino, gated and recurrent Markov heads; what carries them, and what refuses them by name."""

from __future__ import annotations

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
from dflash_gguf.convert.runtimes import verdicts
from dflash_gguf.convert.spec import Domino
from dflash_gguf.quantize.cli import main as quantize_main
from heads import (
    DOMINO_FIELDS,
    GRU,
    MARKOV_KINDS,
    PAIR_TARGET,
    RANK,
    Tensors,
    convert,
    domino,
    domino_tensors,
    flat,
    lucebox_domino,
    markov,
    markov_kinds,
    pair_draft,
    random,
    values_of,
)
from hostile import edited, refused
from llama_client import LlamaCrashed, LlamaServer

V1 = tiny.draft_tensors()
DOMINO = V1 | domino_tensors()
DSPARK = V1 | markov("markov_head.", "confidence_head.proj")
LUCEBOX_NAMES = (
    "start", "gru.weight_ih", "gru.weight_hh", "gru.bias_ih", "gru.bias_hh", "head.w1", "head.b1", "head.w2", "head.b2",
)  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target as a GGUF."""
    return tiny.write_target_gguf(tmp_path_factory.mktemp("target") / "target.gguf")


def checkpoint(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    """A checkpoint of one file."""
    return tiny.write_draft(folder, config=config, tensors=tensors)


def anchored(**more: Any) -> dict[str, Any]:
    """Domino as Lucebox runs it: row 0 is the anchor, every row behind it is corrected."""
    plain = tiny.draft_config()["dflash_config"]
    return domino(dflash_config=plain | DOMINO_FIELDS | {"shift_label": False, "pure_draft_prefix_len": 0}) | more  # fmt: skip


def test_domino_file_has_its_head_and_says_how_it_predicts(tmp_path: Path, target: Path) -> None:
    """Matrices are copied, biases and the start state that the checkpoint lacks are zeros in F32, and the keys say the rest."""
    out = convert(checkpoint(tmp_path / "d", domino(), DOMINO), tmp_path / "o.gguf", "--target", target)  # fmt: skip
    file, found, spec = read_gguf(out), values_of(out), read_draft(out).spec

    assert ("domino", Domino(GRU, RANK, 1), True) == (
        spec.variant,
        spec.domino,
        spec.sample_from_anchor,
    )
    assert "Domino" == file.kv["general.finetune"]
    said = CliRunner().invoke(
        main, [str(out), str(tmp_path / "p.gguf"), "--target", str(target), "--dry-run"]
    )
    assert "note: llama.cpp has no Domino head and does not load this file" in said.output
    for name, source in (("gru_ih", "prefix_gru.weight_ih_l0"), ("gru_hh", "prefix_gru.weight_hh_l0"), ("w1", "embed_proj.0.weight"), ("w2", "embed_proj.2.weight")):  # fmt: skip
        assert DOMINO[source][1].tobytes() == found[f"domino_{name}.weight"]
    for name, size in (("start", GRU), ("gru_ih.bias", 3 * GRU), ("gru_hh.bias", 3 * GRU), ("w1.bias", RANK), ("w2.bias", tiny.VOCAB)):  # fmt: skip
        assert (F32, bytes(4 * size)) == (
            file.tensors[f"domino_{name}"].type,
            found[f"domino_{name}"],
        )


def test_lucebox_gets_all_that_its_loader_asks_of_a_domino_head(tmp_path: Path, target: Path) -> None:  # fmt: skip
    """Nine tensors in its shapes and four numbers; incomplete heads are refused by it (draft_gguf_loader.cpp)."""
    source = checkpoint(tmp_path / "d", anchored(), DOMINO)
    file = read_gguf(convert(source, tmp_path / "o.gguf", "--target", target, "--dialect", "lucebox"))  # fmt: skip
    h, g, e, v = tiny.H, GRU, RANK, tiny.VOCAB
    shapes = [(g,), (h, 3 * g), (g, 3 * g), (3 * g,), (3 * g,), (h + g, e), (e,), (e, v), (v,)]

    assert dict(zip(LUCEBOX_NAMES, shapes, strict=True)) == {
        n: file.tensors[f"dflash.domino.{n}"].shape for n in LUCEBOX_NAMES
    }
    keys = {"enabled": 1, "gru_hidden_dim": g, "emb_dim": e, "vocab_size": v}
    for key, value in keys.items():
        field = file.fields[f"dflash-draft.dflash.domino.{key}"]
        assert (f.U32, value) == (field.type, field.value)


def test_lucebox_gets_all_that_its_loader_asks_of_a_dspark_head(tmp_path: Path, target: Path) -> None:  # fmt: skip
    """The tables and the confidence head, whose missing bias is zero, with the numbers that describe them."""
    tensors = {k: v for k, v in DSPARK.items() if k != "confidence_head.proj.bias"}
    file = read_gguf(convert(checkpoint(tmp_path / "d", flat(), tensors), tmp_path / "o.gguf", "--target", target, "--dialect", "lucebox"))  # fmt: skip
    keys = {"enabled": 1, "markov_rank": RANK, "vocab_size": tiny.VOCAB, "confidence_dim": tiny.H + RANK, "confidence.enabled": 1}  # fmt: skip

    assert keys == {k: file.kv[f"dflash-draft.dflash.dspark.{k}"] for k in keys}
    assert {"dflash.dspark.markov.w1", "dflash.dspark.markov.w2", "dflash.dspark.confidence.weight", "dflash.dspark.confidence.bias"} <= set(file.tensors)  # fmt: skip


def test_lucebox_is_refused_a_head_that_its_runtime_would_shift(tmp_path: Path, target: Path) -> None:  # fmt: skip
    """A Domino draft that predicts from row 0, or leaves a prefix uncorrected: refused with both values, not converted into noise."""
    message = refused(main, checkpoint(tmp_path / "d", domino(), DOMINO), tmp_path / "o.gguf", "--target", target, "--dialect", "lucebox")  # fmt: skip
    assert "sample_from_anchor true, pure_draft_prefix_len 1" in message
    assert "--dialect canonical" in message


def test_ik_refuses_a_domino_head_by_its_tensors(tmp_path: Path, target: Path) -> None:
    """No loader of that family reads one; the dialects that carry it are named."""
    message = refused(main, checkpoint(tmp_path / "d", domino(), DOMINO), tmp_path / "o.gguf", "--target", target, "--dialect", "ik")  # fmt: skip
    assert "embed_proj.0.weight" in message
    assert "--dialect canonical or lucebox" in message


@pytest.mark.parametrize(
    ("config", "tensors"),
    [(anchored(), DOMINO), (tiny.draft_config(), V1 | lucebox_domino()), (flat(), DSPARK)],
    ids=["Domino without biases", "Lucebox's Domino", "DSpark"],
)
def test_lucebox_and_back_gives_the_canonical_bytes(
    tmp_path: Path, target: Path, config: dict[str, Any], tensors: Tensors
) -> None:
    """canonical -> lucebox -> canonical is the identity, biases and start state with it."""
    first = convert(checkpoint(tmp_path / "d", config, tensors), tmp_path / "a.gguf", "--target", target)  # fmt: skip
    other = convert(first, tmp_path / "b.gguf", "--target", target, "--dialect", "lucebox")
    back = convert(other, tmp_path / "c.gguf", "--target", target)

    assert first.read_bytes() == back.read_bytes()


def test_lucebox_file_without_our_keys_means_what_its_runtime_does(tmp_path: Path, target: Path) -> None:  # fmt: skip
    """A file that Lucebox's own converter wrote says nothing of rows and prefixes: row 0 is the anchor, nothing is left uncorrected."""
    source = checkpoint(tmp_path / "d", tiny.draft_config(), V1 | lucebox_domino())
    first = convert(source, tmp_path / "a.gguf", "--target", target)
    ours = convert(first, tmp_path / "b.gguf", "--target", target, "--dialect", "lucebox")
    a = "dflash-draft.dflash."
    theirs = edited(ours, tmp_path / "c.gguf", (f"{a}sample_from_anchor", f"{a}domino.pure_draft_prefix_len", f"{a}variant", f"{a}format_version"))  # fmt: skip

    assert (
        first.read_bytes() == convert(theirs, tmp_path / "e.gguf", "--target", target).read_bytes()
    )


@pytest.mark.parametrize("key", ["sample_from_anchor", "domino.pure_draft_prefix_len"])
def test_canonical_domino_file_must_say_how_it_predicts(tmp_path: Path, target: Path, key: str) -> None:  # fmt: skip
    """No default for a key that moves every prediction by a row."""
    good = convert(checkpoint(tmp_path / "d", domino(), DOMINO), tmp_path / "a.gguf", "--target", target)  # fmt: skip
    broken = edited(good, tmp_path / "b.gguf", (f"dflash.{key}",))
    assert f"does not say its {key}" in refused(
        main, broken, tmp_path / "c.gguf", "--target", target
    )


@pytest.mark.parametrize("kind", MARKOV_KINDS)
def test_markov_heads_of_every_kind_are_carried_by_the_canonical_file(tmp_path: Path, target: Path, kind: str) -> None:  # fmt: skip
    """The kind goes by the tensors, the config may be silent; the file says it, and reading it back changes nothing."""
    tensors = DSPARK | MARKOV_KINDS[kind]
    out = convert(checkpoint(tmp_path / "d", flat(), tensors), tmp_path / "a.gguf", "--target", target)  # fmt: skip
    said = convert(checkpoint(tmp_path / "e", flat(markov_head_type=kind), tensors), tmp_path / "b.gguf", "--target", target)  # fmt: skip
    name = {"gated": "gate", "rnn": "joint"}[kind]

    assert kind == read_gguf(out).kv["dflash.markov_head_type"]
    assert tensors[f"markov_head.{name}_proj.weight"][1].tobytes() == values_of(out)[f"markov_{name}.weight"]  # fmt: skip
    assert out.read_bytes() == said.read_bytes()
    assert out.read_bytes() == convert(out, tmp_path / "c.gguf", "--target", target).read_bytes()


@pytest.mark.parametrize("dialect", ["lucebox", "ik"])
@pytest.mark.parametrize("kind", MARKOV_KINDS)
def test_other_dialects_refuse_such_markov_heads_by_tensor(tmp_path: Path, target: Path, kind: str, dialect: str) -> None:  # fmt: skip
    """Their loaders would take the tables alone and run another head without a word."""
    source = checkpoint(tmp_path / "d", flat(), DSPARK | MARKOV_KINDS[kind])
    message = refused(main, source, tmp_path / "o.gguf", "--target", target, "--dialect", dialect)

    assert f"markov_head.{'gate' if kind == 'gated' else 'joint'}_proj.weight" in message
    assert "--dialect canonical" in message


def loads(path: Path) -> dict[str, bool | None]:
    """Runtime to whether it loads a file, as dflash-inspect says."""
    return {v.runtime: v.loads for v in verdicts(read_draft(path))}


def test_inspect_knows_who_loads_a_head(tmp_path: Path, target: Path) -> None:
    """A Domino head that predicts as Lucebox does is Lucebox's, any other nobody's; a gated head is nobody's."""
    plain = checkpoint(tmp_path / "a", anchored(), DOMINO)
    theirs = convert(plain, tmp_path / "a.gguf", "--target", target, "--dialect", "lucebox")
    key = "dflash-draft.dflash.sample_from_anchor"
    shifted = edited(theirs, tmp_path / "b.gguf", **{key.replace(".", "__"): f.boolean(True)})
    gated = checkpoint(tmp_path / "c", flat(), DSPARK | MARKOV_KINDS["gated"])
    nobody = convert(gated, tmp_path / "c.gguf", "--target", target)

    assert (True, False) == (loads(theirs)["Lucebox"], loads(theirs)["llama.cpp"])
    assert loads(shifted)["Lucebox"] is False
    assert not any(loads(nobody).values())


def test_half_a_gate_is_refused(tmp_path: Path, target: Path) -> None:
    """A gate without its bias is named."""
    tensors = DSPARK | {"markov_head.gate_proj.weight": random(5, RANK, tiny.H + RANK)}
    assert "gate_proj.bias" in refused(main, checkpoint(tmp_path / "d", flat(), tensors), tmp_path / "o.gguf", "--target", target)  # fmt: skip


@pytest.mark.parametrize("config_and_tensors", [(domino(), DOMINO), (flat(), DSPARK | MARKOV_KINDS["gated"])], ids=["domino", "gated"])  # fmt: skip
def test_heads_are_quantised_from_a_checkpoint_in_one_pass(
    tmp_path: Path, target: Path, config_and_tensors: tuple[dict[str, Any], Tensors]
) -> None:
    """The same bytes as converting first; zeros that stand for absent biases included."""
    source = checkpoint(tmp_path / "d", *config_and_tensors)
    plain = convert(source, tmp_path / "plain.gguf", "--target", target)
    for start, name, goal in ((plain, "two", ()), (source, "one", ("--target", target))):
        result = CliRunner().invoke(quantize_main, [str(a) for a in (start, tmp_path / f"{name}.gguf", "--scheme", "q8_0", *goal)])  # fmt: skip
        assert 0 == result.exit_code, result.output

    assert (tmp_path / "two.gguf").read_bytes() == (tmp_path / "one.gguf").read_bytes()


def test_confidence_head_without_a_bias_gets_zero(tmp_path: Path, target: Path) -> None:
    """The bias that a confidence head lacks is zero in the canonical file."""
    tensors = {k: v for k, v in DSPARK.items() if k != "confidence_head.proj.bias"}
    out = convert(checkpoint(tmp_path / "d", flat(), tensors), tmp_path / "o.gguf", "--target", target)  # fmt: skip

    np.testing.assert_array_equal(np.zeros(1, np.float32), np.frombuffer(values_of(out)["conf_proj.bias"], np.float32))  # fmt: skip


@pytest.mark.parametrize("kind", ["gated", "rnn", "domino"])
def test_llama_cpp_refuses_a_head_that_it_does_not_know(tmp_path: Path, kind: str) -> None:
    """It counts the tensors: such a file is refused when it is loaded, never run as a draft with another head."""
    config, tensors, sizes = pair_draft()
    if kind == "domino":
        config["dflash_config"] |= DOMINO_FIELDS
        tensors |= domino_tensors(**sizes)
    else:
        tensors |= markov("markov_head.", "confidence_head.proj", **sizes)
        tensors |= markov_kinds(sizes["hidden"])[kind]
    source = checkpoint(tmp_path / "d", config, tensors)
    draft = convert(source, tmp_path / "o.gguf", "--target", PAIR_TARGET)

    with pytest.raises(LlamaCrashed, match="wrong number of tensors"):
        LlamaServer(PAIR_TARGET, draft, threads=1, kind="DFLASH" if kind == "domino" else "DSPARK")
