"""Choosing each matrix's type by measured loss per byte. Pure: what measures is given.

Four steps, repeated. *Probe*: one group of matrices at a time is given another type, and the loss is measured. *Model*: the
loss of a group is a slope, fitted to its probes, times the squared error that a type leaves; losses of groups add. *Solve*: the
best assignment of that model for every size is found exactly (`frontier`). *Judge*: the solution is measured. Then the next probes
are made around it, because losses do not quite add where bits are few. Nothing here depends on time or chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from .frontier import Frontier, frontier

Assignment = tuple[int, ...]
"""One index into `Group.choices` a group."""
S = TypeVar("S")
"""A measurement as the instrument keeps it; the search only hands it back."""

ROUNDS = 1
"""Rounds of probes around a solution, after the one around the source."""
PROBES = 2
"""Types a group is probed with around the source: its smallest, whose loss stands out of the noise."""
SOLUTIONS = 4
"""Solutions a round that are judged for a size: the model's best for it, and for sizes up to SPREAD less."""
SPREAD = 0.03
BISECTIONS = 6
"""Solutions a round that are judged for a limit on the loss."""
CONFIDENCE = 1.645
"""Standard errors on top of a loss: one-sided 95 %."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One type a group can have."""

    type: str
    nbytes: int
    error: float
    """Squared error over squared weights, both weighted by importance where there is any: the proxy of the loss."""


@dataclass(frozen=True, slots=True)
class Group:
    """Matrices that get one type together."""

    name: str
    tensors: tuple[str, ...]
    choices: tuple[Choice, ...]
    """As `screened` leaves them: growing in bytes, falling in error; the last keeps the source's type."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Share of a mean that is lost, and its standard error."""

    value: float
    error: float

    @property
    def upper(self) -> float:
        """What the loss does not exceed, with 95 % confidence."""
        return self.value + CONFIDENCE * self.error


class Instrument(Protocol[S]):
    """What measures assignments."""

    def measure(self, assignment: Assignment) -> S:
        """Run the draft with these types."""

    def loss(self, base: S, other: S) -> Loss:
        """What `other` loses of `base`, by what they share."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One of two limits: bytes of all groups together, or the share that may be lost."""

    max_bytes: int | None = None
    max_loss: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement."""

    stage: str
    """`probe` or `judge`, and the round."""
    assignment: Assignment
    nbytes: int
    loss: Loss
    """Of a probe against what it was made around, of a solution against the source."""
    group: int | None = None
    """The group that a probe changed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found."""

    assignment: Assignment
    nbytes: int
    loss: Loss
    """Against the source, by the judge."""
    slopes: tuple[float, ...]
    """By group, of the last model: loss per squared error."""
    trials: tuple[Trial, ...]


def screened(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """The choices that no other beats in both bytes and error, smallest first."""
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.nbytes, c.error)):
        if not kept or choice.error < kept[-1].error:
            kept.append(choice)
    return tuple(kept)


def source_of(groups: Sequence[Group]) -> Assignment:
    """The assignment that changes nothing."""
    return tuple(len(group.choices) - 1 for group in groups)


def size_of(groups: Sequence[Group], assignment: Assignment) -> int:
    """Bytes of all groups."""
    return sum(g.choices[i].nbytes for g, i in zip(groups, assignment, strict=True))


def most_measurements(groups: Sequence[Group], goal: Goal) -> tuple[int, int]:
    """How many probes and judgements a search makes at most."""
    first = sum(min(PROBES, len(g.choices) - 1) for g in groups)
    around = sum(min(2, len(g.choices) - 1) for g in groups)
    judged = SOLUTIONS if goal.max_loss is None else BISECTIONS
    return 1 + first + ROUNDS * (1 + around), 1 + (1 + ROUNDS) * judged


class Search(Generic[S]):
    """One search: `probe` measures the many small changes and may be coarse, `judge` the few solutions."""

    def __init__(
        self,
        groups: Sequence[Group],
        probe: Instrument[S],
        judge: Instrument[S],
        note: Callable[[Trial], object] = lambda _: None,
    ) -> None:
        self.groups, self.probe, self.judge, self.note = groups, probe, judge, note
        self.trials: list[Trial] = []
        self.points: list[list[tuple[float, float]]] = [[] for _ in groups]
        self.judged: dict[Assignment, tuple[S, Loss]] = {}
        self.source = source_of(groups)

    def run(self, goal: Goal) -> Outcome:
        """The best assignment found within `goal`; that of the source where nothing else holds.

        `goal.max_bytes` is at least the size of the smallest choices.
        """
        self.judged[self.source] = (self.judge.measure(self.source), Loss(0.0, 0.0))
        self.sensitivities(self.source, "0")
        best = self.solve(goal, None, "0")
        for number in range(1, ROUNDS + 1):
            self.sensitivities(best, str(number))
            found = self.solve(goal, best, str(number))
            if found == best:
                break
            best = found
        loss = self.judged[best][1]
        return Outcome(
            best, size_of(self.groups, best), loss, tuple(self.slopes()), tuple(self.trials)
        )

    def record(self, trial: Trial) -> None:
        """Keep a trial and tell of it."""
        self.trials.append(trial)
        self.note(trial)

    def sensitivities(self, base: Assignment, number: str) -> None:
        """Probe every group around `base`: with its smallest types around the source, else one step down and up."""
        at_base = self.probe.measure(base)
        for i, group in enumerate(self.groups):
            here = base[i]
            near = range(PROBES) if base == self.source else (here - 1, here + 1)
            for choice in near:
                if not 0 <= choice < len(group.choices) or choice == here:
                    continue
                other = (*base[:i], choice, *base[i + 1 :])
                loss = self.probe.loss(at_base, self.probe.measure(other))
                error = group.choices[choice].error - group.choices[here].error
                self.points[i].append((error, loss.value))
                nbytes = size_of(self.groups, other)
                self.record(Trial(f"probe {number}", other, nbytes, loss, i))

    def slopes(self) -> list[float]:
        """By group, the slope through the origin that fits its probes best; not negative."""
        fitted = []
        for points in self.points:
            square = sum(error * error for error, _ in points)
            fitted.append(
                max(0.0, sum(error * lost for error, lost in points) / square) if square else 0.0
            )
        return fitted

    def model(self) -> Frontier:
        """The best assignments of the model, for every size."""
        sizes = [[c.nbytes for c in g.choices] for g in self.groups]
        losses = [
            [slope * c.error for c in g.choices]
            for g, slope in zip(self.groups, self.slopes(), strict=True)
        ]
        return frontier(sizes, losses)

    def solve(self, goal: Goal, best: Assignment | None, number: str) -> Assignment:
        """A solution of the model that is judged to be better than `best`, else `best`."""
        front = self.model()
        if goal.max_bytes is not None:
            for step in range(SOLUTIONS):
                at = front.within(int(goal.max_bytes * (1 - SPREAD * step / (SOLUTIONS - 1))))
                if at is None:
                    break
                found = front.assignment(at)
                loss = self.judgement(found, number)
                if best is None or loss.value < self.judged[best][1].value:
                    best = found
            assert best is not None  # the smallest choices fit
            return best
        assert goal.max_loss is not None
        best = best or self.source
        low, high = -1, front.within(size_of(self.groups, best) - 1)
        if high is None:
            return best
        high += 1
        for _ in range(BISECTIONS):
            middle = front.between(low, high)
            if middle is None:
                break
            found = front.assignment(middle)
            if self.judgement(found, number).upper <= goal.max_loss:
                best, high = found, middle
            else:
                low = middle
        return best

    def judgement(self, assignment: Assignment, number: str) -> Loss:
        """The loss of a solution against the source, measured once."""
        if assignment not in self.judged:
            sample = self.judge.measure(assignment)
            loss = self.judge.loss(self.judged[self.source][0], sample)
            self.judged[assignment] = (sample, loss)
            nbytes = size_of(self.groups, assignment)
            self.record(Trial(f"judge {number}", assignment, nbytes, loss))
        return self.judged[assignment][1]
