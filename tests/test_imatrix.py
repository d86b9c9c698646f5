"""Importance matrices: both formats are read, weigh the search, and are refused when unsound; files can be attested."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import drafts
import numpy as np
import pytest
from click.testing import CliRunner, Result
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufOutput
from dflash_gguf.quantize import quantize_rows
from dflash_gguf.quantize.cli import main
from dflash_gguf.quantize.imatrix import Imatrix, merge, read_imatrix, write_imatrix
from dflash_gguf.quantize.qtypes import BY_ID

NAME = "blk.0.attn_q.weight"


def matrix(columns: int = 256, name: str = NAME, seed: int = 0, rows: float = 8) -> Imatrix:
    """One entry of random sums."""
    sums = np.random.default_rng(seed).exponential(3, (1, columns)).astype(np.float32)
    return Imatrix({name: sums}, {name: np.array([rows], np.float32)}, ("made up",), 2, 512)


def legacy(entries: dict[str, tuple[int, Any]], tail: bytes = b"") -> bytes:
    """The legacy format's bytes."""
    out = struct.pack("<i", len(entries))
    for name, (calls, values) in entries.items():
        raw = np.asarray(values, "<f4").tobytes()
        out += (
            struct.pack("<i", len(name))
            + name.encode()
            + struct.pack("<ii", calls, len(raw) // 4)
            + raw
        )
    return out + tail


def run(*arguments: Any) -> Result:
    """dflash-quantize with these arguments."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A canonical BF16 draft with hidden size 256."""
    return drafts.write_draft(tmp_path_factory.mktemp("draft") / "draft.gguf")


def test_a_written_matrix_is_read_back(tmp_path: Path) -> None:
    """Sums, counts, data sets and chunks survive; importance is the mean."""
    write_imatrix(tmp_path / "i.gguf", matrix())

    found = read_imatrix(tmp_path / "i.gguf")

    np.testing.assert_array_equal(matrix().sums[NAME], found.sums[NAME])
    np.testing.assert_array_equal(matrix().sums[NAME] / np.float32(8), found.importance()[NAME])
    assert (("made up",), 2, 512) == (found.datasets, found.chunk_count, found.chunk_size)


@pytest.mark.parametrize("tail", [b"", struct.pack("<i", 7), struct.pack("<ii", 7, 4) + b"text"])
def test_the_legacy_format_gives_values_over_calls(tmp_path: Path, tail: bytes) -> None:
    """With and without the two trailers that later versions wrote."""
    (tmp_path / "i.dat").write_bytes(legacy({NAME: (4, [1, 2, 8])}, tail))

    np.testing.assert_array_equal(
        [[0.25, 0.5, 2]], read_imatrix(tmp_path / "i.dat").importance()[NAME]
    )


def test_merging_adds_sums_and_counts() -> None:
    """Two halves give what one run over both would have given."""
    a, b = matrix(seed=1, rows=8), matrix(seed=2, rows=24)

    both = merge([a, b, matrix(name="fc.weight")])

    np.testing.assert_array_equal(
        (a.sums[NAME] + b.sums[NAME]) / np.float32(32), both.importance()[NAME]
    )
    assert {NAME, "fc.weight"} == set(both.sums)
    assert (("made up",), 6) == (both.datasets, both.chunk_count)
    with pytest.raises(InputError):
        merge([a, matrix(128)])


def test_importance_decides_the_bytes_and_is_named_in_the_manifest(
    tmp_path: Path, draft: Path
) -> None:
    """A tensor with an entry is weighted, another is not; the manifest has the file's name and hash."""
    write_imatrix(tmp_path / "i.gguf", matrix())
    result = run(
        draft, tmp_path / "q.gguf", "--scheme", "q2_k", "--imatrix", tmp_path / "i.gguf", "--json"
    )
    assert 0 == result.exit_code, result.output
    raw, file = (tmp_path / "q.gguf").read_bytes(), read_gguf(tmp_path / "q.gguf")
    source, origin = draft.read_bytes(), read_gguf(draft)

    for name, weights in ((NAME, matrix().importance()[NAME][0]), ("blk.0.attn_k.weight", None)):
        t, s = file.tensors[name], origin.tensors[name]
        bits = np.frombuffer(source[s.offset : s.offset + s.nbytes], np.uint16).reshape(-1, 256)
        assert (
            quantize_rows(bits, BY_ID[t.type].name, weights).tobytes()
            == raw[t.offset : t.offset + t.nbytes]
        )
    manifest = json.loads((tmp_path / "q.manifest.json").read_text())
    assert ("i.gguf", 1) == (
        manifest["options"]["imatrix"]["files"][0]["name"],
        manifest["options"]["imatrix"]["entries"],
    )
    assert [NAME] == [t["name"] for t in manifest["tensors"] if t.get("importance")]


def gguf_of(path: Path, tensors: dict[str, Any], kind: str = "imatrix") -> Path:
    """A GGUF of F32 tensors that claims to be an importance matrix."""
    arrays = {name: np.asarray(a, np.float32) for name, a in tensors.items()}
    table = [(name, 0, a.shape[::-1]) for name, a in arrays.items()]
    with GgufOutput(path, {"general.type": f.text(kind)}, table) as writer:
        for name, array in arrays.items():
            writer.write(name, array.tobytes())
    return path


GOOD = {"a.in_sum2": [[1.0, 2.0]], "a.counts": [[1.0]]}


@pytest.mark.parametrize(
    "tensors",
    [
        {"a.in_sum2": [[1.0]]}, {"a.counts": [[1.0]]}, {"a": [1.0]}, GOOD | {"b": [1.0]}, {"a.in_sum2": [[1.0], [2.0]], "a.counts": [[1.0]]},
        GOOD | {"a.counts": [[0.0]]}, GOOD | {"a.counts": [[-1.0]]}, GOOD | {"a.counts": [[np.nan]]}, GOOD | {"a.in_sum2": [[1.0, np.nan]]},
        GOOD | {"a.in_sum2": [[1.0, -1.0]]}, GOOD | {"a.in_sum2": [[np.inf, 1.0]]},
    ],
)  # fmt: skip
def test_an_unsound_gguf_matrix_is_refused(tmp_path: Path, tensors: dict[str, Any]) -> None:
    """Missing halves, strange tensors, counts of zero, negative and non-finite sums."""
    with pytest.raises(InputError):
        read_imatrix(gguf_of(tmp_path / "i.gguf", tensors))


def test_a_gguf_of_another_kind_is_refused(tmp_path: Path, draft: Path) -> None:
    """A model is no importance matrix."""
    for path in (draft, gguf_of(tmp_path / "i.gguf", GOOD, "model")):
        with pytest.raises(InputError):
            read_imatrix(path)


def test_a_legacy_file_is_refused_at_every_length(tmp_path: Path) -> None:
    """Cut anywhere, with bytes behind its end, or with numbers that cannot be: exit 3, no crash, no giant allocation."""
    good = legacy({NAME: (4, [1, 2, 8]), "fc.weight": (4, [1])})
    bad = [good[:n] for n in range(len(good))] + [
        good + b"x",
        good + struct.pack("<ii", 1, 1) + b"ab",
    ]
    bad += [struct.pack("<i", n) + good[4:] for n in (0, -1, 2**31 - 1)]
    bad += [
        legacy({NAME: (0, [1])}),
        legacy({NAME: (-1, [1])}),
        legacy({NAME: (1, [])}),
        legacy({NAME: (1, [np.nan])}),
    ]
    bad += [
        struct.pack("<ii", 1, 3) + b"abc" + struct.pack("<ii", 1, 2**31 - 1),
        legacy({"": (1, [1])}),
    ]
    for raw in bad:
        (tmp_path / "i.dat").write_bytes(raw)
        with pytest.raises(InputError):
            read_imatrix(tmp_path / "i.dat")


def test_a_matrix_of_another_model_is_refused(tmp_path: Path, draft: Path) -> None:
    """No common tensor, or another width: exit 3 and nothing written."""
    for name, entry in (("other", matrix(name="other.weight")), ("width", matrix(128))):
        write_imatrix(tmp_path / f"{name}.gguf", entry)
        result = run(
            draft, tmp_path / "q.gguf", "--scheme", "q2_k", "--imatrix", tmp_path / f"{name}.gguf"
        )
        assert 3 == result.exit_code, result.output
    assert not list(tmp_path.glob("*q.*"))


def test_a_mean_that_no_float_holds_is_refused_by_tensor(tmp_path: Path, draft: Path) -> None:
    """Finite sums over a tiny count, and sums that overflow when merged: exit 3, the tensor named, nothing written."""
    large = np.full((1, 256), 3e38, np.float32)
    for name, count in (("tiny", 1e-6), ("large", 1e3)):
        counts = {NAME: np.array([count], np.float32)}
        write_imatrix(tmp_path / f"{name}.gguf", Imatrix({NAME: large}, counts, ("x",), 1, 1))
    for files in (["tiny"], ["large", "large"]):
        options = [a for file in files for a in ("--imatrix", tmp_path / f"{file}.gguf")]
        result = run(draft, tmp_path / "q.gguf", "--scheme", "q2_k", *options)
        assert (3, True) == (result.exit_code, NAME in result.stderr), result.output
    assert not list(tmp_path.glob("*q.*"))


def test_a_quantised_file_is_attested_with_its_source_alone(tmp_path: Path, draft: Path) -> None:
    """--verify makes every tensor again, at any thread count, and says equal."""
    out = tmp_path / "q.gguf"
    assert 0 == run(draft, out, "--scheme", "q3-mix", "--tensor-type", "fc.weight=keep").exit_code

    result = run("--verify", out, "--source", draft, "--threads", 3, "--json")

    assert 0 == result.exit_code, result.output
    assert json.loads(result.stdout)["verdict"]["equal"]
    assert 0 == run("--verify", draft, "--source", draft).exit_code


def test_one_changed_byte_or_key_or_a_missing_imatrix_is_a_verdict_of_no(
    tmp_path: Path, draft: Path
) -> None:
    """Exit 4 names the tensor or key; a weighted file needs its importance matrix to be attested."""
    out = tmp_path / "q.gguf"
    write_imatrix(tmp_path / "i.gguf", matrix())
    assert 0 == run(draft, out, "--scheme", "q2_k", "--imatrix", tmp_path / "i.gguf").exit_code
    good = out.read_bytes()

    without = run("--verify", out, "--source", draft)
    assert (4, True) == (without.exit_code, NAME in without.stderr)
    assert 0 == run("--verify", out, "--source", draft, "--imatrix", tmp_path / "i.gguf").exit_code
    t = read_gguf(out).tensors["fc.weight"]
    for at, word in (
        (t.offset + t.nbytes // 2, "fc.weight"),
        (good.index(b"[PAD299]") + 4, "tokenizer.ggml.tokens"),
    ):
        changed = bytearray(good)
        changed[at] ^= 1
        out.write_bytes(changed)
        result = run("--verify", out, "--source", draft, "--imatrix", tmp_path / "i.gguf")
        assert (4, True) == (result.exit_code, word in result.stderr), result.output


def test_verify_goes_with_nothing_that_chooses_types_or_writes(tmp_path: Path, draft: Path) -> None:
    """Exit 2 for half a command, and for options that could only be misunderstood."""
    for arguments in (
        ["--verify", draft],
        ["--source", draft],
        ["--verify", draft, "--source", draft, "--scheme", "q8_0"],
        *(
            ["--verify", draft, "--source", draft, option]
            for option in ("--dry-run", "--strict", "--overwrite", "--allow-requantize")
        ),
        [draft],
    ):
        assert 2 == run(*arguments).exit_code


def test_files_with_other_tensors_cannot_be_compared(tmp_path: Path, draft: Path) -> None:
    """Exit 3: it is not a question of bytes."""
    other = drafts.write_draft(tmp_path / "other.gguf", drafts.spec_of(layers=1))

    assert 3 == run("--verify", other, "--source", draft).exit_code
