"""The header of a safetensors file from a stranger: every span checked, data not touched.

Stricter than the format where a loose file can only be a fault: tensors must tile the data section, and keys must be
unique. Header limit: 8 MiB (the largest known draft header has 12 KiB).
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError, one_line
from .files import open_regular
from .strict_json import parse_json

MAX_HEADER = 8 << 20
MAX_DIMS = 8

DTYPES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of an element."""

IMPOSTORS = (
    (b"version https://git-lfs", "a Git LFS pointer", "git lfs pull"),
    (b"<!DOCTYPE", "an HTML page", "download it again"),
    (b"<html", "an HTML page", "download it again"),
    (
        b"PK\x03\x04",
        "a zip archive or a PyTorch file",
        "use the safetensors file; others are never loaded",
    ),
    (b"\x80\x02", "a pickle", "use the safetensors file; pickles are never loaded"),
    (b"\x80\x04", "a pickle", "use the safetensors file; pickles are never loaded"),
    (b"GGUF", "a GGUF", "give it the extension .gguf"),
)
"""What is found under the name of a safetensors file, and what to do then."""


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """Where a tensor's bytes lie."""

    name: str
    file: Path
    offset: int
    """Absolute."""
    nbytes: int
    dtype: str
    """Spelling of safetensors."""
    shape: tuple[int, ...]
    """PyTorch order."""


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """One file's table."""

    path: Path
    size: int
    header_sha256: str
    tensors: dict[str, SourceTensor]


def read_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """The tensor table of the file at `path`.

    Raises InputError for anything that is not a sound safetensors file, OSError where it cannot be read.
    """
    path = Path(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(32)
        raw = b"" if len(head) < 8 else read_header(file, head, size, path)
    if not raw:
        raise InputError(
            "safetensors file is too short",
            found=f"{size} bytes",
            where=path,
            expected="at least 10",
        )
    tensors = parse_header(raw, size, path)
    return SafetensorsFile(path, size, hashlib.sha256(raw).hexdigest(), tensors)


def read_header(file: Any, head: bytes, size: int, path: Path) -> bytes:
    """The JSON bytes; refused where the length is not possible or the file is something else."""
    for magic, name, fix in IMPOSTORS:
        if head.startswith(magic):
            raise InputError(
                "not a safetensors file", found=name, where=path, expected="safetensors", fix=fix
            )
    length = int.from_bytes(head[:8], "little")
    if length > size - 8 or length > MAX_HEADER:
        raise InputError(
            "safetensors header length is not possible", found=f"{length} in a file of {size} bytes", where=f"{path}: offset 0",
            expected=f"at most {min(size - 8, MAX_HEADER)}", fix="download the file again",
        )  # fmt: skip
    file.seek(8)
    raw: bytes = file.read(length)
    if not raw.startswith(b"{"):
        raise InputError(
            "safetensors header is not JSON",
            found=repr(raw[:16]),
            where=f"{path}: offset 8",
            expected="{",
        )
    return raw


def parse_header(raw: bytes, size: int, path: Path) -> dict[str, SourceTensor]:
    """The checked table of a header of `raw` bytes in a file of `size`."""
    start = 8 + len(raw)
    tensors: list[SourceTensor] = []
    for name, entry in parse_json(raw, path).items():
        if name == "__metadata__":
            check_metadata(entry, path)
        else:
            tensors.append(parse_entry(name, entry, start, size, path))
    position = start
    for t in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if t.offset != position:
            fault = "overlaps its neighbour" if t.offset < position else "lies behind a hole"
            raise InputError(
                f"tensor {fault}", found=f"offset {t.offset - start}", where=f"{path}: {one_line(t.name)}",
                expected=f"offset {position - start}",
            )  # fmt: skip
        position += t.nbytes
    if position != size:
        raise InputError(
            "safetensors file has bytes after its last tensor", found=f"{size} bytes", where=path, expected=f"{position} bytes"
        )  # fmt: skip
    return {t.name: t for t in tensors}


def check_metadata(entry: Any, path: Path) -> None:
    """`__metadata__` maps strings to strings."""
    if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
        raise InputError(
            "__metadata__ is not a map of strings",
            found=one_line(entry),
            where=path,
            expected="strings only",
        )


def parse_entry(name: str, entry: Any, start: int, size: int, path: Path) -> SourceTensor:
    """One tensor: a known dtype, whole numbers, a span inside the file that its shape fills."""

    def fault(what: str, found: object, expected: str) -> InputError:
        return InputError(
            what, found=one_line(found), where=f"{path}: {one_line(name)}", expected=expected
        )

    if not (name and name.isprintable()):
        raise fault("tensor name is not usable", repr(name), "printable text")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise fault("tensor entry is not usable", entry, "dtype, shape, data_offsets")
    dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise fault("unknown dtype", dtype, " ".join(DTYPES))
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(whole(d) for d in shape):
        raise fault("shape is not usable", shape, f"at most {MAX_DIMS} whole numbers")
    if (
        not isinstance(span, list)
        or len(span) != 2
        or not all(whole(d) for d in span)
        or span[0] > span[1]
    ):
        raise fault("data_offsets are not usable", span, "[begin, end] with begin <= end")
    begin, end = span
    if end > size - start:
        raise fault(
            "tensor ends past the file",
            f"{start + end} of {size}",
            "a whole file; download it again",
        )
    if math.prod(shape) * DTYPES[dtype] != end - begin:
        raise fault("span contradicts the shape", f"{end - begin} bytes", f"{shape} of {dtype}")
    return SourceTensor(name, path, start + begin, end - begin, dtype, tuple(shape))


def whole(value: Any) -> bool:
    """A number from 0 that fits 63 bits; true and false are not numbers."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
