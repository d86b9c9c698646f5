"""Importance matrices: llama.cpp's GGUF and legacy files, read as strangers' data, merged, and written.

An importance matrix holds, for each matrix of weights, the sum of squares that each input column saw and how many rows
were summed. What a quantiser uses is the mean. Nothing here knows how activations are collected.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..convert import fields as kinds
from ..convert.errors import InputError, one_line
from ..convert.gguf import GgufFile, read_gguf
from ..convert.gguf_writer import GgufLayout, GgufWriter
from ..convert.output import OutputFile, OutputSet

Floats = npt.NDArray[np.float32]

MAX_BYTES = 1 << 30
"""Files larger than this are refused; a 70B model's has 25 MB."""
MAX_NAME = 255
SUMS, COUNTS = ".in_sum2", ".counts"
"""What llama.cpp appends to a tensor's name."""


@dataclass(frozen=True)
class Imatrix:
    """Sums of squared activations by tensor."""

    sums: Mapping[str, Floats]
    """Tensor name to (matrices, columns)."""
    counts: Mapping[str, Floats]
    """Tensor name to (matrices,): rows that were summed."""
    datasets: tuple[str, ...] = ()
    """What the activations came from."""
    chunk_count: int = 0
    chunk_size: int = 0
    """Rows of a chunk, 0 where the file does not say."""
    paths: tuple[Path, ...] = ()
    """The files it was read from."""

    @property
    def where(self) -> str:
        """The files, for messages."""
        return " + ".join(map(str, self.paths))

    def importance(self) -> dict[str, Floats]:
        """The mean square of each column, by tensor: (matrices, columns) float32."""
        with np.errstate(over="ignore"):  # `match_importance` refuses what is not finite, by name
            return {name: s / self.counts[name][:, None] for name, s in self.sums.items()}


def merge(parts: Iterable[Imatrix]) -> Imatrix:
    """The matrix of all activations of `parts` together.

    Raises InputError where two give a tensor different shapes or sums too large for float32, or there are none.
    """
    sums: dict[str, Floats] = {}
    counts: dict[str, Floats] = {}
    datasets: dict[str, None] = {}
    chunks, size = 0, 0
    paths: list[Path] = []
    for part in parts:
        for name, s in part.sums.items():
            if name in sums and sums[name].shape != s.shape:
                raise InputError(
                    "importance matrices of different models", found=s.shape, where=f"{part.where}: {name}", expected=sums[name].shape
                )  # fmt: skip
            if name not in sums:
                sums[name], counts[name] = s, part.counts[name]
                continue
            with np.errstate(over="ignore"):
                sums[name], counts[name] = sums[name] + s, counts[name] + part.counts[name]
            check_values(sums[name], counts[name], f"{part.where}: {name}, merged")
        datasets |= dict.fromkeys(part.datasets)
        paths += part.paths
        chunks, size = chunks + part.chunk_count, size or part.chunk_size
    if not sums:
        raise InputError("no importance matrix to merge", expected="at least one with tensors")
    return Imatrix(sums, counts, tuple(datasets), chunks, size, tuple(paths))


def read_imatrix(path: str | os.PathLike[str]) -> Imatrix:
    """The importance matrix at `path`, in either format.

    Raises InputError for anything that is not a sound one: lengths, names, negative or non-finite sums, counts of zero.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("the importance matrix is not a file", where=path)
    if path.stat().st_size > MAX_BYTES:
        raise InputError(
            "the importance matrix is too large", found=path.stat().st_size, where=path, expected=f"at most {MAX_BYTES} bytes"
        )  # fmt: skip
    with path.open("rb") as file:
        magic = file.read(4)
    matrix = from_gguf(read_gguf(path)) if magic == b"GGUF" else from_legacy(path)
    for name, sums in matrix.sums.items():
        check_values(sums, matrix.counts[name], f"{path}: {name}")
    return matrix


def check_values(sums: Floats, counts: Floats, where: str) -> None:
    """Refuse sums that no activations can give."""
    bad = np.argwhere(~(np.isfinite(sums) & (sums >= 0)))
    if bad.size:
        raise InputError(
            "importance is negative or not finite", found=sums[tuple(bad[0])], where=f"{where}[{bad[0][1]}]", expected="sums of squares"
        )  # fmt: skip
    if not (np.isfinite(counts) & (counts > 0)).all():
        raise InputError(
            "importance was summed over no rows", found=counts[~(np.isfinite(counts) & (counts > 0))][:1], where=where, expected="a positive count",
            fix="collect it again on text that reaches this tensor",
        )  # fmt: skip


def from_gguf(file: GgufFile) -> Imatrix:
    """llama.cpp's present format."""
    ask = file.ask
    if ask.text("general.type") != "imatrix":
        raise InputError(
            "the GGUF is not an importance matrix", found=f"general.type = {ask.text('general.type')}", where=file.path, expected="imatrix"
        )  # fmt: skip
    raw = file.path.read_bytes()
    sums: dict[str, Floats] = {}
    counts: dict[str, Floats] = {}
    for info in file.tensors.values():
        name, is_sum = info.name.removesuffix(SUMS), info.name.endswith(SUMS)
        pair = file.tensors.get(name + COUNTS if is_sum else info.name.removesuffix(COUNTS) + SUMS)
        if info.type != 0 or pair is None or not (is_sum or info.name.endswith(COUNTS)):
            raise InputError(
                "not a tensor of an importance matrix", found=info.name, where=file.path, expected=f"F32 pairs NAME{SUMS}, NAME{COUNTS}"
            )  # fmt: skip
        if is_sum:
            matrices = int(np.prod(info.shape[1:], dtype=np.int64))
            if int(np.prod(pair.shape, dtype=np.int64)) != matrices:
                raise InputError(
                    "sums and counts do not agree", found=pair.shape, where=f"{file.path}: {name}", expected=f"{matrices} counts"
                )  # fmt: skip
            floats = [np.frombuffer(raw, "<f4", t.nbytes // 4, t.offset) for t in (info, pair)]
            sums[name], counts[name] = floats[0].reshape(matrices, -1), floats[1]
    datasets = tuple(ask.texts("imatrix.datasets") or ())
    chunks, size = (ask.integer(f"imatrix.chunk_{what}") or 0 for what in ("count", "size"))
    return Imatrix(sums, counts, datasets, chunks, size, (file.path,))


def from_legacy(path: Path) -> Imatrix:
    """The format before GGUF: means times calls, one entry after another."""
    raw, at = path.read_bytes(), 0

    def take(count: int, what: str) -> bytes:
        nonlocal at
        if not 0 <= count <= len(raw) - at:
            raise InputError(
                "the importance matrix is cut short, or none", found=f"{what} of {count} bytes, {len(raw) - at} left", where=f"{path}: offset {at}",
                expected="llama.cpp's GGUF or legacy format",
            )  # fmt: skip
        at += count
        return raw[at - count : at]

    def number(what: str, low: int, high: int) -> int:
        value: int = struct.unpack("<i", take(4, what))[0]
        if not low <= value <= high:
            raise InputError(
                f"the {what} is not usable", found=value, where=f"{path}: offset {at - 4}", expected=f"{low} to {high}"
            )  # fmt: skip
        return value

    sums: dict[str, Floats] = {}
    counts: dict[str, Floats] = {}
    for _ in range(number("number of entries", 1, 1 << 20)):
        name = take(number("length of a name", 1, MAX_NAME), "name").decode(errors="replace")
        calls, n = number("number of calls", 1, 2**31 - 1), number("number of values", 1, 2**31 - 1)
        if name in sums or not name.isprintable():
            raise InputError("a name is twice, or not usable", found=one_line(name), where=path)
        sums[name] = np.frombuffer(take(4 * n, f"values of {one_line(name)}"), "<f4").reshape(1, -1)
        counts[name] = np.array([calls], np.float32)
    chunks = number("number of chunks", 0, 2**31 - 1) if at < len(raw) else 0
    datasets = (
        (take(number("length of the data set", 0, 4096), "data set").decode(errors="replace"),)
        if at < len(raw)
        else ()
    )
    if at != len(raw):
        raise InputError(
            "bytes after the end", found=f"{len(raw) - at}", where=f"{path}: offset {at}"
        )
    return Imatrix(sums, counts, datasets, chunks, 0, (path,))


def write_imatrix(
    path: str | os.PathLike[str], matrix: Imatrix, *, overwrite: bool = False
) -> None:
    """Write llama.cpp's GGUF format. Raises as `OutputSet` does."""
    with OutputSet([path], overwrite=overwrite) as (file,):
        fill_imatrix(file, matrix)


def fill_imatrix(file: OutputFile, matrix: Imatrix) -> None:
    """Write llama.cpp's GGUF format into an open output. Raises InputError where there is no tensor."""
    if not matrix.sums:
        raise InputError("an importance matrix of nothing", where=file.path, expected="tensors")
    fields = {
        "general.type": kinds.text("imatrix"),
        "imatrix.datasets": kinds.texts(matrix.datasets),
        "imatrix.chunk_count": kinds.u32(matrix.chunk_count),
        "imatrix.chunk_size": kinds.u32(matrix.chunk_size),
    }
    tensors: list[tuple[str, int, tuple[int, ...]]] = []
    data: dict[str, Floats] = {}
    for name in sorted(matrix.sums):
        sums = matrix.sums[name]
        tensors += [(name + SUMS, 0, sums.shape[::-1]), (name + COUNTS, 0, (1, sums.shape[0]))]
        data |= {name + SUMS: sums, name + COUNTS: matrix.counts[name]}
    writer = GgufWriter(file, GgufLayout(fields, tensors))
    for name, _, _ in tensors:
        writer.write(name, np.ascontiguousarray(data[name], "<f4").tobytes())
    writer.finish()
