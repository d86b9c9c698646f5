"""A position in the header of a GGUF, and the values read at it; every length is checked before it is used."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from . import fields as kinds
from .errors import InputError
from .fields import Field, Value

MAX_HEADER = 64 << 20
"""Bytes of header that are read at most; real ones with a 250,000-token vocabulary have about 12 MiB."""
MAX_STRINGS = 1 << 21
"""Strings in all arrays of one file; the largest known vocabulary with its merges has 0.8 million."""


class Cursor:
    """A position in the header; every read is checked against the bytes left before it happens."""

    def __init__(self, path: Path, buffer: bytes, size: int) -> None:
        self.path, self.buffer, self.size = path, buffer, size
        self.position = 0
        self.strings = 0

    def fault(
        self, what: str, found: object = "", expected: object = "", fix: str = ""
    ) -> InputError:
        """An error at the current position."""
        where = f"{self.path}: offset {self.position}"
        return InputError(what, found=found, where=where, expected=expected, fix=fix)

    def need(self, count: int, what: str) -> None:
        """Refuse unless `count` more bytes are there."""
        left = len(self.buffer) - self.position
        if count <= left:
            return
        if len(self.buffer) < self.size:
            raise self.fault(
                f"GGUF header is too long at its {what}", f"{count} more bytes", f"a header of at most {MAX_HEADER} bytes"
            )  # fmt: skip
        raise self.fault(
            f"GGUF is cut short in its {what}", f"{count} bytes needed, {left} left of {self.size}",
            "a whole file", "download or convert it again",
        )  # fmt: skip

    def number(self, form: struct.Struct, what: str) -> int | float:
        """One little-endian number."""
        self.need(form.size, what)
        (value,) = form.unpack_from(self.buffer, self.position)
        self.position += form.size
        return value  # type: ignore[no-any-return]

    def integer(self, kind: int, what: str) -> int:
        """One whole number of GGUF type `kind`."""
        return int(self.number(kinds.SCALARS[kind], what))

    def text(self, what: str, limit: int = MAX_HEADER) -> str:
        """One string: UTF-8, no NUL."""
        length = self.integer(kinds.U64, f"length of a {what}")
        if length > limit:
            raise self.fault(f"{what} is too long", f"{length} bytes", f"at most {limit}")
        self.need(length, what)
        raw = self.buffer[self.position : self.position + length]
        try:
            value = raw.decode()
        except UnicodeDecodeError as error:
            raise self.fault(f"{what} is not UTF-8", repr(raw[:32]), "UTF-8") from error
        if "\0" in value:
            raise self.fault(f"{what} has a NUL byte", repr(raw[:32]), "none")
        self.position += length
        return value


def read_value(c: Cursor, key: str) -> Field:
    """One typed metadata value."""
    start = c.position
    kind = c.integer(kinds.U32, f"type of {key}")
    if kind != kinds.ARRAY:
        return Field(kind, read_scalar(c, kind, key))
    item, value = read_array(c, key)
    return Field(kind, value, item, c.buffer[start : c.position])


def read_scalar(c: Cursor, kind: int, key: str) -> Value:
    """One bool, string or number."""
    if kind == kinds.STRING:
        return c.text(f"value of {key}")
    if kind == kinds.BOOL:
        return read_bools(c, 1, key)[0]
    form = kinds.SCALARS.get(kind)
    if form is None:
        raise c.fault(f"unknown value type of {key}", kind, "0 to 12")
    return c.number(form, f"value of {key}")


def read_bools(c: Cursor, count: int, key: str) -> list[bool]:
    """`count` bytes that are 0 or 1."""
    c.need(count, f"value of {key}")
    raw = c.buffer[c.position : c.position + count]
    if raw.translate(None, b"\0\1"):
        raise c.fault(f"bool of {key} is not 0 or 1", max(raw), "0 or 1")
    c.position += count
    return [bool(b) for b in raw]


def read_array(c: Cursor, key: str) -> tuple[int, Value]:
    """Item type and items of one array; arrays of arrays are refused, as ggml's reader does."""
    item = c.integer(kinds.U32, f"item type of {key}")
    count = c.integer(kinds.U64, f"length of {key}")
    if item == kinds.ARRAY:
        raise c.fault(f"{key} is an array of arrays", "nested array", "a flat array")
    if item == kinds.STRING:
        return item, read_strings(c, count, key)
    if item == kinds.BOOL:
        return item, read_bools(c, count, key)
    dtype = kinds.DTYPES.get(item)
    if dtype is None:
        raise c.fault(f"unknown item type of {key}", item, "0 to 12")
    c.need(count * dtype.itemsize, f"value of {key}")
    values = np.frombuffer(c.buffer, dtype, count, c.position).copy()
    c.position += values.nbytes
    return item, values


def read_strings(c: Cursor, count: int, key: str) -> list[str]:
    """An array of strings. The loop is written out: a vocabulary has half a million of them."""
    c.need(count * 8, f"value of {key}")
    c.strings += count
    if c.strings > MAX_STRINGS:
        raise c.fault(f"too many strings at {key}", c.strings, f"at most {MAX_STRINGS} in a file")
    buffer, end, position = c.buffer, len(c.buffer), c.position
    unpack = struct.Struct("<Q").unpack_from
    values: list[str] = []
    append = values.append
    start = position + 8
    try:
        for _ in range(count):
            start = position + 8
            position = start + unpack(buffer, position)[0]
            if position > end:
                break
            append(buffer[start:position].decode())
    except (struct.error, UnicodeDecodeError):
        pass
    c.position = position
    if len(values) < count:  # the careful reader says what is wrong with this one
        c.position = start - 8
        c.text(f"string {len(values)} of {key}")
    if broken := next((value for value in values if "\0" in value), ""):
        raise c.fault(f"a string of {key} has a NUL byte", repr(broken[:32]), "none")
    return values
