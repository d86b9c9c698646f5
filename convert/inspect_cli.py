"""dflash-inspect: read, find what is wrong, say so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .console import HELP, PATH, SHARED, Command, options, progress_bar, result_json
from .description import render_inspection
from .errors import command_errors
from .hub import resolve
from .inspection import Inspection, inspect
from .options import HUB, TARGET
from .signals import interruptible


@click.command("dflash-inspect", cls=Command, context_settings=HELP)
@click.argument("file", type=PATH)
@TARGET
@options(HUB)
@click.option("--config", type=PATH, help="config.json of the checkpoint it was made of: what differs is a defect.")  # fmt: skip
@click.option("--published", default="", metavar="NAME", help="The published draft that it is: what differs is a defect.")  # fmt: skip
@click.option("--weights", is_flag=True, help="Read every weight and find NaN and infinity, by tensor and index.")  # fmt: skip
@options(SHARED)
def main(file: Path, as_json: bool, **given: Any) -> None:
    """Say what a draft is, whether it is sound, and whether it fits its target.

    FILE is a GGUF of any dialect, a checkpoint folder, a .safetensors file or a hub repository id.

    Example: dflash-inspect dflash-Qwen3.8-27B-BF16.gguf --target Qwen3.8-27B.gguf
    """
    with command_errors("dflash-inspect", as_json=as_json), interruptible():
        found = look(file, given)
        verdict = found.verdict
        if not as_json:
            click.echo(render_inspection(found))
            if verdict is not None:
                raise verdict
            return
        click.echo(result_json("dflash-inspect", {"inspection": found.to_json()}, verdict))
        sys.exit(verdict.exit_code if verdict else 0)


def look(file: Path, given: dict[str, Any]) -> Inspection:
    """The inspection, with a progress bar while weights are read."""
    source, _ = resolve(file, given["revision"], given["subfolder"], quiet=given["quiet"])
    more = {"config": given["config"], "published": given["published"]}
    if not given["weights"]:
        return inspect(source, given["target"], **more)
    with progress_bar(weight_bytes(source), quiet=given["quiet"]) as bar:
        return inspect(source, given["target"], **more, weights=bar.update)


def weight_bytes(source: Path) -> int:
    """About the bytes that reading every weight takes."""
    files = source.glob("*.safetensors") if source.is_dir() else [source]
    return sum(f.stat().st_size for f in files if f.is_file())
