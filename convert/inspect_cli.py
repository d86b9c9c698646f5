"""dflash-inspect: read, find what is wrong, say so."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .console import HELP, PATH, SHARED, Command, options, result_json
from .errors import command_errors
from .hub import resolve
from .inspection import inspect, render_inspection
from .options import REVISION, TARGET


@click.command("dflash-inspect", cls=Command, context_settings=HELP)
@click.argument("file", type=PATH)
@TARGET
@REVISION
@options(SHARED)
def main(
    file: Path, target: Path | None, revision: str | None, *, as_json: bool, quiet: bool
) -> None:
    """Say what a draft is, whether it is sound, and whether it fits its target.

    FILE is a GGUF of any dialect, a checkpoint folder, a .safetensors file or a hub repository id.

    Example: dflash-inspect dflash-Qwen3.8-27B-BF16.gguf --target Qwen3.8-27B.gguf
    """
    with command_errors("dflash-inspect", as_json=as_json):
        inspection = inspect(resolve(file, revision, quiet=quiet)[0], target)
        verdict = inspection.verdict
        if not as_json:
            click.echo(render_inspection(inspection))
            if verdict is not None:
                raise verdict
            return
        click.echo(result_json("dflash-inspect", {"inspection": inspection.to_json()}, verdict))
        sys.exit(verdict.exit_code if verdict else 0)
