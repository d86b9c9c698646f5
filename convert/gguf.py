"""The GGUF reader: header, metadata and tensor table of a file from a stranger, every length checked before use.

A file is accepted only if its tensors tile the data section in the order of the table, as ggml's own reader
wants it: no holes, no overlap, nothing after the end. The data itself is not touched. `gguf_writer` is the other half.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from . import fields as kinds
from .cursor import MAX_HEADER, Cursor, read_value
from .errors import InputError, one_line
from .fields import Field, Questions, Value
from .files import open_regular
from .ggml import tensor_bytes

MAGIC = b"GGUF"
ALIGNMENT = 32
MAX_KEY = 65535
MAX_NAME = 63
MAX_DIMS = 4
MIN_KV, MIN_TENSOR = 8 + 1 + 4 + 1, 8 + 1 + 4 + 8 + 4 + 8
"""Bytes of the smallest metadata pair and of the smallest tensor entry."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table."""

    name: str
    type: int
    """ggml type id."""
    shape: tuple[int, ...]
    """GGUF order: row length first."""
    offset: int
    """Absolute position of the data in the file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF says of itself; `fields` keep the types, `kv` has the bare values."""

    path: Path
    size: int
    version: int
    alignment: int
    data_offset: int
    fields: dict[str, Field]
    tensors: dict[str, TensorInfo]
    header_sha256: str = ""
    """Of all bytes before the tensor data."""
    kv: dict[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv", {key: f.value for key, f in self.fields.items()})

    @property
    def architecture(self) -> str:
        """`general.architecture`; refused where it is absent or not a string."""
        name = self.ask.text("general.architecture")
        if not name:
            raise InputError(
                "GGUF names no architecture", found="no key" if name is None else "an empty text", where=f"{self.path}: general.architecture",
                expected="a non-empty string", fix="this is not a model file; convert the checkpoint again",
            )  # fmt: skip
        return name

    @property
    def ask(self) -> Questions:
        """Typed questions to the metadata."""
        return Questions(self.fields, self.path)


def read_fields(c: Cursor, count: int) -> dict[str, Field]:
    """The metadata pairs."""
    fields: dict[str, Field] = {}
    for _ in range(count):
        key = c.text("metadata key", MAX_KEY)
        if not (key and key.isascii() and key.isprintable()):
            raise c.fault(
                "metadata key is not printable ASCII", repr(one_line(key)), "a printable key"
            )
        if key in fields:
            raise c.fault("metadata key occurs twice", key, "one of each")
        fields[key] = read_value(c, key)
    return fields


def check_whole(c: Cursor, fields: dict[str, Field]) -> None:
    """Refuse one part of a split file."""
    count = Questions(fields, c.path).integer("split.count")
    if count is not None and count != 1:
        raise InputError(
            "one part of a split GGUF", found=f"split.count = {count}", where=c.path, expected="a whole file",
            fix="merge the parts with llama-gguf-split --merge",
        )  # fmt: skip


def read_alignment(c: Cursor, fields: dict[str, Field]) -> int:
    """`general.alignment`, 32 where the file does not say."""
    given = fields.get("general.alignment")
    if given is None:
        return ALIGNMENT
    value = given.value
    if given.type != kinds.U32 or not 8 <= value <= 65536 or value & (value - 1):
        raise c.fault(
            "alignment is not usable",
            f"{value} ({given.type_name()})",
            "u32, a power of two from 8 to 65536",
        )
    return int(value)


def read_tensors(c: Cursor, count: int) -> Iterator[tuple[str, int, tuple[int, ...], int, int]]:
    """Name, type, shape, relative offset and bytes of each entry of the table."""
    seen: set[str] = set()
    for _ in range(count):
        name = c.text("tensor name", MAX_NAME)
        if not (name and name.isascii() and name.isprintable()) or "/" in name or ".." in name:
            raise c.fault(
                "tensor name is not usable",
                repr(one_line(name)),
                "printable ASCII without / and ..",
            )
        if name in seen:
            raise c.fault("tensor occurs twice", name, "one of each")
        seen.add(name)
        n_dims = c.integer(kinds.U32, f"rank of {name}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise c.fault(f"rank of {name} is not usable", n_dims, f"1 to {MAX_DIMS}")
        shape = tuple(c.integer(kinds.U64, f"shape of {name}") for _ in range(n_dims))
        if not all(0 < dim < 1 << 63 for dim in shape) or math.prod(shape) >= 1 << 63:
            raise c.fault(
                f"shape of {name} is not usable", list(shape), "dims from 1, product below 2^63"
            )
        kind = c.integer(kinds.I32, f"type of {name}")
        offset = c.integer(kinds.U64, f"offset of {name}")
        yield name, kind, shape, offset, tensor_bytes(kind, shape, f"{c.path}: {name}")


def place(
    c: Cursor, table: list[tuple[str, int, tuple[int, ...], int, int]], alignment: int
) -> dict[str, TensorInfo]:
    """The tensors with absolute offsets; refused unless they tile the data section exactly."""
    start = -(-c.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    expected = end = 0
    for name, kind, shape, offset, nbytes in table:
        where = f"{c.path}: {name}"
        if offset != expected:
            fault = (
                "misaligned"
                if offset % alignment
                else "behind a hole"
                if offset > expected
                else "overlapping"
            )
            raise InputError(
                f"tensor is {fault}",
                found=f"offset {offset}",
                where=where,
                expected=f"offset {expected}",
            )
        left = c.size - start - offset
        if nbytes > left:
            raise InputError(
                "GGUF is cut short in its tensor data", found=f"{nbytes} bytes at {start + offset}, file ends at {c.size}",
                where=where, expected=f"{nbytes - max(left, 0)} bytes more", fix="download or convert it again",
            )  # fmt: skip
        tensors[name] = TensorInfo(name, kind, shape, start + offset, nbytes)
        end = offset + nbytes
        expected = -(-end // alignment) * alignment
    if c.size - start not in (end, expected):
        raise InputError(
            "GGUF has bytes after its last tensor", found=f"file of {c.size} bytes", where=f"{c.path}: offset {start + end}",
            expected=f"{start + expected} bytes",
        )  # fmt: skip
    return tensors


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """The metadata and tensor table of the GGUF at `path`.

    Raises InputError for anything that is not a sound GGUF of version 2 or 3, OSError where the file cannot be read.
    """
    path = Path(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        c = Cursor(path, file.read(min(size, MAX_HEADER)), size)
    c.need(24, "first 24 bytes")
    if c.buffer[:4] != MAGIC:
        raise c.fault("not a GGUF", f"magic {c.buffer[:4]!r}", repr(MAGIC))
    c.position = 4
    version = c.integer(kinds.U32, "version")
    if version not in (2, 3):
        big = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
        raise c.fault(
            "GGUF is big-endian" if big else "unknown GGUF version",
            version,
            "2 or 3, little-endian",
        )
    n_tensors, n_kv = (c.integer(kinds.U64, what) for what in ("tensor count", "metadata count"))
    left = size - c.position
    if not 0 < n_tensors <= left // MIN_TENSOR or n_kv > (left - n_tensors * MIN_TENSOR) // MIN_KV:
        raise c.fault(
            "GGUF has no tensors" if n_tensors == 0 else "counts do not fit the file",
            f"{n_tensors} tensors, {n_kv} metadata pairs, {left} bytes left", "at least one tensor, and room for all",
        )  # fmt: skip
    fields = read_fields(c, n_kv)
    check_whole(c, fields)
    alignment = read_alignment(c, fields)
    table = list(read_tensors(c, n_tensors))
    tensors = place(c, table, alignment)
    start = -(-c.position // alignment) * alignment
    digest = sha256(memoryview(c.buffer)[:start]).hexdigest()
    return GgufFile(path, size, version, alignment, start, fields, tensors, digest)
