"""JSON from strangers as frozen dataclasses: every field present, none unknown, each of its declared type.

Pure. Knows Python's type hints, not what the fields mean: ranges are checked by the dataclass that has them.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, TypeVar

from ..convert.errors import InputError, one_line

T = TypeVar("T")


def decode(cls: type[T], value: Any, where: str) -> T:
    """`value` (parsed JSON) as an instance of the dataclass `cls`.

    Fields may be int, float, str, bool, None unions, tuples, dict[str, ...], object and dataclasses of these.
    Raises InputError with the path of the field at fault.
    """
    return typing.cast(T, _read(cls, value, where))


def _read(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`, chosen by the shape of the hint."""
    if is_dataclass(kind):
        return _read_fields(typing.cast(type, kind), value, where)
    origin = typing.get_origin(kind)
    if origin is None:
        return _read_scalar(kind, value, where)
    return _GENERIC[origin](typing.get_args(kind), value, where)


def _read_fields(cls: type, value: Any, where: str) -> Any:
    hints = typing.get_type_hints(cls)
    names = {f.name for f in fields(cls)}
    if not isinstance(value, dict):
        _wrong(value, where, "an object")
    for what, odd in (("is missing", names - set(value)), ("is not known", set(value) - names)):
        if odd:
            raise InputError(
                f"a field {what}", where=where, found=", ".join(map(one_line, sorted(odd)))
            )
    return cls(
        **{name: _read(hints[name], value[name], f"{where}.{name}") for name in sorted(names)}
    )


def _read_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in args:
        return None
    return _read(next(a for a in args if a is not type(None)), value, where)


def _read_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        _wrong(value, where, "a list")
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
    if len(kinds) != len(value):
        _wrong(value, where, f"a list of {len(kinds)}")
    return tuple(
        _read(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True))
    )


def _read_dict(args: tuple[Any, ...], value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _wrong(value, where, "an object")
    return {k: _read(args[1], v, f"{where}.{one_line(k, 40)}") for k, v in value.items()}


_GENERIC: dict[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    types.UnionType: _read_union,
    typing.Union: _read_union,
    tuple: _read_tuple,
    dict: _read_dict,
}


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is object:
        return value
    if kind is float and type(value) in (int, float):
        if not math.isfinite(value):
            _wrong(value, where, "a finite number")
        return float(value)
    if kind is str and isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            _wrong(value, where, "Unicode text without half surrogate pairs")
    if type(value) is not kind:  # bool is an int to isinstance, not to us
        _wrong(
            value, where, {"str": "a string", "int": "an integer"}.get(kind.__name__, kind.__name__)
        )
    return value


def _wrong(value: Any, where: str, expected: str) -> NoReturn:
    raise InputError(
        "a field is of the wrong type",
        where=where,
        found=one_line(repr(value), 60),
        expected=expected,
    )
