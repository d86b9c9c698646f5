"""JSON from a stranger: a size limit, UTF-8 without a mark, no duplicate keys, finite numbers. Pure but for `read_json`."""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import InputError, one_line
from .files import read_limited

MAX_CONFIG = 1 << 20
"""Bytes of a config.json or an index; real ones have a few hundred thousand at most."""
MAX_TOKENIZER = 64 << 20
"""Bytes of a tokenizer.json; the largest known one has 33 MiB."""


def read_json(path: str | os.PathLike[str], limit: int = MAX_CONFIG) -> dict[str, Any]:
    """The object in the file at `path`.

    Raises InputError where the file is absent, larger than `limit` bytes or not one strict JSON object.
    """
    path = Path(path)
    return parse_json(read_limited(path, limit), path)


def parse_json(raw: bytes, where: object) -> dict[str, Any]:
    """The object that `raw` spells; `where` names it in errors.

    Raises InputError for anything but one JSON object with unique keys and finite numbers.
    """

    def fault(what: str, found: object = "", expected: str = "one JSON object") -> InputError:
        return InputError(what, found=one_line(found), where=where, expected=expected)

    if not raw.strip():
        raise fault("JSON is empty", f"{len(raw)} bytes")
    if raw.startswith(b"\xef\xbb\xbf"):
        raise fault("JSON starts with a byte order mark", "EF BB BF", "plain UTF-8")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise fault("JSON is not UTF-8", f"byte {error.start}", "UTF-8") from error

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise fault("JSON has a key twice", twice, "one of each")
        return found

    def constant(name: str) -> Any:
        raise fault("JSON has a number that is not finite", name, "finite numbers")

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else constant(digits)

    try:
        with uncollected():
            value = json.loads(
                text, object_pairs_hook=unique, parse_constant=constant, parse_float=number
            )
    except RecursionError as error:
        raise fault("JSON is nested too deeply", f"{len(raw)} bytes") from error
    except ValueError as error:
        raise fault("not JSON", f"{error}" if raw[:1] in b"{[" else repr(raw[:24])) from error
    if not isinstance(value, dict):
        raise fault("JSON is not an object", type(value).__name__)
    return value


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the cycle collector: JSON has no cycles, and looking for them takes as long as parsing half a million lists."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Section:
    """Typed questions to one JSON object; a wrong type is refused by key and file."""

    def __init__(self, values: dict[str, Any], where: object) -> None:
        self.values = values
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def _get(self, key: str, kinds: tuple[type, ...], expected: str) -> Any:
        value = self.values.get(key)
        wrong_bool = isinstance(value, bool) and bool not in kinds
        if value is not None and (wrong_bool or not isinstance(value, kinds)):
            raise InputError(
                "config value has the wrong type", found=one_line(repr(value)), where=f"{self.where}: {key}", expected=expected
            )  # fmt: skip
        return value

    def integer(self, key: str) -> int | None:
        """A whole number, None where absent or null."""
        value = self._get(key, (int,), "an integer")
        if value is not None and not -(2**63) <= value < 2**63:
            raise InputError(
                "config value is out of range", found=one_line(value), where=f"{self.where}: {key}", expected="64 bits"
            )  # fmt: skip
        return value  # type: ignore[no-any-return]

    def number(self, key: str) -> float | None:
        """A number, None where absent or null."""
        value = self._get(key, (int, float), "a number")
        try:
            return None if value is None else float(value)
        except OverflowError as error:  # an integer of hundreds of digits
            raise InputError(
                "config value is out of range", found=one_line(value), where=f"{self.where}: {key}", expected="a finite number"
            ) from error  # fmt: skip

    def flag(self, key: str) -> bool | None:
        """A bool, None where absent or null."""
        return self._get(key, (bool,), "true or false")  # type: ignore[no-any-return]

    def text(self, key: str) -> str | None:
        """A string, None where absent or null."""
        return self._get(key, (str,), "a string")  # type: ignore[no-any-return]

    def integers(self, key: str) -> list[int] | None:
        """A list of whole numbers, None where absent or null."""
        value = self._get(key, (list,), "a list of integers")
        if value is not None and any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise InputError(
                "config value has the wrong type", found=one_line(value), where=f"{self.where}: {key}", expected="a list of integers"
            )  # fmt: skip
        return value  # type: ignore[no-any-return]

    def texts(self, key: str) -> list[str] | None:
        """A list of strings, None where absent or null."""
        value = self._get(key, (list,), "a list of strings")
        if value is not None and any(not isinstance(v, str) for v in value):
            raise InputError(
                "config value has the wrong type", found=one_line(value), where=f"{self.where}: {key}", expected="a list of strings"
            )  # fmt: skip
        return value  # type: ignore[no-any-return]

    def section(self, key: str) -> Section | None:
        """A nested object, None where absent or null."""
        value = self._get(key, (dict,), "an object")
        return None if value is None else Section(value, f"{self.where}: {key}")
