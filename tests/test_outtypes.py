"""`--outtype`: what each type of matrices keeps, loses, counts and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import drafts
import numpy as np
import pytest
import tiny
from click.testing import CliRunner, Result
from dflash_gguf.convert import transfer
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.ggml import BY_NAME, type_name
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.quantize.cli import main as quantize_main


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target as a GGUF."""
    return tiny.write_target_gguf(tmp_path_factory.mktemp("target") / "target.gguf")


def run(*arguments: Any) -> Result:
    """dflash-convert with these arguments."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def convert(source: Path, output: Path, target: Path, *more: Any) -> Path:
    """A conversion that must succeed."""
    result = run(source, output, "--target", target, *more)

    assert 0 == result.exit_code, result.output
    return output


def tensor_bytes(path: Path) -> dict[str, bytes]:
    """Name to type and bytes of every tensor of a GGUF."""
    raw = path.read_bytes()
    return {
        t.name: type_name(t.type).encode() + raw[t.offset : t.offset + t.nbytes]
        for t in read_gguf(path).tensors.values()
    }


def test_f32_and_bf16_outtypes_are_exact(tmp_path: Path, target: Path) -> None:
    """BF16 widened to F32 and narrowed again gives the first file back."""
    first = convert(tiny.write_draft(tmp_path / "d"), tmp_path / "a.gguf", target)
    wide = convert(tmp_path / "d", tmp_path / "b.gguf", target, "--outtype", "f32")
    back = convert(wide, tmp_path / "c.gguf", target, "--outtype", "bf16")

    assert 0 == read_gguf(wide).kv["general.file_type"]
    assert first.read_bytes() == back.read_bytes()


def test_f16_is_written_where_every_value_fits(tmp_path: Path, target: Path) -> None:
    """F16 holds the tiny draft's weights to within half a unit in the last place."""
    out = convert(tiny.write_draft(tmp_path / "d"), tmp_path / "o.gguf", target, "--outtype", "f16")
    bits = tiny.draft_tensors()["fc.weight"][1]
    exact = (bits.astype(np.uint32) << 16).view(np.float32)

    assert exact.astype(np.float16).tobytes() == tensor_bytes(out)["fc.weight"].removeprefix(b"F16")


def test_f16_that_would_overflow_is_refused_with_a_count(tmp_path: Path, target: Path) -> None:
    """Never an infinity: two values beyond F16 are counted and the output does not appear; BF16 keeps them."""
    source = tiny.draft_with(tmp_path / "d", "fc.weight", [1e5, -1e5, 6e4, 1e-42])
    result = run(source, tmp_path / "o.gguf", "--target", target, "--outtype", "f16")

    assert 3 == result.exit_code
    assert "2 values do not fit F16" in result.output
    assert ["d"] == [p.name for p in tmp_path.iterdir()]
    convert(source, tmp_path / "o.gguf", target)


def test_f16_says_what_became_zero_and_what_lost_digits(tmp_path: Path, target: Path) -> None:
    """Two values below half of the smallest F16 become zero, one subnormal loses digits, one keeps them: told by tensor."""
    values = [1e-9, -1e-8, 2.0**-24 * 1.25, 2.0**-20, 0.0]
    source = tiny.draft_with(tmp_path / "d", "layers.0.mlp.up_proj.weight", values)
    result = run(source, tmp_path / "o.gguf", "--target", target, "--outtype", "f16", "--json")
    manifest = json.loads((tmp_path / "o.manifest.json").read_text())
    rows = {t["name"]: t for t in manifest["tensors"]}

    own = rows["blk.0.ffn_up.weight"]
    assert 2 == own["flushed_to_zero"]
    assert 1 <= own["rough_subnormals"]  # the tiny draft's own small weights may add some
    plain = tiny.draft_tensors()["layers.0.mlp.up_proj.weight"][1].reshape(-1)[len(values) :]
    exact = (plain.astype(np.uint32) << 16).view(np.float32)
    rounded = exact.astype(np.float16).astype(np.float32)
    rough = (rounded != exact) & (abs(rounded) < 2.0**-14) & (rounded != 0)
    assert 1 + int(rough.sum()) == own["rough_subnormals"]
    assert "became zero" in result.stderr
    (note,) = json.loads(result.stdout)["outcome"]["notes"]
    assert f"note: {note}" == result.stderr.strip()
    assert {"F32"} == {t["type"] for t in rows.values() if "_norm" in t["name"]}


def test_types_that_lose_nothing_say_nothing(tmp_path: Path, target: Path) -> None:
    """BF16 to F32 has no losses to tell."""
    result = run(
        tiny.write_draft(tmp_path / "d"),
        tmp_path / "o.gguf",
        "--target",
        target,
        "--outtype",
        "f32",
    )

    assert ("", 0) == (result.stderr, result.exit_code)
    assert "flushed" not in (tmp_path / "o.manifest.json").read_text()


SOURCES = ["v1", "v2", "gguf", "interleaved", "f32"]


def write_source(folder: Path, kind: str) -> Path:
    """A draft whose matrices reach Q8_0 by different ways."""
    if kind == "gguf":
        return drafts.write_draft(folder / "in.gguf")
    if kind == "interleaved":
        config = tiny.draft_config() | {"rope_is_neox_style": False}
        return tiny.write_draft(folder / "d", config=config)
    if kind == "f32":
        wide = {
            name: ("F32", (bits.astype(np.uint32) << 16).view(np.float32) * np.float32(1.001))
            for name, (_, bits) in tiny.draft_tensors().items()
        }
        return tiny.write_draft(folder / "d", tensors=wide)
    return tiny.write_draft(folder / "d", kind == "v2")


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("chunk", [1 << 20, 1000])
def test_q8_0_is_what_quantising_the_converted_file_gives(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, kind: str, chunk: int
) -> None:
    """Tensor by tensor the same type and bytes as dflash-quantize --scheme q8_0, whatever the source and the chunks."""
    source = write_source(tmp_path, kind)
    goal = [] if kind == "gguf" else ["--target", target]
    monkeypatch.setattr(transfer, "CHUNK", chunk)
    direct, plain, after = (tmp_path / f"{n}.gguf" for n in ("direct", "plain", "after"))
    result = run(source, direct, *goal, "--outtype", "q8_0")
    assert 0 == result.exit_code, result.output
    assert 0 == run(source, plain, *goal).exit_code
    arguments = [str(plain), str(after), "--scheme", "q8_0"]
    assert 0 == CliRunner().invoke(quantize_main, arguments).exit_code

    assert tensor_bytes(after) == tensor_bytes(direct)
    ours, theirs = read_gguf(direct).kv, read_gguf(after).kv
    assert {k: str(v) for k, v in theirs.items()} == {k: str(v) for k, v in ours.items()}
    assert 7 == ours["general.file_type"]
    assert BY_NAME["Q8_0"].id == read_gguf(direct).tensors["fc.weight"].type


def test_q8_0_names_the_rows_that_it_cannot_hold(tmp_path: Path, target: Path) -> None:
    """Selector rows of 8 become F16, as llama-quantize does; plan, note and manifest say which."""
    source = tiny.write_draft(tmp_path / "d", v2=True)
    arguments = [source, tmp_path / "o.gguf", "--target", target, "--outtype", "q8_0"]
    plan = json.loads(run(*arguments, "--dry-run", "--json").stdout)["plan"]
    result = run(*arguments)
    manifest = json.loads((tmp_path / "o.manifest.json").read_text())

    names = ["selector_predecessor.weight", "selector_successor.weight"]
    for rows in (plan["tensors"], manifest["tensors"]):
        odd = [(t["name"], t["type"], t["instead_of"]) for t in rows if "instead_of" in t]
        assert [(name, "F16", "Q8_0") for name in names] == sorted(odd)
    assert (
        f"2 tensors have rows that Q8_0 blocks do not divide and become F16: {', '.join(names)}"
        in result.stderr
    )


def test_q8_0_refuses_what_no_scale_can_hold(tmp_path: Path, target: Path) -> None:
    """A weight beyond 127 times the largest binary16 has no scale: refused by its block, and nothing appears."""
    tensors = tiny.draft_tensors()
    wide = (tensors["fc.weight"][1].astype(np.uint32) << 16).view(np.float32)
    wide[3, 70] = 1e7
    tensors["fc.weight"] = ("BF16", tiny.bf16(wide))
    source = tiny.write_draft(tmp_path / "d", tensors=tensors)
    result = run(source, tmp_path / "o.gguf", "--target", target, "--outtype", "q8_0")

    assert (3, True) == (result.exit_code, "fc.weight[3, 64]" in result.output), result.output
    assert ["d"] == [p.name for p in tmp_path.iterdir()]


def test_q8_0_of_a_quantised_source_is_refused_unless_it_is_that_already(
    tmp_path: Path, target: Path
) -> None:
    """Q4_0 is not requantised by the converter; Q8_0 is copied."""
    source = drafts.write_draft(tmp_path / "in.gguf")
    files = {}
    for scheme in ("q8_0", "q4-mix"):
        files[scheme] = tmp_path / f"{scheme}.gguf"
        arguments = [str(source), str(files[scheme]), "--scheme", scheme]
        assert 0 == CliRunner().invoke(quantize_main, arguments).exit_code

    refused = run(files["q4-mix"], tmp_path / "a.gguf", "--outtype", "q8_0")
    assert (2, True) == (refused.exit_code, "another type" in refused.output), refused.output
    assert 0 == run(files["q8_0"], tmp_path / "b.gguf", "--outtype", "q8_0").exit_code
    assert tensor_bytes(files["q8_0"]) == tensor_bytes(tmp_path / "b.gguf")
