"""What a search found, as a scheme file and as a log. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .schemes import Rule, Scheme
from .search import CONFIDENCE, Assignment, Group, Outcome, Trial, most_measurements, source_of

if TYPE_CHECKING:
    from .replayed import Plan

SCHEMA = 1


def scheme_of(groups: Sequence[Group], assignment: Assignment) -> Scheme:
    """The scheme that gives every group its type: the commonest is the default, the others are rules."""
    chosen = [g.choices[i].type for g, i in zip(groups, assignment, strict=True)]
    default = max(Counter(chosen).items(), key=lambda item: (item[1], item[0]))[0]
    rules = tuple(
        Rule(tuple(g.name for g, c in zip(groups, chosen, strict=True) if c == kind), kind)
        for kind in sorted(set(chosen) - {default})
    )
    return Scheme("auto", default, None, rules, "found by --scheme auto")


def toml(scheme: Scheme, summary: str) -> str:
    """The scheme as a file that --scheme reads."""
    lines = [f"summary = {json.dumps(summary)}", f'default = "{scheme.default}"']
    for rule in scheme.rules:
        names = "".join(f'  "{name}",\n' for name in rule.match)
        lines.append(f'\n[[rules]]\ntype = "{rule.type}"\nmatch = [\n{names}]')
    return "\n".join(lines) + "\n"


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's, None for fewer than three pairs."""
    if len(a) < 3:
        return None
    first, second = (np.argsort(np.argsort(v, kind="stable")).astype(np.float64) for v in (a, b))
    return round(float(np.corrcoef(first, second)[0, 1]), 4)


def outcome_json(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What was found, in a few figures."""
    source = plan.judge.lengths[source_of(plan.groups)]
    first = [t for t in outcome.trials if t.stage == "probe 0" and t.group is not None]
    errors = [plan.groups[t.group].choices[t.assignment[t.group]].error for t in first if t.group is not None]  # fmt: skip
    return {
        "bytes": outcome.nbytes + plan.fixed,
        "loss": round(outcome.loss.value, 6),
        "loss_error": round(outcome.loss.error, 6),
        "loss_at_most": round(outcome.loss.upper, 6),
        "confidence": 0.95,
        "mean_accepted_length": round(plan.judge.lengths[outcome.assignment], 6),
        "source_mean_accepted_length": round(source, 6),
        "proxy_rank_correlation": rank_correlation(errors, [t.loss.value for t in first]),
        "measurements": len(plan.probe.seconds) + len(plan.judge.seconds),
        "seconds": round(sum(plan.probe.seconds.values()) + sum(plan.judge.seconds.values()), 1),
    }


def log_json(
    plan: Plan, outcome: Outcome, request: Mapping[str, Any], imatrix: Sequence[str]
) -> str:
    """Every measurement, one a line, behind what was asked, what could be chosen and what was found."""
    groups = [
        {"name": g.name, "tensors": len(g.tensors), "slope": float(f"{slope:.6g}"), "choices": [[c.type, c.nbytes, float(f"{c.error:.6g}")] for c in g.choices]}
        for g, slope in zip(plan.groups, outcome.slopes, strict=True)
    ]  # fmt: skip
    head = {
        "schema": SCHEMA,
        "request": dict(request),
        "imatrix": list(imatrix),
        "found": outcome_json(plan, outcome),
    }
    rows = [trial_json(plan, trial) for trial in outcome.trials]
    return (
        json.dumps(head, indent=1)[:-2]
        + f',\n "groups": [\n  {lines(groups)}\n ],\n "trials": [\n  {lines(rows)}\n ]\n}}\n'
    )


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """JSON objects, one a line."""
    return ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in rows)


def trial_json(plan: Plan, trial: Trial) -> dict[str, Any]:
    """One measurement."""
    body: dict[str, Any] = {
        "stage": trial.stage, "bytes": trial.nbytes + plan.fixed, "loss": float(f"{trial.loss.value:.6g}"),
        "loss_error": float(f"{trial.loss.error:.6g}"),
    }  # fmt: skip
    instrument = plan.judge if trial.group is None else plan.probe
    body["seconds"] = round(instrument.seconds[trial.assignment], 2)
    if trial.group is None:
        body["mean_accepted_length"] = round(plan.judge.lengths[trial.assignment], 6)
    else:
        group = plan.groups[trial.group]
        body |= {"changed": group.name, "to": group.choices[trial.assignment[trial.group]].type}
    return body | {"assignment": list(trial.assignment)}


def plan_json(plan: Plan) -> dict[str, Any]:
    """How many measurements a search makes at most, and how long they take by the first of each kind."""
    source = source_of(plan.groups)
    for instrument in (plan.probe, plan.judge):
        instrument.measure(source)
    probes, judged = most_measurements(plan.groups, plan.goal)
    seconds = probes * plan.probe.seconds[source] + judged * plan.judge.seconds[source]
    return {
        "groups": len(plan.groups),
        "probes": probes,
        "solutions": judged,
        "seconds": round(seconds, 1),
        "confidence": f"loss + {CONFIDENCE} standard errors",
        "smallest_bytes": plan.fixed + sum(g.choices[0].nbytes for g in plan.groups),
        "source_bytes": plan.fixed + sum(g.choices[-1].nbytes for g in plan.groups),
    }


def plan_text(body: Mapping[str, Any]) -> str:
    """The plan in words."""
    return (
        f"{body['groups']} groups, at most {body['probes']} probes and {body['solutions']} solutions to measure, "
        f"about {body['seconds']:.0f} s; {body['smallest_bytes']} to {body['source_bytes']} bytes can be had"
    )


def summary(body: Mapping[str, Any]) -> str:
    """What was found, in words that do not depend on the machine."""
    return (
        f"found by search: {body['bytes']} bytes, {100 * body['loss']:.2f}% of the expected accepted length lost "
        f"(at most {100 * body['loss_at_most']:.2f}% with 95% confidence)"
    )
