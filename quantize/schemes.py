"""Schemes as data: the rows of `schemes.toml` or of a user's file, every one checked before use.

Parsing is pure; `packaged` reads the one table that ships beside this module.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ..convert.errors import InputError
from .qtypes import BY_NAME

CONDITIONS = ("", "tied", "gqa4", "first-two", "first-16th", "more-bits")
COUNTS = ("tensors", "blocks")
KEEP = "keep"
"""The type name that leaves a tensor as it is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a scheme."""

    match: tuple[str, ...]
    """Globs over the whole tensor name."""
    type: str
    """A type name, or KEEP."""
    when: str = ""
    """One of CONDITIONS, empty for always."""
    count: str = "tensors"
    """One of COUNTS: what the numbered conditions count."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Which type each matrix gets."""

    name: str
    default: str
    file_type: int | None = None
    """`general.file_type` of the output; None for that of the type that most weights get."""
    rules: tuple[Rule, ...] = ()
    summary: str = ""


@cache
def packaged() -> Mapping[str, Scheme]:
    """The schemes that ship with the package, by name."""
    text = resources.files(__package__).joinpath("schemes.toml").read_text()
    return {
        name: parse_scheme(name, table, "schemes.toml")
        for name, table in tomllib.loads(text).items()
    }


def parse_file(text: str, where: str) -> Scheme:
    """The one scheme of a user's file: a table with a name of its own, or the bare fields.

    Raises InputError for anything that is not a sound scheme.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("the scheme file is not TOML", found=error, where=where) from error
    except RecursionError:
        raise InputError("the scheme file is nested too deeply", where=where) from None
    if "default" in tables:
        return parse_scheme("custom", tables, where)
    if len(tables) != 1:
        raise InputError(
            "a scheme file holds one scheme", found=f"{len(tables)} tables", where=where
        )
    return parse_scheme(*next(iter(tables.items())), where)


def parse_scheme(name: str, table: Any, where: str) -> Scheme:
    """One scheme from its TOML table. Raises InputError naming the field that is wrong."""
    where = f"{where}: {name}"
    fields = {"summary": str, "file_type": int, "default": str, "rules": list}
    checked(table, fields, {"default"}, where)
    rules = tuple(
        parse_rule(row, f"{where}: rule {i}") for i, row in enumerate(table.get("rules", []))
    )
    file_type = table.get("file_type")
    if file_type is not None and not 0 <= file_type < 2**16:
        raise InputError(
            "file_type is not usable", found=file_type, where=where, expected="0 to 65535"
        )
    return Scheme(
        name, known_type(table["default"], where), file_type, rules, table.get("summary", "")
    )


def parse_rule(row: Any, where: str) -> Rule:
    """One rule from its TOML table. Raises InputError naming the field that is wrong."""
    fields = {"match": (str, list), "type": str, "when": str, "count": str}
    checked(row, fields, {"match", "type"}, where)
    globs = (row["match"],) if isinstance(row["match"], str) else tuple(row["match"])
    if not globs or not all(isinstance(glob, str) and 0 < len(glob) <= 256 for glob in globs):
        raise InputError("match is not a glob or a list of globs", found=row["match"], where=where)
    when, count = row.get("when", ""), row.get("count", "tensors")
    for value, allowed in ((when, CONDITIONS), (count, COUNTS)):
        if value not in allowed:
            raise InputError(
                "no such condition",
                found=value,
                where=where,
                expected=" ".join(filter(None, allowed)),
            )
    return Rule(globs, known_type(row["type"], where), when, count)


def checked(table: Any, fields: Mapping[str, Any], required: set[str], where: str) -> None:
    """Raise InputError unless `table` has the required fields, no other than known ones, and of the right types."""
    if not isinstance(table, dict):
        raise InputError("not a table", found=type(table).__name__, where=where)
    for name in required - table.keys():
        raise InputError("a field is missing", found=sorted(table), where=where, expected=name)
    for name, value in table.items():
        if name not in fields:
            raise InputError("unknown field", found=name, where=where, expected=" ".join(fields))
        if not isinstance(value, fields[name]) or isinstance(value, bool):
            raise InputError(
                "a field has the wrong type", found=repr(value), where=f"{where}: {name}"
            )


def known_type(name: str, where: str) -> str:
    """`name` if it is a type or KEEP. Raises InputError otherwise."""
    if name != KEEP and name not in BY_NAME:
        raise InputError(
            "no such type", found=name, where=where, expected=" ".join(sorted([KEEP, *BY_NAME]))
        )
    return name
