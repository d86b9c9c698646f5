"""A GGUF metadata value with its type: the constructors, the bytes, and the typed questions. Pure.

Value types keep the format's numbers. An array keeps its item type, because 32-bit and 64-bit readers differ
in what they accept.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from .errors import InputError

Value: TypeAlias = Any
"""bool, int, float, str, list[str] or list[bool]; a numeric array is a 1-D NumPy array."""

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

NAMES = (
    "u8",
    "i8",
    "u16",
    "i16",
    "u32",
    "i32",
    "f32",
    "bool",
    "string",
    "array",
    "u64",
    "i64",
    "f64",
)

SCALARS: dict[int, struct.Struct] = {
    kind: struct.Struct("<" + code)
    for kind, code in zip(
        (U8, I8, U16, I16, U32, I32, F32, U64, I64, F64), "BbHhIifQqd", strict=True
    )
}
"""How one number lies in the file; bool is a byte 0 or 1, read apart."""

DTYPES: dict[int, np.dtype[Any]] = {
    kind: np.dtype("<" + code)
    for kind, code in zip(
        SCALARS, ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u8", "i8", "f8"), strict=True
    )
}

INTEGERS = frozenset({U8, I8, U16, I16, U32, I32, U64, I64})


@dataclass(frozen=True, slots=True)
class Field:
    """One value and how the file types it."""

    type: int
    value: Value
    item: int = 0
    """Type of the items where `type` is ARRAY."""
    raw: bytes = field(default=b"", repr=False, compare=False)
    """The value as a file spells it, so that half a million strings are encoded once; may be empty."""

    def type_name(self) -> str:
        """`u32`, `array of string`, ..."""
        return f"array of {NAMES[self.item]}" if self.type == ARRAY else NAMES[self.type]


def u32(value: int) -> Field:
    """A 32-bit size or id."""
    return Field(U32, value)


def f32(value: float) -> Field:
    """A single-precision number."""
    return Field(F32, float(np.float32(value)))


def boolean(value: bool) -> Field:
    """A flag."""
    return Field(BOOL, value)


def text(value: str) -> Field:
    """A UTF-8 string."""
    return Field(STRING, value)


def i32s(values: Sequence[int]) -> Field:
    """An array of 32-bit signed integers."""
    return Field(ARRAY, np.asarray(values, dtype=DTYPES[I32]), I32)


def booleans(values: Sequence[bool]) -> Field:
    """An array of flags."""
    return Field(ARRAY, list(values), BOOL)


def texts(values: Sequence[str]) -> Field:
    """An array of UTF-8 strings."""
    made = Field(ARRAY, list(values), STRING)
    return replace(made, raw=encode(made))


def encode_text(value: str) -> bytes:
    """Length and UTF-8 bytes."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def encode_items(kind: int, value: Value) -> bytes:
    """The bytes of array items of type `kind`."""
    if kind == STRING:
        raws = [v.encode() for v in value]
        lengths = map(struct.Struct("<Q").pack, map(len, raws))
        return b"".join(chain.from_iterable(zip(lengths, raws, strict=True)))
    if kind == BOOL:
        return bytes(bool(v) for v in value)
    return np.ascontiguousarray(value, dtype=DTYPES[kind]).tobytes()


def encode(field: Field) -> bytes:
    """The type number and bytes of a value, as they follow the key in the file."""
    if field.raw:
        return field.raw
    head = struct.pack("<I", field.type)
    if field.type == STRING:
        return head + encode_text(field.value)
    if field.type == BOOL:
        return head + bytes([bool(field.value)])
    if field.type == ARRAY:
        head += struct.pack("<IQ", field.item, len(field.value))
        return head + encode_items(field.item, field.value)
    return head + SCALARS[field.type].pack(field.value)


class Questions:
    """Typed questions to the metadata of one file; a wrong type is refused by key and file.

    Each takes the key and returns None where the key is absent.
    """

    def __init__(self, fields: Mapping[str, Field], where: object) -> None:
        self.fields = fields
        self.where = where

    def _wrong(self, key: str, expected: str) -> InputError:
        field = self.fields[key]
        shown = (
            field.type_name() if field.type == ARRAY else f"{field.value!r} ({field.type_name()})"
        )
        return InputError(
            "metadata value has the wrong type", found=shown, where=f"{self.where}: {key}", expected=expected
        )  # fmt: skip

    def integer(self, key: str) -> int | None:
        """A whole number of any width."""
        field = self.fields.get(key)
        if field is None:
            return None
        if field.type not in INTEGERS:
            raise self._wrong(key, "an integer")
        return int(field.value)

    def number(self, key: str) -> float | None:
        """A finite number, integer or float."""
        field = self.fields.get(key)
        if field is None:
            return None
        if field.type not in INTEGERS | {F32, F64} or not math.isfinite(field.value):
            raise self._wrong(key, "a finite number")
        # The shortest decimal that means the same float32: 1e-6 is written, 1e-6 is read.
        return float(str(np.float32(field.value))) if field.type == F32 else float(field.value)

    def flag(self, key: str) -> bool | None:
        """A bool."""
        field = self.fields.get(key)
        if field is None:
            return None
        if field.type != BOOL:
            raise self._wrong(key, "a bool")
        return bool(field.value)

    def text(self, key: str) -> str | None:
        """A string."""
        field = self.fields.get(key)
        if field is None:
            return None
        if field.type != STRING:
            raise self._wrong(key, "a string")
        return str(field.value)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """An array of whole numbers."""
        field = self.fields.get(key)
        if field is None:
            return None
        if field.type != ARRAY or field.item not in INTEGERS:
            raise self._wrong(key, "an array of integers")
        return tuple(int(v) for v in field.value)

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """An array of bools (old writers used integers 0 and 1)."""
        field = self.fields.get(key)
        if field is None:
            return None
        if field.type != ARRAY or field.item not in INTEGERS | {BOOL}:
            raise self._wrong(key, "an array of bools")
        if any(v not in (0, 1) for v in field.value):
            raise self._wrong(key, "an array of 0 and 1")
        return tuple(bool(v) for v in field.value)

    def texts(self, key: str) -> list[str] | None:
        """An array of strings."""
        field = self.fields.get(key)
        if field is None:
            return None
        if field.type != ARRAY or field.item != STRING:
            raise self._wrong(key, "an array of strings")
        return list(field.value)
