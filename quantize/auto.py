"""The command with --scheme auto: measure, choose, then write as with any scheme, with the scheme found and the log beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..convert.console import progress_bar
from ..convert.conversion import manifest_path
from ..convert.errors import UsageError, VerdictError
from ..convert.weights import damaged
from . import found
from .imatrix import Imatrix
from .quantization import match_importance, plan_quantization
from .report import outcome_json, table
from .schemes import packaged
from .search import Assignment, Goal, Outcome, Search, most_measurements, source_of
from .source import open_source
from .writer import write_quantized

AUTO = "auto"
"""The scheme that is searched for."""
SEARCHING = ("prompts", "max_size", "max_loss")
"""Options that have no meaning without a search."""


def is_asked_for(given: dict[str, Any]) -> bool:
    """Whether the options ask for a search. Raises UsageError for what a search lacks, or only a search understands."""
    asked: bool = given["scheme"] == AUTO
    odd = [f"--{name.replace('_', '-')}" for name in SEARCHING if given[name]]
    if not asked and odd:
        raise UsageError(
            "only --scheme auto searches", found=" ".join(odd), expected="--scheme auto"
        )
    limits = [name for name in ("max_size", "max_loss") if given[name]]
    if asked and (len(limits) != 1 or not given["target"] or not given["prompts"]):
        raise UsageError(
            "a search needs one limit, the target and prompts", found=" ".join(odd) or "none of them",
            expected="--max-size SIZE or --max-loss SHARE, --target TARGET.gguf --prompts SET",
        )  # fmt: skip
    if asked and given["tensor_types"]:
        raise UsageError("--tensor-type contradicts --scheme auto", fix="leave one of them out")
    return asked


def beside(output: Path) -> tuple[Path, Path]:
    """Where the scheme that a search found goes, and its log."""
    return output.with_suffix(".scheme.toml"), output.with_suffix(".search.json")


def search(
    source: Path, output: Path, imatrix: Imatrix | None, given: dict[str, Any]
) -> tuple[dict[str, Any] | str, str]:
    """Search and write, or with `dry_run` say what would be measured: what to show, and its name."""
    from . import replayed  # the runtime, which nothing else here needs

    quiet = given["quiet"]
    if source.is_dir():
        raise UsageError(
            "a search runs the draft, so it has to be canonical", found="a checkpoint", where=source,
            expected="a canonical GGUF", fix="dflash-convert it first",
        )  # fmt: skip
    draft = open_source(source, None, given["revision"], given["subfolder"], quiet=quiet)
    for damage in damaged(t.source for t in draft.tensors):
        raise damage.error()
    whole = plan_quantization(draft, packaged()["q8_0"])
    importance = match_importance(whole, imatrix.importance(), imatrix.where) if imatrix else {}
    request = replayed.Request(
        draft.path, given["target"], given["prompts"], importance,
        given["max_size"], given["max_loss"], given["threads"],
    )  # fmt: skip
    plan = replayed.prepare(request, lambda scheme: plan_quantization(draft, scheme).layout.size)
    if given["dry_run"]:
        body = found.plan_json(plan)
        return (body if given["as_json"] else found.plan_text(body)), "search"
    with progress_bar(sum(most_measurements(plan.groups, plan.goal)), quiet=quiet, unit="run") as bar:  # fmt: skip
        outcome = Search(plan.groups, plan.probe, plan.judge, lambda _: bar.update(1)).run(
            plan.goal
        )
    refuse_unreached(plan.goal, outcome, source_of(plan.groups))
    asked = {name: given[name] for name in SEARCHING if given[name]}
    asked["prompts"] = Path(given["prompts"]).name  # a manifest has no paths
    scheme = found.scheme_of(plan.groups, outcome.assignment)
    body = found.outcome_json(plan, outcome)
    texts = (
        found.toml(scheme, found.summary(body)),
        found.log_json(plan, outcome, asked, [p.name for p in imatrix.paths] if imatrix else []),
    )
    quantized = plan_quantization(draft, scheme)
    with progress_bar(quantized.totals()["source_bytes"], quiet=quiet) as bar:
        results = write_quantized(
            draft, quantized, output, threads=given["threads"], imatrix=imatrix, options={"scheme": AUTO} | asked,
            beside=dict(zip(beside(output), texts, strict=True)), overwrite=given["overwrite"], progress=bar.update,
        )  # fmt: skip
    if not given["as_json"]:
        names = " and ".join(path.name for path in beside(output))
        return f"{table(quantized, results)}\n{found.summary(body)}\nwrote {output}, {names}", ""
    files = {"output": str(output), "manifest": str(manifest_path(output))}
    files["scheme_file"], files["log"] = map(str, beside(output))
    return files | {"search": body} | outcome_json(quantized, results), "outcome"


def refuse_unreached(goal: Goal, outcome: Outcome, source: Assignment) -> None:
    """Raise VerdictError (exit 4) where no other types than the source's keep the limit on the loss."""
    if goal.max_loss is None or outcome.assignment != source:
        return
    judged = [t.loss for t in outcome.trials if t.group is None]
    least = min((loss.upper for loss in judged), default=0.0)
    raise VerdictError(
        "no types that were judged keep the loss that small", found=f"at most {100 * least:.2f}% with 95% confidence",
        where="--max-loss", expected=f"{100 * goal.max_loss:g}%", fix="allow more, or measure on more prompts",
    )  # fmt: skip
