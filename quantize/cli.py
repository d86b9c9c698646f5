"""dflash-quantize: read, plan, show or do, report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..convert.console import HELP, PATH, SHARED, Command, options, progress_bar, result_json
from ..convert.conversion import manifest_path
from ..convert.errors import InputError, UsageError, command_errors
from ..convert.options import HUB
from ..convert.output import check_output
from ..convert.signals import interruptible
from . import auto
from .imatrix import Imatrix, merge, read_imatrix
from .policy import Override
from .qtypes import BY_NAME
from .quantization import plan_quantization
from .report import outcome_json, plan_json, table
from .schemes import KEEP, Scheme, packaged, parse_file
from .source import open_source
from .verify import verify
from .writer import write_quantized

MAX_THREADS = 256
MAX_SCHEME_BYTES = 1 << 20
WRITING = (
    *auto.SEARCHING,
    "scheme",
    "tensor_types",
    "strict",
    "allow_requantize",
    "overwrite",
    "dry_run",
)
"""Options that have no meaning where nothing is written."""


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


@click.command("dflash-quantize", cls=Command, context_settings=HELP)
@click.argument("source", type=PATH, required=False)
@click.argument("output", type=PATH, required=False)
@options(HUB)
@click.option(
    "--scheme",
    help="A scheme's name, a .toml file of your own, or `auto`: measure which types to give.",
)
@click.option(
    "--target", type=PATH, help="The target: for a checkpoint that is not a GGUF yet, and for --scheme auto, its GGUF."
)  # fmt: skip
@click.option(
    "--prompts",
    metavar="SET",
    help="auto: the prompt set to measure on, a path or a packaged name.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    help="auto: the least loss in this size, such as 40% of the unquantised file, or 800KB.",
)
@click.option(
    "--max-loss",
    metavar="SHARE",
    help="auto: the smallest file that loses no more than this of the accepted length, such as 1%.",
)
@click.option(
    "--imatrix", "imatrices", type=PATH, multiple=True, help="Importance matrix, llama.cpp's GGUF or legacy format; several are merged."
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
    "--verify",
    "verified",
    type=PATH,
    metavar="OUT",
    help="Make OUT again from --source and compare; exit 4 if it differs.",
)
@click.option(
    "--source",
    "verify_source",
    type=PATH,
    metavar="IN",
    help="The source that --verify compares with.",
)
@click.option(
    "--threads", type=click.IntRange(1, MAX_THREADS), help="Worker threads; the bytes do not depend on it.  [default: all cores]"
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--dry-run", is_flag=True, help="Show the plan and write nothing.")
@options(SHARED)
def main(source: Path | None, output: Path | None, **given: Any) -> None:
    """Quantise a DFlash draft, or attest that a quantised one is what its source gives.

    SOURCE is a canonical GGUF, a GGUF of another dialect, or (with --target) a checkpoint or a hub repository id.

    Example: dflash-quantize dflash-Qwen3.8-27B-BF16.gguf dflash-Qwen3.8-27B-Q4_MIX.gguf --scheme q4-mix

    Example: dflash-quantize --verify dflash-Qwen3.8-27B-Q4_MIX.gguf --source dflash-Qwen3.8-27B-BF16.gguf
    """
    with command_errors("dflash-quantize", as_json=given["as_json"]), interruptible():
        given["threads"] = given["threads"] or min(len(os.sched_getaffinity(0)), MAX_THREADS)
        if given["verified"] is None and given["verify_source"] is None:
            quantize(source, output, given)
        else:
            attest(source, output, given)


def quantize(source: Path | None, output: Path | None, given: dict[str, Any]) -> None:
    """The command without --verify: read, plan, show or do, report."""
    if source is None or output is None or given["scheme"] is None:
        raise UsageError(
            "something is missing",
            expected="SOURCE OUTPUT --scheme SCHEME",
            fix="dflash-quantize --help",
        )
    if output.suffix != ".gguf":
        raise UsageError("the output is not named .gguf", found=output.name, expected="OUT.gguf")
    searched = auto.is_asked_for(given)
    prompts = Path(given["prompts"]) if given["prompts"] else None
    inputs = [p for p in (source, given["target"], prompts, *given["imatrices"]) if p]
    if not given["dry_run"]:
        for path in (output, manifest_path(output), *(auto.beside(output) if searched else ())):
            check_output(path, overwrite=given["overwrite"], inputs=inputs)
    imatrix = read_imatrices(given["imatrices"])
    if searched:
        show(*auto.search(source, output, imatrix, given))
        return
    scheme, overrides = find_scheme(given["scheme"]), parse_overrides(given["tensor_types"])
    draft = open_source(
        source, given["target"], given["revision"], given["subfolder"], quiet=given["quiet"]
    )
    plan = plan_quantization(
        draft, scheme, overrides, strict=given["strict"], allow_requantize=given["allow_requantize"]
    )  # fmt: skip
    if given["dry_run"]:
        show(plan_json(plan) if given["as_json"] else table(plan), "plan")
        return
    options = {"scheme": scheme.name, "tensor_types": list(given["tensor_types"])}
    with progress_bar(plan.totals()["source_bytes"], quiet=given["quiet"]) as bar:
        results = write_quantized(
            draft, plan, output, threads=given["threads"], imatrix=imatrix, options=options,
            overwrite=given["overwrite"], progress=bar.update,
        )  # fmt: skip
    body = {"output": str(output), "manifest": str(manifest_path(output))} | outcome_json(
        plan, results
    )
    show(body if given["as_json"] else f"{table(plan, results)}\nwrote {output}", "outcome")


def attest(source: Path | None, output: Path | None, given: dict[str, Any]) -> None:
    """The command with --verify: make the file again, compare, say so."""
    path, origin = given["verified"], given["verify_source"]
    odd = [name for name in WRITING if given[name]]
    if path is None or origin is None or source or output or odd:
        raise UsageError(
            "--verify goes with --source, and with nothing that chooses types or writes", found=" ".join(f"--{n.replace('_', '-')}" for n in odd),
            expected="--verify OUT --source IN [--imatrix FILE]", fix="the types are those of OUT, and nothing is written",
        )  # fmt: skip
    draft = open_source(
        origin, given["target"], given["revision"], given["subfolder"], quiet=given["quiet"]
    )
    with progress_bar(sum(t.source.nbytes for t in draft.tensors), quiet=given["quiet"]) as bar:
        verdict = verify(
            path, draft, read_imatrices(given["imatrices"]), threads=given["threads"], progress=bar.update
        )  # fmt: skip
    verdict.raise_if_different(path)
    body = verdict.to_json()
    show(
        body
        if given["as_json"]
        else f"{path} is what {origin} gives: {body['tensors']} tensors equal",
        "verdict",
    )


def read_imatrices(paths: Sequence[Path]) -> Imatrix | None:
    """The importance matrix that `paths` make together, None for none."""
    parts = [read_imatrix(path) for path in paths]
    return merge(parts) if len(parts) > 1 else parts[0] if parts else None


def show(body: dict[str, Any] | str, name: str) -> None:
    """The result on stdout: one JSON object, or text."""
    if isinstance(body, dict):
        body = result_json("dflash-quantize", {name: body})
    click.echo(body)
