"""The verdict: a record against its reference. docs/acceptance.md explains the rules and what they catch.

Pure. Three questions, in order: may the two be compared; is it the same draft, then every round must be equal
(`exact`); is it another copy or another draft, then how much mean accepted length did it lose (`loss`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .record import PromptRun, Record

PASS, FAIL, NOT_COMPARABLE, INCONCLUSIVE = "pass", "fail", "not comparable", "inconclusive"
EXIT_CODES = {PASS: 0, FAIL: 4, NOT_COMPARABLE: 6, INCONCLUSIVE: 6}

TIE_BANDS = {"f32": 1e-4, "f16": 1e-2}
"""Logit margin below which a decision may fall either way, by the type of the KV caches (docs/acceptance.md)."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rules:
    """The gate's numbers."""

    max_loss: float = 0.03
    """Share of the reference's mean accepted length that may be lost, 0 to 1."""
    max_loss_domain: float = 2.0
    """The same for one domain, as a multiple of max_loss."""
    max_loss_position: float = 4.0
    """The same for the rate at one position, as a multiple of max_loss: late positions fall fastest."""
    confidence: float = 0.99
    """One-sided confidence of the bootstrap bounds."""
    min_prompts: int = 8
    """Fewer prompts: inconclusive."""
    min_domain_prompts: int = 4
    """Fewer prompts in a domain: the domain is shown, not judged."""
    broken_rate: float = 0.02
    """Acceptance rate below which a draft is broken, whatever its reference."""
    resamples: int = 2000
    seed: int = 20261


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate says, and why."""

    word: str
    """PASS, FAIL, NOT_COMPARABLE or INCONCLUSIVE."""
    reasons: tuple[str, ...]
    """What decided, never empty."""
    notes: tuple[str, ...] = ()
    """What did not decide but should be known."""
    figures: dict[str, Any] = field(default_factory=dict)
    """loss, bounds, exact counts."""

    @property
    def exit_code(self) -> int:
        """0, 4 or 6."""
        return EXIT_CODES[self.word]


def judge(record: Record, reference: Record | None, rules: Rules | None = None) -> Verdict:
    """The verdict on `record`: alone (is it sound?), and against `reference` where there is one."""
    rules = rules or Rules()
    differing = differences(record, reference) if reference else []
    if differing:
        return Verdict(NOT_COMPARABLE, tuple(differing))
    unsound = soundness(record, rules)
    if unsound:
        return unsound
    if record.total.rounds == 0 or (reference and reference.total.rounds == 0):
        return Verdict(INCONCLUSIVE, ("not measured: no round drafted anything",))
    if reference is None:
        return Verdict(PASS, ("sound; not compared with a reference",))
    notes = tuple(spec_notes(record, reference))
    same = same_draft(record, reference)
    if same and (
        reference.runs[0].margins is not None or record.subject.kv_type == reference.subject.kv_type
    ):
        return exact(record, reference, notes)
    if len(record.runs) < rules.min_prompts:
        return Verdict(
            INCONCLUSIVE,
            (f"{len(record.runs)} prompts; at least {rules.min_prompts} are needed",),
            notes,
        )
    return statistical(record, reference, rules, notes)


def soundness(record: Record, rules: Rules) -> Verdict | None:
    """FAIL for what no reference can excuse: lost tokens, non-finite logits, next to nothing accepted."""
    reasons = []
    if record.lossless is False and record.first_difference:
        d = record.first_difference
        margin = "not known" if d.margin is None else f"{d.margin:.4g}"
        reasons.append(
            f"not lossless: prompt {d.id}, new token {d.index} is {d.speculative} with the draft, "
            f"{d.plain} without; the target's margin there is {margin}"
        )
    if record.bad_drafts:
        reasons.append(
            f"draft numerically broken: {record.bad_drafts} drafts had logits that are not finite"
        )
    rate = record.total.acceptance_rate
    if rate is not None and rate < rules.broken_rate and record.total.drafted >= 100:
        reasons.append(
            f"draft numerically broken: {record.total.accepted} of {record.total.drafted} tokens accepted; suspect "
            "metadata and features (layer ids, RoPE base, mask token, fc), then the quantisation, never the speed"
        )
    return Verdict(FAIL, tuple(reasons)) if reasons else None


def differences(record: Record, reference: Record) -> list[str]:
    """Why the two may not be compared; empty if they may."""
    result = []
    for f in fields(record.conditions):
        ours, theirs = getattr(record.conditions, f.name), getattr(reference.conditions, f.name)
        if ours != theirs:
            result.append(
                f"{f.name} differs: {_short(ours)} here, {_short(theirs)} in the reference"
            )
    return result


def _short(value: object) -> str:
    text = str(value)
    return text[:12] + "..." if len(text) == 64 else text


def spec_notes(record: Record, reference: Record) -> list[str]:
    """Fields of the draft's own description in which it differs from the reference's draft."""
    ours, theirs = record.subject.draft_spec, reference.subject.draft_spec
    names = [n for n in sorted(ours.keys() & theirs.keys()) if not _alike(ours[n], theirs[n])]
    return [f"the draft's {n} is {ours[n]}, the reference's {theirs[n]}" for n in names]


def _alike(a: object, b: object) -> bool:
    """Equal, or equal as F32: a GGUF stores no more."""
    if isinstance(a, float) and isinstance(b, float):
        return bool(np.float32(a) == np.float32(b))
    return a == b


def same_draft(record: Record, reference: Record) -> bool:
    """Both ran the same tensor values, whatever the container and the storage type."""
    ours = record.subject.draft_values_sha256
    return bool(ours) and ours == reference.subject.draft_values_sha256


# --- the same draft: every round ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first round of a prompt that differs from the reference's."""

    id: str
    round: int
    """0-based among rounds with d >= 1; -1: the first token, chosen by the prefill; the number of rounds: behind them."""
    expected: tuple[int, int] | None
    actual: tuple[int, int] | None
    margin: float | None
    """Margin of the reference's closest decision in that round; None where it is not recorded."""


def exact(record: Record, reference: Record, notes: tuple[str, ...] = ()) -> Verdict:
    """PASS if every round of every prompt is the reference's, up to a decision inside the tie band."""
    band = TIE_BANDS.get(record.subject.kv_type, max(TIE_BANDS.values()))
    pairs = zip(record.runs, reference.runs, strict=True)
    found = [m for ours, theirs in pairs if (m := first_mismatch(ours, theirs))]
    faults = [m for m in found if m.margin is None or m.margin >= band]
    ties = len(found) - len(faults)
    figures = {
        "mode": "exact",
        "prompts": len(record.runs),
        "rounds": reference.total.rounds,
        "tie_band": band,
        "ties": ties,
        "faults": [asdict(m) for m in faults],
    }
    if ties:
        notes += (
            f"{ties} of {len(record.runs)} prompts part from the reference at a margin below {band:g}",
        )
    if not faults:
        return Verdict(
            PASS,
            (f"every round equals the reference ({reference.total.rounds} rounds)",),
            notes,
            figures,
        )
    worst = max(faults, key=lambda m: m.margin or 0.0)
    reason = (
        f"the draft's values are the reference's, but {len(faults)} of {len(record.runs)} prompts differ: prompt "
        f"{worst.id}, round {worst.round} is {worst.actual}, expected {worst.expected}"
        + ("" if worst.margin is None else f", decided by a margin of {worst.margin:.4g}")
    )
    return Verdict(FAIL, (reason,), notes, figures)


def first_mismatch(ours: PromptRun, theirs: PromptRun) -> Mismatch | None:
    """Where the two runs of one prompt part, by round lengths, tokens and stop; None if they do not."""

    def mismatch(index: int) -> Mismatch:
        pick = [r[index] if 0 <= index < len(r) else None for r in (theirs.rounds, ours.rounds)]
        known = (
            theirs.margins if index < len(theirs.rounds) else None
        )  # none is kept behind the last round
        margin = known[index + 1] if known else None
        return Mismatch(ours.id, index, pick[0], pick[1], margin)

    if ours.new_tokens[:1] != theirs.new_tokens[:1]:
        return mismatch(-1)
    emitted = 1
    for i, expected in enumerate(theirs.rounds):
        if i >= len(ours.rounds) or ours.rounds[i] != expected:
            return mismatch(i)
        end = emitted + expected[1] + 1
        if ours.new_tokens[emitted:end] != theirs.new_tokens[emitted:end]:
            return mismatch(i)
        emitted = end
    ends = [(len(r.rounds), r.new_tokens[emitted:], r.stop) for r in (ours, theirs)]
    return mismatch(len(theirs.rounds)) if ends[0] != ends[1] else None


# --- another copy, or another draft: what is lost ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """Share of the reference's mean accepted length that is lost, with its bounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} % ({100 * self.low:.2f} to {100 * self.high:.2f})"


def statistical(
    record: Record, reference: Record, rules: Rules, notes: tuple[str, ...] = ()
) -> Verdict:
    """The paired loss, the reference's own bands, and the domains.

    FAIL where the loss is more than allowed and the bound says that it is no accident, or where a figure lies
    below the reference's band; INCONCLUSIVE where it is more than allowed and may be an accident.
    """
    loss = paired_loss(record.runs, reference.runs, rules)
    bands = reference_bands(reference, rules)
    fails, doubts = _weigh("the whole set", loss, rules.max_loss)
    domains: dict[str, Any] = {}
    for name in record.domains:
        ours, theirs = ([r for r in x.runs if r.domain == name] for x in (record, reference))
        domains[name] = asdict(part := paired_loss(ours, theirs, rules))
        if len(ours) >= rules.min_domain_prompts:
            fails += _weigh(f"domain {name}", part, rules.max_loss * rules.max_loss_domain)[0]
    fails += below_bands(record, bands)
    figures = {"mode": "statistical", "loss": asdict(loss), "max_loss": rules.max_loss, "bands": bands, "domains": domains}  # fmt: skip
    if loss.high < 0:
        notes += (
            f"better than the reference: mean accepted length gained {-100 * loss.value:.2f} %",
        )
    if fails:
        return Verdict(FAIL, tuple(fails), notes, figures)
    if doubts:
        return Verdict(INCONCLUSIVE, tuple(doubts), notes, figures)
    reason = f"mean accepted length lost {loss}; at most {100 * rules.max_loss:g} % is allowed"
    return Verdict(PASS, (reason,), notes, figures)


def _weigh(what: str, loss: Loss, allowed: float) -> tuple[list[str], list[str]]:
    """(failures, doubts) of one loss: more than allowed, and certain or not."""
    if loss.value <= allowed:
        return [], []
    text = f"{what}: mean accepted length lost {loss}, more than {100 * allowed:g} %"
    return (
        ([text], [])
        if loss.low > 0
        else ([], [f"{text}, but that may be an accident: run more prompts"])
    )


def counts(runs: list[PromptRun] | tuple[PromptRun, ...], positions: int) -> Matrix:
    """(prompts, 2 + positions): rounds, accepted, and rounds that kept each position."""
    rows = [
        [
            len(r.rounds),
            sum(a for _, a in r.rounds),
            *(sum(a > i for _, a in r.rounds) for i in range(positions)),
        ]
        for r in runs
    ]
    return np.array(rows, dtype=np.float64)


def resampled(matrices: list[Matrix], rules: Rules) -> list[Matrix]:
    """Sums of `resamples` bootstrap draws of the prompts, the same draw for every matrix: (resamples, columns)."""
    n = len(matrices[0])
    draws = np.random.default_rng(rules.seed).multinomial(
        n, np.full(n, 1 / n), size=rules.resamples
    )
    return [draws @ m for m in matrices]


def mean_length(sums: Matrix) -> Matrix:
    """1 + accepted / rounds along the last axis of `counts` sums; 1 where there are no rounds."""
    return np.asarray(1 + sums[..., 1] / np.maximum(sums[..., 0], 1))


def paired_loss(ours: Any, theirs: Any, rules: Rules) -> Loss:
    """Loss of mean accepted length over the same prompts, with paired bootstrap bounds."""
    pair = [counts(ours, 0), counts(theirs, 0)]
    value = 1 - mean_length(pair[0].sum(0)) / mean_length(pair[1].sum(0))
    drawn = resampled(pair, rules)
    losses = 1 - mean_length(drawn[0]) / mean_length(drawn[1])
    low, high = np.quantile(losses, [1 - rules.confidence, rules.confidence])
    return Loss(float(value), float(low), float(high))


def reference_bands(reference: Record, rules: Rules) -> dict[str, Any]:
    """Lowest figures that may pass: mean length, and rate by position.

    Each is the low quantile of the reference's own spread over prompts, and never closer to the reference than
    the loss that is allowed.
    """
    total = reference.total
    sums = resampled([counts(reference.runs, len(total.kept))], rules)[0]
    rates = sums[:, 2:] / np.maximum(sums[:, :1], 1)
    tail = (1 - rules.confidence) / (len(total.kept) + 1)
    allowed = 1 - min(1.0, rules.max_loss * rules.max_loss_position)
    length = min(
        float(np.quantile(mean_length(sums), tail)),
        (total.mean_accepted_length or 0) * (1 - rules.max_loss),
    )
    lowest = np.minimum(np.quantile(rates, tail, axis=0), np.array(total.per_position) * allowed)
    return {"mean_accepted_length": length, "per_position": [float(x) for x in lowest]}


def below_bands(record: Record, bands: dict[str, Any]) -> list[str]:
    """A reason for each figure of `record` below its band."""
    total = record.total
    length = total.mean_accepted_length or 0.0
    result = []
    if length < bands["mean_accepted_length"]:
        result.append(f"mean accepted length {length:.3f} is below the band of the reference, {bands['mean_accepted_length']:.3f}")  # fmt: skip
    rates = [*total.per_position, *[0.0] * len(bands["per_position"])]
    low = [
        (i, r, b)
        for i, (r, b) in enumerate(zip(rates, bands["per_position"], strict=False))
        if r < b
    ]
    if low:
        i, rate, band = low[0]
        result.append(
            f"rate at position {i + 1} is {rate:.3f}, below the band of the reference, {band:.3f}"
        )
    return result
