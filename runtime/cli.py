"""dflash-validate: run a draft for real, count what its target accepts, and say whether it is as good as its reference."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from ..convert.console import HELP, PATH, SHARED, Command, options, progress_bar, result_json
from ..convert.errors import UsageError, command_errors
from ..convert.output import OutputSet, check_output
from ..convert.signals import interruptible
from ..quantize.imatrix import Imatrix, fill_imatrix
from . import files, measure, report
from .engine import Engine, EngineOptions
from .gate import Rules, Verdict, judge
from .importance import importance_of
from .prompts import Prompt, read_prompts
from .record import Limits, Record, record_from_json
from .tokenizer import target_ids

MAX_RECORD = 64 << 20
DEFAULT_MAX_NEW = 128
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Request:
    """The command line, typed."""

    draft: Path
    target: Path
    prompts: str
    reference: str | None
    update_reference: bool
    out: Path | None
    collect_imatrix: Path | None
    overwrite: bool
    kv: str
    ring: int
    kv_type: str
    causal: str
    swa: str
    n_max: int | None
    max_new: int | None
    limit: int | None
    max_loss: float | None
    threads: int
    as_json: bool
    quiet: bool

    def check(self) -> None:
        """Refuse contradictions before any file is opened."""
        if self.update_reference and not self.reference:
            raise UsageError(
                "--update-reference needs --reference",
                fix="say where the reference is to be written",
            )
        if self.ring and self.kv == "full":
            raise UsageError("--ring contradicts --kv full", fix="leave one of them out")
        if self.max_loss is not None and not 0 <= self.max_loss <= 100:  # false for NaN too
            raise UsageError(
                "--max-loss is not a percentage", found=self.max_loss, expected="0 to 100"
            )
        if self.out and self.collect_imatrix and same_place(self.out, self.collect_imatrix):
            raise UsageError("two outputs have one name", found=self.out, expected="two files")
        for path in self.outputs():
            check_output(path, overwrite=self.overwrite, inputs=self.inputs())
        if self.update_reference and self.reference:
            reference = files.find(self.reference, "references", ".json")
            check_output(reference, overwrite=True, inputs=self.models_and_prompts())

    def models_and_prompts(self) -> list[Path]:
        """The files that a run reads whatever it is judged by."""
        return [self.draft, self.target, files.find(self.prompts, "prompts", ".jsonl")]

    def outputs(self) -> list[Path]:
        """The files that --overwrite is about."""
        return [path for path in (self.out, self.collect_imatrix) if path]

    def inputs(self) -> list[Path]:
        """The files that an output must not replace: what the run reads, and the reference."""
        found = [files.find(self.reference, "references", ".json")] if self.reference else []
        return self.models_and_prompts() + found


def choice(*values: str) -> click.Choice[str]:
    """One of `values`."""
    return click.Choice(values)


@click.command("dflash-validate", cls=Command, context_settings=HELP)
@click.argument("draft", type=PATH)
@click.option(
    "--target", type=PATH, required=True, help="GGUF of the target the draft was trained for."
)
@click.option(
    "--prompts", required=True, help="JSONL prompt set: a path or the name of a packaged set."
)
@click.option("--reference", help="Reference record: a path or the name of a packaged one.")
@click.option(
    "--update-reference",
    is_flag=True,
    help="Write this run to --reference instead of judging by it.",
)
@click.option("--out", type=PATH, help="Write the record here.")
@click.option("--collect-imatrix", type=PATH, help="Write an importance matrix of the draft here, for dflash-quantize --imatrix.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Let --out and --collect-imatrix replace a file.")
@click.option(
    "--kv", type=choice("ring", "full"), default="ring", show_default=True, help="Draft KV cache."
)
@click.option(
    "--ring",
    type=click.IntRange(0, 1 << 24),
    default=0,
    help="Rows of the ring; 0: max(2048, window).",
)
@click.option(
    "--kv-type",
    type=choice("f16", "f32"),
    default="f16",
    show_default=True,
    help="Type of the KV caches.",
)
@click.option("--causal", type=choice("file", "none", "all"), default="file", show_default=True, help="Causality inside the block: as the file says by layer, or one for all layers (llama.cpp: none).")  # fmt: skip
@click.option("--swa", type=choice("per_row", "anchored"), default="per_row", show_default=True, help="Where sliding windows are anchored (Lucebox: anchored).")  # fmt: skip
@click.option("--n-max", type=click.IntRange(1), help="Drafted tokens a round at most.  [default: the reference's, else block_size - 1]")  # fmt: skip
@click.option("--max-new", type=click.IntRange(1), help="New tokens a prompt at most.  [default: the reference's, else 128]")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), help="Run the first N prompts only.")
@click.option(
    "--max-loss",
    type=float,
    help="Mean accepted length that may be lost, in percent.  [default: 3]",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=CORES,
    show_default="cores",
    help="CPU threads.",
)
@options(SHARED)
def main(**values: Any) -> None:
    """Run DRAFT with its target over a prompt set, with and without drafting; count, compare, judge.

    The exit code is the verdict: 0 good, 4 worse than the reference or broken, 6 not comparable or not measured.

    Example: dflash-validate dflash-Pair-v1-Q8_0.gguf --target Pair-Target-BF16.gguf --prompts pair --reference pair-v1
    """
    request = Request(**values)
    with command_errors("dflash-validate", as_json=request.as_json), interruptible():
        verdict = validate(request)
    sys.exit(verdict.exit_code)


def validate(request: Request) -> Verdict:
    """Run, judge, print; gives the verdict."""
    request.check()
    prompts = read_prompts(files.find(request.prompts, "prompts", ".jsonl"))[: request.limit]
    path = files.find(request.reference, "references", ".json") if request.reference else None
    judged = path is not None and not request.update_reference
    reference = read_reference(path, request.limit) if path and judged else None
    record, matrix = run(request, prompts, reference)
    verdict = judge(record, reference, rules(request))
    write_outputs(request, record, matrix)
    if path and request.update_reference and verdict.exit_code == 0:
        files.write_text(
            path, record.to_json(), overwrite=True, inputs=request.models_and_prompts()
        )
    words = report.as_json if request.as_json else report.as_text
    text = words(record, verdict, request.reference or "", matrix)
    click.echo(
        text
        if isinstance(text, str)
        else result_json("dflash-validate", text, code=verdict.exit_code)
    )
    return verdict


def same_place(a: Path, b: Path) -> bool:
    """Whether two names lead to one file, there or yet to be written."""
    return a.resolve() == b.resolve()


def write_outputs(request: Request, record: Record, matrix: Imatrix | None) -> None:
    """The record and the importance matrix, where asked for: both appear, or neither."""
    with OutputSet(
        request.outputs(), overwrite=request.overwrite, inputs=request.inputs()
    ) as opened:
        for file in opened:
            if matrix and file.path == request.collect_imatrix:
                fill_imatrix(file, matrix)
            else:
                file.write(record.to_json().encode())


def read_reference(path: Path, limit: int | None) -> Record:
    """The reference at `path`, of its first `limit` prompts."""
    record = record_from_json(files.read_bytes(path, MAX_RECORD), str(path))
    return record.limited(limit) if limit else record


def rules(request: Request) -> Rules:
    """The gate's numbers as asked for."""
    return (
        Rules() if request.max_loss is None else replace(Rules(), max_loss=request.max_loss / 100)
    )


def run(
    request: Request, prompts: tuple[Prompt, ...], reference: Record | None
) -> tuple[Record, Imatrix | None]:
    """The record of the draft over `prompts`, and what its matrices saw where that was asked for."""
    options = EngineOptions(
        **{
            f.name: getattr(request, f.name)
            for f in fields(EngineOptions)
            if hasattr(request, f.name)
        }
    )
    engine = Engine(request.target, request.draft, options)
    assert engine.spec is not None  # it has a draft
    target, block = engine.target_spec, engine.spec.block_size
    same = reference.conditions if reference else None
    limits = Limits(
        n_max=min(request.n_max or (same.n_max if same else block), block - 1),
        max_new=request.max_new or (same.max_new if same else DEFAULT_MAX_NEW),
        context_length=target.context_length,
    )
    ids = target_ids(request.target, prompts, target.vocab_size, target.context_length)
    if request.collect_imatrix:
        engine.collect_inputs()
    both = zip(prompts, ids, strict=True)
    bar = progress_bar(len(ids), quiet=request.quiet, unit="prompt", over=both)
    pairs = measure.run_pairs(engine, bar, limits)
    record = measure.record_of(engine, pairs, limits, request.draft, request.target)
    dataset = files.find(request.prompts, "prompts", ".jsonl").name
    return record, importance_of(engine, dataset) if request.collect_imatrix else None
