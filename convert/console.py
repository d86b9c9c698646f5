"""What the four commands share on the terminal: their click class, common options, progress, and the head of `--json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from .errors import SCHEMA, DflashError, UsageError, error_json

PATH = click.Path(path_type=Path)
"""An argument or option that names a file or folder; whether it exists is the reader's question."""


class Command(click.Command):
    """A command whose `--json` holds for the command line itself: a usage error is one JSON object, too.

    click prints its own complaints before a command's body runs, as text. Here they become an error like any other.
    """

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run, as click does; exits with 2 where the command line cannot be meant."""
        given = args[0] if args else extra.get("args")
        words = list(sys.argv[1:] if given is None else given)
        if "--json" not in words or not extra.get("standalone_mode", True):
            return super().main(*args, **extra)
        try:
            code = super().main(*args, **(extra | {"standalone_mode": False}))
        except click.ClickException as error:
            fault = UsageError(
                error.format_message().rstrip("."), found=" ".join(words), fix=f"{self.name} --help"
            )
            click.echo(error_json(fault, str(self.name)))
            code = fault.exit_code
        return sys.exit(code if isinstance(code, int) else 0)


def options(rows: Iterable[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Several options as one decorator."""

    def decorate(command: Any) -> Any:
        for row in reversed(list(rows)):
            command = row(command)
        return command

    return decorate


SHARED = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("--quiet", is_flag=True, help="No progress and no notes on stderr."),
)
"""The last options of every command."""

HELP = {"help_option_names": ["-h", "--help"]}
"""context_settings of every command."""


def progress_bar(
    total: int, *, quiet: bool, unit: str = "B", over: Iterable[Any] | None = None
) -> Any:
    """A counter on stderr, silent where it would disturb: of bytes, or of the items of `over`."""
    off = quiet or not sys.stderr.isatty()
    return tqdm(
        over, total=total, unit=unit, unit_scale=unit == "B", unit_divisor=1024, file=sys.stderr, disable=off, leave=False
    )  # fmt: skip


def result_json(
    command: str, body: dict[str, Any], verdict: DflashError | None = None, code: int = 0
) -> str:
    """The one object of a `--json` run that came to its end; `verdict` or `code` is why it does not exit with 0."""
    code = verdict.exit_code if verdict else code
    head = {"schema": SCHEMA, "command": command, "ok": code == 0, "exit_code": code}
    return json.dumps(head | body, indent=2, ensure_ascii=False)
