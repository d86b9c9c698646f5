"""Our files against llama-quantize's: every tensor's type, place and bytes, with and without an importance matrix."""

from __future__ import annotations

import subprocess
from pathlib import Path

import drafts
import heads
import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from dflash_gguf.convert.ggml import BF16
from dflash_gguf.convert.gguf import GgufFile, read_gguf
from dflash_gguf.quantize.cli import main
from dflash_gguf.quantize.imatrix import Imatrix, write_imatrix
from dflash_gguf.runtime.cli import main as validate
from llama_quantize import NoPeer, find_llama_quantize
from trained_pair import TARGET, draft_gguf

SCHEMES = {
    "q8_0": "Q8_0",
    "q2_k": "Q2_K",
    "q3_k_m": "Q3_K_M",
    "q4_k_m": "Q4_K_M",
    "q5_k_m": "Q5_K_M",
    "q6_k": "Q6_K",
}
SHAPES = {
    "five layers": {"layers": 5},
    "nine layers, fewer shared heads": {"layers": 9, "kv_heads": 4},
    "rows that do not divide": {"layers": 3, "ff": 736, "rank": 48},
}
"""Made-up DFlash 2 drafts."""


@pytest.fixture(scope="module")
def peer() -> Path:
    """The tool itself."""
    try:
        return find_llama_quantize()
    except NoPeer as reason:
        pytest.skip(f"no llama-quantize: {reason}")


def dspark(folder: Path) -> Path:
    """The trained v1 draft with a random Markov head."""
    config, tensors, sizes = heads.pair_draft()
    tensors |= heads.markov("markov_head.", "confidence_head.proj", **sizes)
    config |= {"architectures": ["DSparkDraftModel"]}
    source = tiny.write_draft(folder / "dspark", config=config, tensors=tensors)
    return heads.convert(source, folder / "dspark.gguf", "--target", TARGET)


@pytest.fixture(scope="module", params=[*SHAPES, "the trained v1 draft", "DSpark"])
def draft(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A canonical draft and an importance matrix for it."""
    folder, name = tmp_path_factory.mktemp("peer"), request.param
    if name in SHAPES:
        path = drafts.write_draft(folder / "draft.gguf", drafts.spec_of(**SHAPES[name]))
    else:
        path = dspark(folder) if name == "DSpark" else draft_gguf("v1")
    rng = np.random.default_rng(5)
    matrices = {n: t.shape for n, t in read_gguf(path).tensors.items() if t.type == BF16}
    sums = {n: rng.exponential(2, (1, s[0])).astype(np.float32) for n, s in matrices.items()}
    counts = {n: np.array([64], np.float32) for n in matrices}
    write_imatrix(folder / "i.gguf", Imatrix(sums, counts, ("made up",), 1, 64))
    return path, folder / "i.gguf"


def equal_files(theirs: Path, ours: Path) -> None:
    """Same tensors in the same order, of the same types, with the same bytes; file_type and version too."""
    a, b = read_gguf(theirs), read_gguf(ours)

    def table(file: GgufFile) -> list[tuple[str, int, tuple[int, ...]]]:
        """Name, type and shape in file order; llama.cpp does not write a last dimension of 1."""
        return [
            (t.name, t.type, t.shape[: 1 if t.shape[1:] == (1,) else None])
            for t in file.tensors.values()
        ]

    assert table(a) == table(b)
    raw_a, raw_b = theirs.read_bytes(), ours.read_bytes()
    for t in a.tensors.values():
        u = b.tensors[t.name]
        assert raw_a[t.offset : t.offset + t.nbytes] == raw_b[u.offset : u.offset + u.nbytes], (
            t.name
        )
    for key in ("general.file_type", "general.quantization_version"):
        assert a.kv[key] == b.kv[key]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "imatrix"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_files_equal_llama_quantizes_tensor_by_tensor(
    tmp_path: Path, peer: Path, draft: tuple[Path, Path], scheme: str, weighted: bool
) -> None:
    """Same tensors in the same order, of the same types, with the same bytes; file_type and version too."""
    source, imatrix = draft
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    more = ["--imatrix", str(imatrix)] if weighted else []
    subprocess.run(
        [peer, *more, source, theirs, SCHEMES[scheme], "2"], check=True, capture_output=True
    )
    result = CliRunner().invoke(main, [str(source), str(ours), "--scheme", scheme, *more])
    assert 0 == result.exit_code, result.output

    equal_files(theirs, ours)


@pytest.mark.parametrize("scheme", ["q2_k", "q3_k_m"])
@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_a_matrix_collected_in_speculation_is_llama_quantizes_too(
    tmp_path: Path, peer: Path, variant: str, scheme: str
) -> None:
    """What dflash-validate collects on the trained pair is read there, weighs every matrix, and gives the same file."""
    source, imatrix = draft_gguf(variant), tmp_path / "i.gguf"
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    collected = CliRunner().invoke(validate, [str(a) for a in (source, "--target", TARGET, "--prompts", "pair-smoke", "--collect-imatrix", imatrix)])  # fmt: skip
    assert 0 == collected.exit_code, collected.output
    done = subprocess.run(
        [peer, "--imatrix", str(imatrix), source, theirs, SCHEMES[scheme], "2"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    result = CliRunner().invoke(
        main, [str(source), str(ours), "--scheme", scheme, "--imatrix", str(imatrix)]
    )
    assert 0 == result.exit_code, result.output

    assert "pair-smoke.jsonl" in done.stdout + done.stderr
    assert "did not find weights" not in done.stdout + done.stderr
    equal_files(theirs, ours)
