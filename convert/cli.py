"""dflash-convert: read, plan, show or do, report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from .console import HELP, PATH, SHARED, Command, options, progress_bar, result_json
from .conversion import Outcome, plan_conversion, run_plan
from .defects import name_in_file
from .description import describe
from .draft import Draft, read_draft
from .errors import UsageError, command_errors, one_line
from .ggml import type_name
from .heads import unknown_to_llama_cpp
from .hub import resolve
from .options import FIELD_OPTIONS, HUB, TARGET, given_fields, given_sources
from .output import check_output
from .plan import OUTTYPES, ConvertPlan
from .published import recognise
from .signals import interruptible
from .spec import DraftSpec
from .spelling import DIALECTS
from .target import read_target
from .vocabulary import template_note


@click.command("dflash-convert", cls=Command, context_settings=HELP)
@click.argument("source", type=PATH)
@click.argument("output", type=PATH)
@TARGET
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
    help="Type of the matrices; q8_0 is what dflash-quantize --scheme q8_0 gives.",
)
@options(HUB)
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
        source, revision = resolve(
            source, given["revision"], given["subfolder"], quiet=given["quiet"]
        )
        draft = read_draft(source, given_fields(given), given["config"], given["fc"] or "")
        draft = replace(draft, sources={**draft.sources, **given_sources(given)})
        goal = read_target(target, given["pre_tokenizer"]) if target else None
        plan = plan_conversion(draft, goal, given["outtype"], given["dialect"], revision)
        if not given["quiet"]:
            head = unknown_to_llama_cpp(plan.spec) if given["dialect"] == "canonical" else ""
            refusal = f"llama.cpp has no {head} and does not load this file" if head else ""
            show_notes(
                [
                    template_note(plan.fields),
                    *published_notes(draft, plan.spec),
                    refusal,
                    *plan.notes,
                ]
            )
        if given["dry_run"]:
            body = {"plan": plan.to_json() | {"sources": dict(draft.sources)}}
            click.echo(
                result_json("dflash-convert", body) if given["as_json"] else show_plan(plan, draft)
            )
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
        if not given["quiet"]:
            show_notes(outcome.notes)
        click.echo(
            result_json("dflash-convert", {"outcome": outcome_json(outcome)})
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


def published_notes(draft: Draft, spec: DraftSpec) -> list[str]:
    """What differs from the published draft that this one looks like; nothing where it is none, or exactly one."""
    found = recognise(spec, name_in_file(draft))
    return (
        [f"this looks like {found[0].name}, but {difference}" for difference in found[1]]
        if found
        else []
    )


def show_notes(notes: Iterable[str]) -> None:
    """One line each on stderr; empty ones are none."""
    for note in filter(None, notes):
        click.echo(f"note: {note}", err=True)


def show_plan(plan: ConvertPlan, draft: Draft) -> str:
    """What the draft is and where every value came from, then the plan as a table."""
    infos = plan.layout.infos
    rows = [
        f"{infos[t.name].offset:>12}  {t.nbytes:>12}  {type_name(t.type):<5} {'x'.join(map(str, t.shape)):<16} {t.name}"
        f"  <- {t.source.name} ({type_name(t.source.type)})"
        for t in plan.tensors
    ]
    head = f"{'offset':>12}  {'bytes':>12}  type  {'shape':<16} tensor"
    words = [f"{name:<12}{one_line(text, 600)}" for name, text in describe(draft)]
    return "\n".join(
        [*words, head, *rows, f"{plan.layout.size} bytes in all; nothing was written (dry run)"]
    )


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """What was written, as JSON."""
    spec = outcome.plan.spec
    return {
        "output": str(outcome.output), "manifest": str(outcome.manifest), "bytes": outcome.size,
        "tensors": len(outcome.digests), "variant": spec.variant, "spec_sha256": spec.digest(),
        "notes": [*outcome.plan.notes, *outcome.notes],
    }  # fmt: skip


def show_outcome(outcome: Outcome) -> str:
    """What was written, as two lines."""
    spec = outcome.plan.spec
    return (
        f"wrote {outcome.output} ({outcome.size} bytes, {len(outcome.digests)} tensors, {spec.variant}, "
        f"block {spec.block_size}, captures after layers {' '.join(map(str, spec.target_layer_ids))})\n"
        f"      {outcome.manifest}"
    )
