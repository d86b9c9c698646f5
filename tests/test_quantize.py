"""dflash-quantize: the file it writes, what it says of it, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import drafts
import numpy as np
import numpy.typing as npt
import pytest
import tiny
from click.testing import CliRunner, Result
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.quantize import dequantize_rows, quantize_rows, stream
from dflash_gguf.quantize.cli import main
from dflash_gguf.quantize.metrics import ErrorSums
from dflash_gguf.quantize.policy import file_order
from dflash_gguf.quantize.qtypes import BY_ID
from dflash_gguf.quantize.quantization import plan_quantization
from dflash_gguf.quantize.schemes import packaged
from dflash_gguf.quantize.source import open_source


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A canonical BF16 draft with hidden size 256."""
    return drafts.write_draft(tmp_path_factory.mktemp("draft") / "draft.gguf")


def run(*arguments: Any) -> Result:
    """dflash-quantize with these arguments."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def quantize(source: Path, output: Path, scheme: str, *more: Any) -> Path:
    """A run that must succeed."""
    result = run(source, output, "--scheme", scheme, *more)

    assert 0 == result.exit_code, result.output
    return output


def refused(code: int, *arguments: Any) -> str:
    """A run that must fail with this code; gives its message."""
    result = run(*arguments)

    assert code == result.exit_code, result.output
    return result.stderr


def tensor_bytes(path: Path) -> dict[str, bytes]:
    """Name to bytes of every tensor of a GGUF."""
    raw = path.read_bytes()
    return {t.name: raw[t.offset : t.offset + t.nbytes] for t in read_gguf(path).tensors.values()}


def matrix(path: Path, name: str) -> npt.NDArray[np.uint16]:
    """The BF16 bits of a matrix, (rows, cols)."""
    info = read_gguf(path).tensors[name]
    return np.frombuffer(tensor_bytes(path)[name], np.uint16).reshape(info.shape[::-1])


@pytest.mark.parametrize("scheme", packaged())
def test_every_tensor_holds_the_bytes_of_quantize_rows(
    tmp_path: Path, draft: Path, scheme: str
) -> None:
    """The file is what the kernels make of each row; what is no matrix keeps its bytes."""
    out = quantize(draft, tmp_path / "q.gguf", scheme)
    before, after = tensor_bytes(draft), tensor_bytes(out)

    changed = 0
    for info in read_gguf(out).tensors.values():
        if info.type == read_gguf(draft).tensors[info.name].type:
            assert before[info.name] == after[info.name]
            continue
        changed += 1
        assert (
            quantize_rows(matrix(draft, info.name), BY_ID[info.type].name).tobytes()
            == after[info.name]
        )
    assert 4 + 2 * 9 == changed


def test_metadata_is_kept_and_says_what_the_file_is(tmp_path: Path, draft: Path) -> None:
    """All keys are copied in order; file_type and quantization_version are those of the recipe."""
    before, after = read_gguf(draft), read_gguf(quantize(draft, tmp_path / "q.gguf", "q4_k_m"))

    changed = {"general.file_type", "general.quantization_version"}
    assert (15, 2) == (after.kv["general.file_type"], after.kv["general.quantization_version"])
    assert [k for k in before.kv if k not in changed] == [k for k in after.kv if k not in changed]
    assert all(str(before.kv[k]) == str(after.kv[k]) for k in before.kv if k not in changed)


def test_tensors_are_stored_in_llama_quantizes_order(tmp_path: Path, draft: Path) -> None:
    """Outside the blocks first, then block by block, each by name."""
    names = list(read_gguf(quantize(draft, tmp_path / "q.gguf", "q8_0")).tensors)

    assert sorted(names, key=file_order) == names
    assert "enc.output_norm.weight" == names[0]


def test_bytes_do_not_depend_on_threads_or_chunks(
    tmp_path: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 2 and 5 threads, and chunks of one row, write the same file and the same manifest."""
    outs = [
        quantize(draft, tmp_path / str(n) / "q.gguf", "q3_k_m", "--threads", n)
        for n in (1, 2, 5)
        if not (tmp_path / str(n)).mkdir()
    ]
    monkeypatch.setattr(stream, "CHUNK_BYTES", 700)
    (tmp_path / "rows").mkdir()
    outs.append(quantize(draft, tmp_path / "rows" / "q.gguf", "q3_k_m", "--threads", 2))

    assert 1 == len({out.read_bytes() for out in outs})
    manifests = [json.loads(out.with_suffix(".manifest.json").read_text()) for out in outs]
    assert manifests[0] == manifests[1] == manifests[2]
    assert [t["sha256"] for t in manifests[0]["tensors"]] == [
        t["sha256"] for t in manifests[3]["tensors"]
    ]


def test_the_manifest_names_every_byte_and_no_place(tmp_path: Path, draft: Path) -> None:
    """Hashes of source and output per tensor are true; sizes add up; no path is written."""
    out = quantize(draft, tmp_path / "q.gguf", "q4-mix")
    text = (tmp_path / "q.manifest.json").read_text()
    body = json.loads(text)
    before, after = tensor_bytes(draft), tensor_bytes(out)

    assert out.stat().st_size == body["output"]["bytes"] == body["total"]["bytes"]
    for t in body["tensors"]:
        assert hashlib.sha256(after[t["name"]]).hexdigest() == t["sha256"]
        assert hashlib.sha256(before[t["source"]]).hexdigest() == t["source_sha256"]
    assert len(after) == len(body["tensors"])
    assert str(tmp_path) not in text
    assert str(draft.parent) not in text


def test_the_report_measures_what_was_lost(tmp_path: Path, draft: Path) -> None:
    """Relative RMSE and cosine of a tensor are those of its dequantised weights; totals are of the sums."""
    result = run(draft, tmp_path / "q.gguf", "--scheme", "q2_k", "--json")
    body = json.loads(result.stdout)["outcome"]
    bits = matrix(draft, "blk.1.ffn_up.weight")
    x = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    y = dequantize_rows(quantize_rows(bits, "q2_k"), "q2_k", 256).astype(np.float64)

    (row,) = [t for t in body["tensors"] if t["name"] == "blk.1.ffn_up.weight"]

    assert row["relative_rmse"] == pytest.approx(
        np.sqrt(((x - y) ** 2).sum() / (x**2).sum()), rel=1e-5
    )
    assert row["cosine"] == pytest.approx(
        (x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()), abs=1e-8
    )
    assert 2.625 == row["bits_per_weight"]
    assert row["relative_rmse"] > body["total"]["relative_rmse"] > 0.1


def test_error_sums_join_as_if_the_weights_were_one() -> None:
    """Sums, never means of means."""
    joined = ErrorSums(1, 1, 1, 0) + ErrorSums(3, 1, 1, 2)

    assert np.sqrt(2 / 4) == joined.relative_rmse
    assert 2 / np.sqrt(4 * 2) == pytest.approx(joined.cosine)
    assert (0.0, 1.0) == (ErrorSums().relative_rmse, ErrorSums().cosine)


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path, draft: Path) -> None:
    """Sizes of the plan are those of the file that a real run writes; nothing appears before."""
    shown = run(draft, tmp_path / "q.gguf", "--scheme", "q5_k_m", "--dry-run", "--json")
    plan = json.loads(shown.stdout)["plan"]
    assert [] == list(tmp_path.iterdir())

    out = quantize(draft, tmp_path / "q.gguf", "q5_k_m")

    assert out.stat().st_size == plan["total"]["bytes"]
    assert {t.name: t.offset for t in read_gguf(out).tensors.values()} == {
        t["name"]: t["offset"] for t in plan["tensors"]
    }


def test_text_output_lists_every_tensor_and_the_total(tmp_path: Path, draft: Path) -> None:
    """One line a tensor on stdout, nothing on stderr when it is no terminal."""
    result = run(draft, tmp_path / "q.gguf", "--scheme", "q4-mix")

    assert all(name in result.stdout for name in read_gguf(draft).tensors)
    assert "bits per weight" in result.stdout
    assert "" == result.stderr


def test_a_checkpoint_is_converted_and_quantised_in_one_pass(tmp_path: Path) -> None:
    """The file equals the one that dflash-convert and dflash-quantize make in two steps, byte for byte."""
    from dflash_gguf.convert.cli import main as convert

    folder = tiny.write_draft(tmp_path / "ckpt", v2=True, shards=2)
    target = tiny.write_target_gguf(tmp_path / "target.gguf")
    steps = CliRunner().invoke(
        convert, [str(folder), str(tmp_path / "d.gguf"), "--target", str(target)]
    )
    assert 0 == steps.exit_code, steps.output

    two = quantize(tmp_path / "d.gguf", tmp_path / "two.gguf", "q4-mix")
    one = quantize(folder, tmp_path / "one.gguf", "q4-mix", "--target", target)

    assert two.read_bytes() == one.read_bytes()


def test_rows_that_do_not_divide_fall_back_and_are_reported(tmp_path: Path) -> None:
    """Hidden 64: Q4_K becomes Q5_0, rank 8 becomes F16; the report counts tensors and bytes, --strict refuses."""
    folder = tiny.write_draft(tmp_path / "ckpt", v2=True)
    target = tiny.write_target_gguf(tmp_path / "target.gguf")
    arguments = (folder, tmp_path / "q.gguf", "--scheme", "q4_k_m", "--target", target)

    message = refused(2, *arguments, "--strict")
    assert [] == list(tmp_path.glob("*q.*"))
    body = json.loads(run(*arguments, "--json").stdout)["outcome"]

    found = {t["name"]: (t["type"], t.get("instead_of")) for t in body["tensors"]}
    assert ("Q5_0", "Q4_K") == found["fc.weight"]
    assert ("F16", "Q4_K") == found["selector_predecessor.weight"]
    assert ("Q8_0", "Q6_K") == found["blk.1.attn_v.weight"]
    assert 22 == body["total"]["fallback_tensors"]
    assert 0.9 < body["total"]["fallback_bytes_share"] < 0.95
    assert "22 tensors" in message
    raw = tensor_bytes(tmp_path / "q.gguf")["selector_predecessor.weight"]
    bits = next(
        a for n, (_, a) in tiny.draft_tensors(True).items() if n.endswith("predecessor_codebook")
    )
    wanted = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(wanted.astype(np.float16).tobytes(), raw)


def test_a_quantised_source_needs_leave_and_keeps_what_fits(tmp_path: Path, draft: Path) -> None:
    """Without --allow-requantize: exit 2. With it: dequantised, then quantised; equal types are copied."""
    q8 = quantize(draft, tmp_path / "q8.gguf", "q8_0")

    message = refused(2, q8, tmp_path / "q.gguf", "--scheme", "q4-mix")
    assert "--allow-requantize" in message
    out = quantize(q8, tmp_path / "q.gguf", "q4-mix", "--allow-requantize")

    before, after = tensor_bytes(q8), tensor_bytes(out)
    assert before["fc.weight"] == after["fc.weight"]
    blocks = np.frombuffer(before["blk.0.ffn_up.weight"], np.uint8).reshape(512, -1)
    assert (
        quantize_rows(dequantize_rows(blocks, "q8_0", 256), "q4_0").tobytes()
        == after["blk.0.ffn_up.weight"]
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "blk.0.attn_norm.weight"])
def test_a_weight_that_is_not_finite_is_refused_by_tensor_and_index(
    tmp_path: Path, name: str, bad: float
) -> None:
    """Exit 3 names tensor, row and column, in matrices and in what is copied; nothing is left behind."""
    spec = drafts.spec_of()
    tensors = drafts.weights(spec)
    flat = tensors[name].reshape(-1)
    at = 3 * 512 + 500 if name.endswith("ffn_down.weight") else 77
    flat[at] = tiny.bf16(np.array([bad], np.float32))[0] if flat.dtype == np.uint16 else bad
    source = drafts.write_draft(tmp_path / "bad.gguf", spec, tensors)

    message = refused(3, source, tmp_path / "q.gguf", "--scheme", "q4_k_m")

    assert f"{name}[{'3, 500' if 'down' in name else '77'}]" in message
    assert [source] == list(tmp_path.iterdir())


def test_weights_too_large_for_a_binary16_scale_are_refused(tmp_path: Path) -> None:
    """BF16 reaches 1e38, a block's scale 65504: infinity in the file would be silence about a broken draft."""
    spec = drafts.spec_of()
    tensors = drafts.weights(spec)
    tensors["fc.weight"][5, 100] = tiny.bf16(np.array([1e9], np.float32))[0]
    source = drafts.write_draft(tmp_path / "big.gguf", spec, tensors)

    message = refused(3, source, tmp_path / "q.gguf", "--scheme", "q8_0")

    assert "fc.weight[5, 96]" in message


def test_options_that_cannot_be_meant_are_usage_errors(tmp_path: Path, draft: Path) -> None:
    """Exit 2 before anything is written."""
    out = tmp_path / "q.gguf"
    for arguments in (
        [draft, out], [draft, out, "--scheme", "q9"], [draft, out, "--scheme", "q8_0", "--threads", 0],
        [draft, out, "--scheme", "q8_0", "--threads", -5], [draft, out, "--scheme", "q8_0", "--threads", 10**9],
        [draft, out, "--scheme", "q8_0", "--tensor-type", "fc.weight"], [draft, out, "--scheme", "q8_0", "--tensor-type", "fc.weight=Q9"],
        [draft, out, "--scheme", "q8_0", "--tensor-type", "=q8_0"], [draft, out, "--scheme", "q8_0", "--tensor-type", "nothing*=q8_0"],
        [draft, tmp_path / "q.bin", "--scheme", "q8_0"], [draft, draft, "--scheme", "q8_0", "--overwrite"],
    ):  # fmt: skip
        refused(2, *arguments)
    assert [] == list(tmp_path.iterdir())


def test_an_existing_output_is_kept_without_overwrite_and_on_failure(
    tmp_path: Path, draft: Path
) -> None:
    """The old file survives a refusal and a failed run; --overwrite replaces it."""
    out = tmp_path / "q.gguf"
    out.write_bytes(b"old")
    refused(2, draft, out, "--scheme", "q8_0")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(draft.read_bytes()[:-1000])

    refused(3, broken, out, "--scheme", "q8_0", "--overwrite")
    assert b"old" == out.read_bytes()
    quantize(draft, out, "q8_0", "--overwrite")

    assert b"GGUF" == out.read_bytes()[:4]


def test_input_equal_to_output_is_refused_through_links(tmp_path: Path, draft: Path) -> None:
    """By path, symlink and hard link; the input keeps its bytes."""
    source = tmp_path / "d.gguf"
    source.write_bytes(draft.read_bytes())
    (tmp_path / "soft.gguf").symlink_to(source)
    os.link(source, tmp_path / "hard.gguf")

    for out in ("d.gguf", "soft.gguf", "hard.gguf"):
        refused(2, source, tmp_path / out, "--scheme", "q8_0", "--overwrite")

    assert draft.read_bytes() == source.read_bytes()


def test_a_missing_folder_is_exit_5(tmp_path: Path, draft: Path) -> None:
    """The environment is at fault, not the input."""
    refused(5, draft, tmp_path / "no" / "q.gguf", "--scheme", "q8_0")


def test_a_file_that_is_no_draft_is_exit_3_with_one_json_object(tmp_path: Path) -> None:
    """--json prints exactly one object in failure too."""
    (tmp_path / "x.gguf").write_bytes(b"not a gguf at all, not at all")

    result = run(tmp_path / "x.gguf", tmp_path / "q.gguf", "--scheme", "q8_0", "--json")

    assert 3 == result.exit_code
    assert (False, 3) == tuple(json.loads(result.stdout)[k] for k in ("ok", "exit_code"))


def test_one_part_of_a_split_file_is_refused(tmp_path: Path) -> None:
    """split.count above 1: the rest of the tensors lies elsewhere."""
    source = drafts.write_draft(tmp_path / "part.gguf", **{"split.count": f.Field(f.U16, 2)})

    assert "split" in refused(3, source, tmp_path / "q.gguf", "--scheme", "q8_0")


def test_a_users_scheme_file_decides(tmp_path: Path, draft: Path) -> None:
    """--scheme FILE.toml: its rules, its file_type."""
    (tmp_path / "s.toml").write_text(
        'default = "q6_k"\nfile_type = 18\nrules = [{match = "fc.weight", type = "keep"}]'
    )

    out = read_gguf(quantize(draft, tmp_path / "q.gguf", str(tmp_path / "s.toml")))

    assert (30, 14, 18) == (
        out.tensors["fc.weight"].type,
        out.tensors["blk.0.attn_q.weight"].type,
        out.kv["general.file_type"],
    )
    refused(3, draft, tmp_path / "r.gguf", "--scheme", tmp_path / "none.toml")


@pytest.mark.parametrize(("default", "number"), [("q6_k", 18), ("q8_0", 7), ("iq4_nl", 1024)])
def test_a_scheme_without_file_type_is_named_by_its_main_type(
    tmp_path: Path, draft: Path, default: str, number: int
) -> None:
    """Never 0, which says all F32; the JSON of a success says exit_code 0."""
    (tmp_path / "s.toml").write_text(f'default = "{default}"')
    result = run(draft, tmp_path / "q.gguf", "--scheme", tmp_path / "s.toml", "--json")

    assert (0, 0) == (result.exit_code, json.loads(result.stdout)["exit_code"])
    assert number == read_gguf(tmp_path / "q.gguf").kv["general.file_type"]


def test_importance_reaches_the_kernels_row_by_row(draft: Path) -> None:
    """A tensor's vector weighs its columns; types without a search, and vectors of zeros, are as without."""
    source = open_source(draft)
    plan = plan_quantization(source, packaged()["q4_k_m"])
    importance = np.random.default_rng(1).exponential(1, (1, 256)).astype(np.float32)
    got: dict[str, bytes] = {}

    results = stream.quantize_tensors(
        plan, lambda name, data: got.update({name: got.get(name, b"") + bytes(data)}), threads=2,
        importance={"blk.0.attn_q.weight": importance, "blk.0.attn_k.weight": importance * 0},
    )  # fmt: skip

    q, k = matrix(draft, "blk.0.attn_q.weight"), matrix(draft, "blk.0.attn_k.weight")
    assert quantize_rows(q, "q4_k", importance[0]).tobytes() == got["blk.0.attn_q.weight"]
    assert quantize_rows(k, "q4_k").tobytes() == got["blk.0.attn_k.weight"]
    assert ["blk.0.attn_q.weight"] == [r.tensor.name for r in results if r.weighted]


def test_memory_stays_bounded_on_a_file_larger_than_the_bound(tmp_path: Path) -> None:
    """640 MB of weights (zeros, in a sparse file) pass through a process that never holds 400 MB."""
    spec = drafts.spec_of(layers=1, ff=400_000)
    source = drafts.write_sparse(tmp_path / "big.gguf", spec)
    code = (
        "import sys; from pathlib import Path; from dflash_gguf.quantize.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as e: code = e.code or 0\n"
        "peak = next(l.split()[1] for l in Path('/proc/self/status').read_text().splitlines() if l.startswith('VmHWM'))\n"
        "print('peak', code, peak)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, source, tmp_path / "q.gguf", "--scheme", "q2_k", "--threads", "2"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    word, exit_code, peak = done.stdout.splitlines()[-1].split()
    assert source.stat().st_size > 600e6
    assert ("peak", "0") == (word, exit_code), done.stderr
    assert int(peak) < 400 * 1024
