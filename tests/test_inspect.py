"""dflash-inspect: what it is, what is wrong, what mends it, who loads it; and the drafts that are known by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from click.testing import CliRunner, Result
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.errors import UsageError
from dflash_gguf.convert.gguf_dialects import causality
from dflash_gguf.convert.inspect_cli import main as inspect_main
from dflash_gguf.convert.published import Published, by_name, published, recognise
from dflash_gguf.convert.spec import Conv, DraftSpec, Selector
from hostile import edited


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny v2 draft in every dialect, and its target."""
    folder = tmp_path_factory.mktemp("files")
    found = {"target": tiny.write_target_gguf(folder / "target.gguf")}
    for v2 in (False, True):
        draft = tiny.write_draft(folder / f"d{v2}", v2)
        for dialect in ("canonical", "lucebox", "ik"):
            name = f"{dialect}{2 if v2 else 1}"
            found[name] = folder / f"{name}.gguf"
            arguments = [
                str(draft),
                str(found[name]),
                "--target",
                str(found["target"]),
                "--dialect",
                dialect,
            ]
            assert 0 == CliRunner().invoke(main, arguments).exit_code
    return found


def inspect(*arguments: Any) -> Result:
    """dflash-inspect with these arguments."""
    return CliRunner().invoke(inspect_main, [str(a) for a in arguments])


def report(*arguments: Any) -> dict[str, Any]:
    """Its JSON."""
    body: dict[str, Any] = json.loads(inspect(*arguments, "--json").stdout)["inspection"]
    return body


def loads(path: Path) -> dict[str, Any]:
    """Runtime to whether it loads the file."""
    return {v["runtime"]: v["loads"] for v in report(path)["runtimes"]}


def test_each_dialect_is_loaded_by_its_own_runtime(files: dict[str, Path]) -> None:
    """The verdicts differ by the file alone; what was never seen is said to be unknown."""
    assert {
        "llama.cpp": True,
        "Lucebox": False,
        "ik_llama.cpp": False,
        "dflash-validate": True,
    } == loads(files["canonical1"])
    assert {
        "llama.cpp": False,
        "Lucebox": True,
        "ik_llama.cpp": False,
        "dflash-validate": True,
    } == loads(files["lucebox1"])
    assert {
        "llama.cpp": False,
        "Lucebox": False,
        "ik_llama.cpp": True,
        "dflash-validate": True,
    } == loads(files["ik1"])
    assert {
        "llama.cpp": True,
        "Lucebox": False,
        "ik_llama.cpp": False,
        "dflash-validate": True,
    } == loads(files["canonical2"])
    assert (None, None) == (
        loads(files["lucebox2"])["Lucebox"],
        loads(files["ik2"])["ik_llama.cpp"],
    )


LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("target_layers is missing", {"drop": ("dflash.target_layers",)}),
    ("mask_token_id is missing", {"drop": ("tokenizer.ggml.mask_token_id",)}),
    ("tokens is missing", {"drop": ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")}),
    (
        "last layer is captured",
        {"dflash__target_layer_ids": f.i32s([0, 3]), "dflash__target_layers": f.i32s([1, 4])},
    ),
    ("does not say so", {"dflash__attention__causal_pattern": f.booleans([True, True])}),
    ("tensor names", {"rename": {"fc.weight": "dflash_fc.weight"}}),
]


@pytest.mark.parametrize(("what", "fault"), LOSSES, ids=[x[0] for x in LOSSES])
def test_llama_cpp_is_told_why_not(
    tmp_path: Path, files: dict[str, Path], what: str, fault: dict[str, Any]
) -> None:
    """What its loader or its first draft would stumble over is named."""
    drop = fault.pop("drop", ())
    special = (
        tuple(k for k in tiny.target_fields() if k.endswith("_token_id"))
        if "tokenizer.ggml.tokens" in drop
        else ()
    )
    path = edited(files["canonical1"], tmp_path / "x.gguf", (*drop, *special), **fault)
    verdict = next(v for v in report(path)["runtimes"] if v["runtime"] == "llama.cpp")

    assert verdict["loads"] is False
    assert any(what in reason for reason in verdict["reasons"]), verdict


def test_mixed_causality_is_a_remark(files: dict[str, Path]) -> None:
    """llama.cpp loads a draft whose layers differ, and simplifies it: that is said."""
    assert "one flag" in inspect(files["canonical1"]).stdout


def test_every_missing_field_is_listed_with_the_command_that_mends_it(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    """Three losses at once are three defects, exit 3, and what had to be made up is not shown as a fact."""
    path = edited(
        files["canonical1"],
        tmp_path / "x.gguf",
        (
            "dflash.block_size",
            "dflash.mask_token_id",
            "tokenizer.ggml.mask_token_id",
            "dflash.rope.freq_base",
        ),
    )
    result, body = inspect(path), report(path)

    assert 3 == result.exit_code
    for option in ("--block-size", "--mask-token-id", "--rope-theta"):
        assert f"dflash-convert x.gguf mended.gguf --target TARGET {option} VALUE" in result.stdout
    assert 3 == len(body["defects"])
    assert (None, None, None) == tuple(
        body["spec"][k] for k in ("block_size", "mask_token_id", "rope_theta")
    )
    assert "mask token  " not in result.stdout


def test_reading_goes_on_behind_unknown_layer_ids(tmp_path: Path, files: dict[str, Path]) -> None:
    """Layer ids that nobody can know and a missing block size: both are listed, with their commands."""
    path = edited(
        files["canonical1"],
        tmp_path / "x.gguf",
        ("dflash.block_size", "dflash.target_layers", "dflash.target_layer_ids"),
    )
    found = {d["what"] for d in report(path)["defects"]}

    assert {"draft does not say its block_size", "draft does not say its target_layer_ids"} == found


def test_reading_ends_at_what_no_option_mends(tmp_path: Path, files: dict[str, Path]) -> None:
    """A missing block size and heads that do not divide: both are listed, and no draft is described."""
    path = edited(
        files["canonical1"],
        tmp_path / "x.gguf",
        ("dflash.block_size",),
        dflash__attention__head_count=f.u32(3),
    )
    body = report(path)

    assert 2 == len(body["defects"])
    assert "dialect" not in body
    assert 3 == inspect(path).exit_code


def test_json_of_an_unsound_draft_is_one_object(tmp_path: Path, files: dict[str, Path]) -> None:
    """stdout stays one object, with ok false and the exit code of the process."""
    path = edited(files["canonical1"], tmp_path / "x.gguf", ("dflash.block_size",))
    result = inspect(path, "--json")
    body = json.loads(result.stdout)

    assert (False, 3, 3) == (body["ok"], body["exit_code"], result.exit_code)


def spec_of(p: Published) -> DraftSpec:
    """A spec that is exactly the published draft, what is not known filled in."""
    known = dict(p.fields)
    layers = known["num_hidden_layers"]
    sliding = known.pop("sliding_layers", (False,) * layers)
    v2 = known["variant"] == "dflash2"
    filler = {
        "vocab_size": 300_000, "context_length": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "mask_token_id": 0,
        "rope_dimension_count": known["head_dim"], "target_hidden_size": known["hidden_size"], "sliding_window": 0,
    }  # fmt: skip
    return DraftSpec(
        **(filler | known), sliding_layers=sliding, causal_layers=causality(p.causal, sliding),
        conv=Conv(2, 16) if v2 else None, selector=Selector(256, 16) if v2 else None,
    )  # fmt: skip


@pytest.mark.parametrize("p", published(), ids=lambda p: p.name)
def test_published_draft_is_sound_and_recognised(p: Published) -> None:
    """Every row of the tables is a spec that passes the checks, and is recognised without a difference."""
    found = recognise(spec_of(p))

    assert found is not None
    assert [] == found[1]


def test_lost_window_of_a_published_draft_is_noticed_and_supplied() -> None:
    """Qwen3.6-27B without its window is still recognised, the loss is named, and the table can give it back."""
    p = by_name("z-lab/Qwen3.6-27B-DFlash")
    broken = replace(
        spec_of(p),
        sliding_window=0,
        sliding_layers=(False,) * 5,
        mask_token_id=9,
        causal_layers=(False,) * 5,
        rope_theta=1e6,
    )
    found = recognise(broken)

    assert found is not None
    assert any("mask_token_id is 9, published was 248070" in d for d in found[1])
    given = p.supplied()
    assert (2048, (True, True, True, True, False), 248070, "sliding") == tuple(
        given[k] for k in ("sliding_window", "sliding_layers", "mask_token_id", "causality")
    )


def test_names_of_published_drafts_are_found_with_and_without_the_owner() -> None:
    """`Qwen3.8-27B-DFlash2` is enough; an unknown name is a usage error that lists the known ones."""
    assert by_name("Qwen3.8-27B-DFlash2") is by_name("z-lab/Qwen3.8-27B-DFlash2")
    with pytest.raises(UsageError, match="no published draft"):
        by_name("x")


def test_unknown_geometry_is_not_recognised() -> None:
    """A draft of nobody's shape has no name."""
    assert recognise(tiny.tiny_spec()) is None
