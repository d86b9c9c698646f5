"""The errors of all commands: what happened, found, where, expected, fix, and the exit code that says so.

One error type a kind of fault; the exit code is a class attribute, so that a verdict never depends on
who prints the message. `command_errors` is the one place where an error becomes output.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

SCHEMA = 1
"""Number of the JSON shape that commands print; it grows when a field changes its meaning."""


class DflashError(Exception):
    """A fault with a name: `what` went wrong, what was `found`, `where`, what was `expected`, and the `fix`.

    `found`, `where`, `expected` and `fix` may be empty where there is nothing true to say; `where` names
    file, key or tensor, and offset.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        found: object = "",
        where: object = "",
        expected: object = "",
        fix: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.found = str(found)
        self.where = str(where)
        self.expected = str(expected)
        self.fix = fix

    def parts(self) -> dict[str, str]:
        """The non-empty parts in print order, `what` first."""
        names = ("what", "found", "where", "expected", "fix")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def __str__(self) -> str:
        parts = self.parts()
        what = parts.pop("what")
        return "; ".join([what, *(f"{name} {value}" for name, value in parts.items())])


class UsageError(DflashError):
    """The command line asks for something that cannot be meant (exit 2)."""

    exit_code = 2


class InputError(DflashError):
    """The input is not what it claims to be (exit 3)."""

    exit_code = 3


class VerdictError(DflashError):
    """It ran, and the verdict is no (exit 4)."""

    exit_code = 4


class EnvironmentFault(DflashError):
    """The output cannot be written, or the environment lacks something (exit 5)."""

    exit_code = 5


class NotComparableError(DflashError):
    """Two records cannot be compared, or nothing was measured (exit 6)."""

    exit_code = 6


class InterruptedRun(DflashError):
    """A signal ended the run; outputs are as they were (exit 1)."""


def one_line(value: object, limit: int = 120) -> str:
    """`value` as one printable line of at most `limit` characters: text from a stranger's file is data."""
    text = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in str(value)
    )
    return text if len(text) <= limit else text[: limit - 3] + "..."


def render(error: DflashError) -> str:
    """The error as the terminal shows it: what, found and where in one line, then what was expected and the fix."""
    parts = error.parts()
    what = one_line(parts.pop("what"), 200)
    place = "".join(
        f"; {n} {one_line(parts.pop(n), 400)}" for n in ("found", "where") if n in parts
    )
    return "\n".join(
        [f"error: {what}{place}", *(f"  {n:<9} {one_line(v, 400)}" for n, v in parts.items())]
    )


def error_json(error: DflashError, command: str) -> str:
    """The error as the one JSON object of a `--json` run."""
    body = {"schema": SCHEMA, "command": command, "ok": False, "exit_code": error.exit_code}
    return json.dumps(body | {"error": error.parts()}, indent=2, ensure_ascii=False)


@contextmanager
def command_errors(command: str, *, as_json: bool) -> Iterator[None]:
    """Turn an exception of the command body into its message and exit code.

    A `DflashError` exits with its own code, an `OSError` with 5, anything else with 1 and a traceback on
    stderr. With `as_json` stdout still carries exactly one object.
    """
    try:
        yield
    except DflashError as error:
        fault = error
    except MemoryError:
        fault = EnvironmentFault("out of memory", fix="free memory, or lower --threads")
    except OSError as error:
        fault = EnvironmentFault(
            f"the system refused: {error.strerror or error}",
            where=error.filename or "",
            found=f"errno {error.errno}",
        )
    except Exception as error:  # a fault of ours: say so, with the trace
        traceback.print_exc(file=sys.stderr)
        fault = DflashError(
            f"internal error: {type(error).__name__}: {error}",
            fix="please report this with the trace above",
        )
    else:
        return
    if as_json:
        print(error_json(fault, command))  # noqa: T201 - the result of a --json run
    print(render(fault), file=sys.stderr)  # noqa: T201 - the one place that prints errors
    sys.exit(fault.exit_code)
