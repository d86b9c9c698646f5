"""dflash-quantize: read, plan, show or do, report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from ..convert.conversion import manifest_path
from ..convert.errors import SCHEMA, InputError, UsageError, command_errors
from ..convert.gguf_writer import GgufWriter
from ..convert.output import OutputSet, check_output
from ..convert.signals import interruptible
from .policy import Override
from .qtypes import BY_NAME
from .quantization import QuantPlan, plan_quantization
from .report import manifest, outcome_json, plan_json, table
from .schemes import KEEP, Scheme, packaged, parse_file
from .source import Source, open_source
from .stream import Result, quantize_tensors

MAX_THREADS = 256
MAX_SCHEME_BYTES = 1 << 20


def find_scheme(name: str) -> Scheme:
    """The packaged scheme `name`, or the one in the file of that name."""
    if name in packaged():
        return packaged()[name]
    path = Path(name)
    if path.suffix != ".toml":
        raise UsageError(
            "no such scheme", found=name, where="--scheme", expected=f"{' '.join(packaged())}, or a .toml file"
        )  # fmt: skip
    if not path.is_file():
        raise InputError("the scheme file does not exist", where=path)
    raw = path.read_bytes()[: MAX_SCHEME_BYTES + 1]
    if len(raw) > MAX_SCHEME_BYTES:
        raise InputError(
            "the scheme file is too large", where=path, expected=f"{MAX_SCHEME_BYTES} bytes"
        )
    try:
        return parse_file(raw.decode(), path.name)
    except UnicodeDecodeError as error:
        raise InputError("the scheme file is not UTF-8", found=error, where=path) from error


def parse_overrides(given: Sequence[str]) -> list[Override]:
    """`PATTERN=TYPE` options as overrides."""
    overrides = []
    for text in given:
        pattern, _, name = text.rpartition("=")
        if not pattern or (name != KEEP and name not in BY_NAME):
            raise UsageError(
                "not a tensor type", found=text, where="--tensor-type", expected=f"PATTERN=TYPE, TYPE one of {KEEP} {' '.join(BY_NAME)}"
            )  # fmt: skip
        overrides.append(Override(pattern, name))
    return overrides


def run(
    source: Source, plan: QuantPlan, output: Path, options: dict[str, Any], *, overwrite: bool, threads: int, quiet: bool
) -> list[Result]:  # fmt: skip
    """Write the GGUF and its manifest; both appear, or neither."""
    sidecar = manifest_path(output)
    files = OutputSet([sidecar, output], overwrite=overwrite, inputs=source.paths)
    off = quiet or not sys.stderr.isatty()
    total = sum(t.span.nbytes for t in plan.tensors)
    with files as (manifest_file, gguf_file), tqdm(
        total=total, unit="B", unit_scale=True, unit_divisor=1024, file=sys.stderr, disable=off, leave=False
    ) as bar:  # fmt: skip
        writer = GgufWriter(gguf_file, plan.layout)
        results = quantize_tensors(plan, writer.write, threads=threads, progress=bar.update)
        writer.finish()
        body = manifest(output.name, source, plan, results, options)
        manifest_file.write((json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())
    return results


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--scheme", required=True, help="A scheme's name, or a .toml file of your own.")
@click.option(
    "--target", type=click.Path(path_type=Path), help="The target; needed for a checkpoint that is not a GGUF yet."
)  # fmt: skip
@click.option(
    "--tensor-type", "tensor_types", multiple=True, metavar="PATTERN=TYPE",
    help="Type of the tensors whose name the glob matches; wins over the scheme. `keep` leaves them. Repeatable.",
)  # fmt: skip
@click.option(
    "--strict", is_flag=True, help="Refuse when a row's length forbids the scheme's type."
)
@click.option("--allow-requantize", is_flag=True, help="Take a source that is quantised already.")
@click.option(
    "--threads", type=click.IntRange(1, MAX_THREADS), help="Worker threads; the bytes do not depend on it.  [default: all cores]"
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--dry-run", is_flag=True, help="Show the plan and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--quiet", is_flag=True, help="No progress and no notes on stderr.")
def main(
    source: Path, output: Path, scheme: str, target: Path | None, tensor_types: tuple[str, ...], **given: Any
) -> None:  # fmt: skip
    """Quantise a DFlash draft.

    SOURCE is a canonical GGUF, a GGUF of another dialect, or (with --target) a checkpoint.

    Example: dflash-quantize dflash-Qwen3.8-27B-BF16.gguf dflash-Qwen3.8-27B-Q4_MIX.gguf --scheme q4-mix
    """
    with command_errors("dflash-quantize", as_json=given["as_json"]), interruptible():
        if output.suffix != ".gguf":
            raise UsageError(
                "the output is not named .gguf", found=output.name, expected="OUT.gguf"
            )
        chosen, overrides = find_scheme(scheme), parse_overrides(tensor_types)
        if not given["dry_run"]:
            check_output(
                output, overwrite=given["overwrite"], inputs=[source, *([target] if target else [])]
            )
        draft = open_source(source, target)
        plan = plan_quantization(
            draft,
            chosen,
            overrides,
            strict=given["strict"],
            allow_requantize=given["allow_requantize"],
        )
        if given["dry_run"]:
            show(plan_json(plan) if given["as_json"] else table(plan), "plan")
            return
        options = {"scheme": chosen.name, "tensor_types": list(tensor_types)}
        threads = given["threads"] or min(len(os.sched_getaffinity(0)), MAX_THREADS)
        results = run(
            draft,
            plan,
            output,
            options,
            overwrite=given["overwrite"],
            threads=threads,
            quiet=given["quiet"],
        )
        body = {"output": str(output), "manifest": str(manifest_path(output))} | outcome_json(
            plan, results
        )
        show(body if given["as_json"] else f"{table(plan, results)}\nwrote {output}", "outcome")


def show(body: dict[str, Any] | str, name: str) -> None:
    """The result on stdout: one JSON object, or text."""
    if isinstance(body, dict):
        head = {"schema": SCHEMA, "command": "dflash-quantize", "ok": True}
        body = json.dumps(head | {name: body}, indent=2, ensure_ascii=False)
    click.echo(body)
