"""dflash-convert and dflash-inspect: read, plan, show or do, report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from .conversion import Outcome, plan_conversion, run_plan
from .draft import read_draft
from .errors import SCHEMA, DflashError, UsageError, command_errors
from .ggml import type_name
from .hub import fetch, is_repository
from .inspection import inspect, render_inspection
from .output import check_output
from .plan import OUTTYPES, ConvertPlan
from .published import by_name, recognise
from .signals import interruptible
from .spec import DraftSpec
from .spelling import DIALECTS
from .target import read_target
from .vocabulary import template_note


def integer_list(
    _: click.Context, __: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """`1,16,31` as numbers."""
    try:
        return None if value is None else tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(
            "expected whole numbers separated by commas, like 1,16,31"
        ) from error


FIELD_OPTIONS = (
    click.option("--published", metavar="NAME", help="Take what the source lost from this published draft."),
    click.option("--config", type=click.Path(path_type=Path), help="config.json to read the fields from."),
    click.option("--fc", type=click.Choice(["transposed", "mislabelled"]), help="Turn an fc that lies the wrong way round, or its shape."),
    click.option("--block-size", type=int, help="Tokens in a block, anchor included."),
    click.option("--mask-token-id", type=int, help="Token of the unknown rows."),
    click.option("--target-layer-ids", callback=integer_list, metavar="I,J,...", help="Captured layers, 0-based, state after the layer."),
    click.option("--rope-theta", type=float, help="RoPE base."),
    click.option("--sliding-window", type=int, help="Window of the sliding layers; 0 for none."),
    click.option("--sliding-layers", callback=integer_list, metavar="0|1,...", help="Which layers slide, one 0 or 1 a layer."),
    click.option("--causal", type=click.Choice(["none", "all", "sliding"]), help="Which layers are causal inside a block."),
)  # fmt: skip
"""What a source may lack; each wins over the source."""

SHARED = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("--quiet", is_flag=True, help="No progress and no notes on stderr."),
)


def options(rows: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    """Several options as one decorator."""

    def decorate(command: Any) -> Any:
        for row in reversed(rows):
            command = row(command)
        return command

    return decorate


def given_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The spec fields that options supply, those of a published draft under those that are given one by one."""
    names = ("block_size", "mask_token_id", "target_layer_ids", "rope_theta", "sliding_window")
    given = by_name(values["published"]).supplied() if values["published"] else {}
    given |= {name: values[name] for name in names if values[name] is not None}
    if values["sliding_layers"] is not None:
        given["sliding_layers"] = tuple(bool(v) for v in values["sliding_layers"])
    if values["causal"] is not None:
        given["causality"] = values["causal"]
    return given


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--target", type=click.Path(path_type=Path), help="The target: a GGUF or a Hugging Face folder."
)
@click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    default="canonical",
    show_default=True,
    help="Whose GGUF to write; llama.cpp loads the canonical one.",
)
@click.option(
    "--outtype",
    type=click.Choice(list(OUTTYPES)),
    default="source",
    show_default=True,
    help="Type of the matrices.",
)
@click.option("--revision", help="Branch, tag or commit of a hub repository.")
@click.option(
    "--pre-tokenizer", help="Name of the target's pre-tokenizer, where its pattern is not known."
)
@options(FIELD_OPTIONS)
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--dry-run", is_flag=True, help="Show the plan and write nothing.")
@options(SHARED)
def main(source: Path, output: Path, target: Path | None, **given: Any) -> None:
    """Convert a DFlash draft into the canonical GGUF.

    SOURCE is a checkpoint folder, a .safetensors file, a GGUF of any dialect, or a hub repository id.

    Example: dflash-convert Qwen3.8-27B-DFlash2 dflash-Qwen3.8-27B-BF16.gguf --target Qwen3.8-27B.gguf
    """
    with command_errors("dflash-convert", as_json=given["as_json"]), interruptible():
        check_names(source, output, target, dry_run=given["dry_run"], overwrite=given["overwrite"])
        source, revision = resolve(source, given["revision"])
        draft = read_draft(source, given_fields(given), given["config"], given["fc"] or "")
        goal = read_target(target, given["pre_tokenizer"]) if target else None
        plan = plan_conversion(draft, goal, given["outtype"], given["dialect"], revision)
        if not given["quiet"]:
            for note in filter(None, [template_note(plan.fields), *published_notes(plan.spec)]):
                click.echo(f"note: {note}", err=True)
        if given["dry_run"]:
            click.echo(show_json("plan", plan.to_json()) if given["as_json"] else show_plan(plan))
            return
        used = {k: v for k, v in given.items() if k not in UNRECORDED and v is not None}
        with progress_bar(sum(t.source.nbytes for t in plan.tensors), quiet=given["quiet"]) as bar:
            outcome = run_plan(
                plan,
                draft,
                goal,
                output,
                options=used,
                overwrite=given["overwrite"],
                progress=bar.update,
            )
        click.echo(
            show_json("outcome", outcome_json(outcome))
            if given["as_json"]
            else show_outcome(outcome)
        )


UNRECORDED = frozenset({"as_json", "quiet", "dry_run", "overwrite", "config"})
"""Options that change no byte of the output, and the one that is a path."""


def check_names(
    source: Path, output: Path, target: Path | None, *, dry_run: bool, overwrite: bool
) -> None:
    """Refuse an output that cannot be meant before anything is read."""
    if output.suffix != ".gguf":
        raise UsageError("the output is not named .gguf", found=output.name, expected="OUT.gguf")
    if not dry_run:
        check_output(output, overwrite=overwrite, inputs=[source, *([target] if target else [])])


def resolve(source: Path, revision: str | None) -> tuple[Path, str]:
    """The source on the disk, and its commit where it came from the hub."""
    if not is_repository(source):
        return source, ""
    snapshot = fetch(str(source), revision)
    return snapshot.folder, snapshot.commit


def published_notes(spec: DraftSpec) -> list[str]:
    """What differs from the published draft that this one looks like; nothing where it is none, or exactly one."""
    found = recognise(spec)
    return (
        [f"this looks like {found[0].name}, but {difference}" for difference in found[1]]
        if found
        else []
    )


def progress_bar(total: int, *, quiet: bool) -> Any:
    """A byte counter on stderr, silent where it would disturb."""
    off = quiet or not sys.stderr.isatty()
    return tqdm(
        total=total,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        file=sys.stderr,
        disable=off,
        leave=False,
    )


def show_json(name: str, body: dict[str, Any], verdict: DflashError | None = None) -> str:
    """The one object of a `--json` run."""
    command = "dflash-inspect" if name == "inspection" else "dflash-convert"
    head = {
        "schema": SCHEMA,
        "command": command,
        "ok": verdict is None,
        "exit_code": verdict.exit_code if verdict else 0,
    }
    return json.dumps(head | {name: body}, indent=2, ensure_ascii=False)


def show_plan(plan: ConvertPlan) -> str:
    """The plan as a table."""
    infos = plan.layout.infos
    rows = [
        f"{infos[t.name].offset:>12}  {t.nbytes:>12}  {type_name(t.type):<5} {'x'.join(map(str, t.shape)):<16} {t.name}"
        f"  <- {t.source.name} ({type_name(t.source.type)})"
        for t in plan.tensors
    ]
    head = f"{'offset':>12}  {'bytes':>12}  type  {'shape':<16} tensor"
    return "\n".join(
        [head, *rows, f"{plan.layout.size} bytes in all; nothing was written (dry run)"]
    )


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """What was written, as JSON."""
    spec = outcome.plan.spec
    return {
        "output": str(outcome.output), "manifest": str(outcome.manifest), "bytes": outcome.size,
        "tensors": len(outcome.digests), "variant": spec.variant, "spec_sha256": spec.digest(),
    }  # fmt: skip


def show_outcome(outcome: Outcome) -> str:
    """What was written, as two lines."""
    spec = outcome.plan.spec
    return (
        f"wrote {outcome.output} ({outcome.size} bytes, {len(outcome.digests)} tensors, {spec.variant}, "
        f"block {spec.block_size}, captures after layers {' '.join(map(str, spec.target_layer_ids))})\n"
        f"      {outcome.manifest}"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--target", type=click.Path(path_type=Path), help="Check whether this is the draft's target."
)
@options(SHARED)
def inspect_main(file: Path, target: Path | None, as_json: bool, quiet: bool) -> None:
    """Say what a draft is, whether it is sound, and whether it fits its target.

    Example: dflash-inspect dflash-Qwen3.8-27B-BF16.gguf --target Qwen3.8-27B.gguf
    """
    with command_errors("dflash-inspect", as_json=as_json):
        inspection = inspect(file, target)
        verdict = inspection.verdict
        if not as_json:
            click.echo(render_inspection(inspection))
            if verdict is not None:
                raise verdict
            return
        click.echo(show_json("inspection", inspection.to_json(), verdict))
        sys.exit(verdict.exit_code if verdict else 0)
