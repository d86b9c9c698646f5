"""The search for types: exact on its model, within every limit, the same every time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.quantize.cli import main
from dflash_gguf.quantize.frontier import STEPS, frontier
from dflash_gguf.quantize.search import (
    Assignment,
    Choice,
    Goal,
    Group,
    Loss,
    Search,
    Trial,
    most_measurements,
    screened,
    size_of,
    source_of,
)
from dflash_gguf.quantize.tradeoffs import aligned, groups_of
from hypothesis import given, settings
from hypothesis import strategies as st
from trained_pair import draft_gguf

TYPES = ("q2_k", "q3_k", "q4_k", "q6_k", "keep")


@st.composite
def problems(draw: st.DrawFn, most: int = 4) -> list[Group]:
    """Groups with growing bytes and falling errors."""
    groups = []
    for i in range(draw(st.integers(1, most))):
        n = draw(st.integers(1, 4))
        sizes = sorted(draw(st.sets(st.integers(1, 60), min_size=n, max_size=n)))
        errors = sorted(draw(st.sets(st.integers(1, 99), min_size=n - 1, max_size=n - 1)))
        values = [*(e / 100 for e in reversed(errors)), 0.0]
        groups.append(
            Group(
                f"g{i}", (f"t{i}",), tuple(Choice(TYPES[j], 32 * b, e) for j, (b, e) in enumerate(zip(sizes, values, strict=True)))
            )
        )  # fmt: skip
    return groups


@dataclass
class Formula:
    """A draft whose loss is a formula: slopes times errors, and a term for pairs of neighbours that are both cut."""

    groups: Sequence[Group]
    slopes: Sequence[float]
    pairs: float = 0.0
    noise: float = 0.0
    seen: list[Assignment] = field(default_factory=list)

    def measure(self, assignment: Assignment) -> Assignment:
        self.seen.append(assignment)
        return assignment

    def total(self, assignment: Assignment) -> float:
        """The loss against the source."""
        errors = [g.choices[i].error for g, i in zip(self.groups, assignment, strict=True)]
        alone = sum(s * e for s, e in zip(self.slopes, errors, strict=False))
        return alone + self.pairs * sum(a * b for a, b in itertools.pairwise(errors))

    def loss(self, base: Assignment, other: Assignment) -> Loss:
        return Loss(self.total(other) - self.total(base), self.noise)


def all_assignments(groups: Sequence[Group]) -> list[Assignment]:
    """Every assignment there is."""
    return list(itertools.product(*(range(len(g.choices)) for g in groups)))


slopes = st.lists(st.integers(1, 50), min_size=4, max_size=4).map(lambda v: [x / 100 for x in v])


@settings(deadline=None)
@given(problems(), slopes)
def test_the_frontier_is_what_trying_everything_finds(
    groups: list[Group], slope: list[float]
) -> None:
    """For every size: no assignment of that size or less has less loss, and each point is what its assignment gives."""
    f = Formula(groups, slope)
    sizes = [[c.nbytes for c in g.choices] for g in groups]
    front = frontier(
        sizes, [[s * c.error for c in g.choices] for g, s in zip(groups, slope, strict=False)]
    )

    every = [(size_of(groups, a), f.total(a)) for a in all_assignments(groups)]
    for limit in {size for size, _ in every}:
        at = front.within(limit)
        assert at is not None
        found = front.assignment(at)
        assert size_of(groups, found) == front.sizes[at] <= limit
        assert f.total(found) == pytest.approx(min(loss for size, loss in every if size <= limit))
    assert front.within(min(size for size, _ in every) - 1) is None
    assert (np.diff(front.sizes) > 0).all()
    assert (np.diff(front.losses) < 0).all()


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(1, 10**12), min_size=1, max_size=4, unique=True),
        min_size=1,
        max_size=6,
    )
)
def test_a_sum_is_never_larger_than_it_is_taken_for(sizes: list[list[int]]) -> None:
    """Sizes too many to tell apart are rounded up, and the frontier stays short."""
    front = frontier(sizes, [[1 / s for s in group] for group in sizes])

    assert len(front.sizes) <= STEPS + len(sizes) + 1
    for at in {0, len(front.sizes) // 2, len(front.sizes) - 1}:
        true = sum(g[i] for g, i in zip(sizes, front.assignment(at), strict=True))
        assert true <= front.sizes[at]


@settings(max_examples=60, deadline=None)
@given(problems(), slopes, st.integers(0, 100))
def test_a_size_gets_the_least_loss_there_is(
    groups: list[Group], slope: list[float], percent: int
) -> None:
    """Where losses add and follow the errors, the search finds the optimum of brute force."""
    f = Formula(groups, slope)
    small, large = sum(g.choices[0].nbytes for g in groups), size_of(groups, source_of(groups))
    limit = small + (large - small) * percent // 100

    found = Search(groups, f, f).run(Goal(max_bytes=limit))

    best = min(f.total(a) for a in all_assignments(groups) if size_of(groups, a) <= limit)
    assert found.nbytes == size_of(groups, found.assignment) <= limit
    assert found.loss.value == pytest.approx(best, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(problems(), slopes, st.integers(0, 100))
def test_a_loss_gets_the_smallest_size_there_is(
    groups: list[Group], slope: list[float], percent: int
) -> None:
    """The limit on the loss holds with its confidence, and nothing smaller holds it."""
    f = Formula(groups, slope, noise=0.001)
    worst = f.total(tuple(0 for _ in groups))
    limit = worst * percent / 100

    found = Search(groups, f, f).run(Goal(max_loss=limit))

    smaller = [
        a
        for a in all_assignments(groups)
        if f.loss(source_of(groups), a).upper <= limit - 1e-9 and size_of(groups, a) < found.nbytes
    ]
    assert found.assignment == source_of(groups) or found.loss.upper <= limit
    assert [] == smaller


@settings(max_examples=60, deadline=None)
@given(problems(), slopes, st.floats(-0.5, 2), st.integers(0, 100))
def test_losses_that_do_not_add_break_no_limit(
    groups: list[Group], slope: list[float], pairs: float, percent: int
) -> None:
    """The size holds, what is found is no worse than anything judged, and no more is measured than was announced."""
    f, judge = Formula(groups, slope, pairs), Formula(groups, slope, pairs)
    small, large = sum(g.choices[0].nbytes for g in groups), size_of(groups, source_of(groups))
    goal = Goal(max_bytes=small + (large - small) * percent // 100)
    notes: list[Trial] = []

    found = Search(groups, f, judge, notes.append).run(goal)

    assert goal.max_bytes is not None
    assert found.nbytes <= goal.max_bytes
    solutions = [t for t in notes if t.group is None]
    assert all(found.loss.value <= t.loss.value for t in solutions)
    assert list(found.trials) == notes
    probes, judged = most_measurements(groups, goal)
    assert len(f.seen) <= probes
    assert len(judge.seen) <= judged


@settings(max_examples=30, deadline=None)
@given(problems(3), slopes)
def test_more_bytes_never_lose_more(groups: list[Group], slope: list[float]) -> None:
    """Along growing limits the loss falls or stays, and the same search gives the same result."""
    f = Formula(groups, slope)
    small, large = sum(g.choices[0].nbytes for g in groups), size_of(groups, source_of(groups))

    limits = [small + (large - small) * i // 6 for i in range(7)]
    runs = [Search(groups, f, f).run(Goal(max_bytes=b)) for b in limits]
    again = [Search(groups, f, f).run(Goal(max_bytes=b)) for b in limits]

    assert all(b.loss.value <= a.loss.value + 1e-12 for a, b in itertools.pairwise(runs))
    assert runs == again


def test_noise_below_nothing_is_no_reason_for_more_bits() -> None:
    """A group whose probes gain by chance gets its smallest type, and takes nothing from the others."""
    choices = (Choice("q2_k", 32, 0.1), Choice("q4_k", 64, 0.01), Choice("keep", 128, 0.0))
    groups = [Group("a", ("a",), choices), Group("b", ("b",), choices)]

    found = Search(groups, f := Formula(groups, [-0.02, 0.5]), f).run(Goal(max_bytes=160))

    assert (0, 2) == found.assignment


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=9))
def test_screening_leaves_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    """Ascending bytes, descending errors, and every choice left out is beaten by one that is left in."""
    given_choices = [Choice(str(i), b, float(e)) for i, (b, e) in enumerate(points)]

    kept = screened(given_choices)

    assert all(a.nbytes < b.nbytes and a.error > b.error for a, b in itertools.pairwise(kept))
    assert all(
        any(k.nbytes <= c.nbytes and k.error <= c.error for k in kept) for c in given_choices
    )


def test_choices_are_the_bytes_of_the_file_and_the_errors_of_the_report(tmp_path: Path) -> None:
    """Each type's size and squared error are what writing it gives."""
    draft = draft_gguf("v2")
    done = CliRunner().invoke(main, [str(draft), str(tmp_path / "q.gguf"), "--scheme", "q3_k_m"])
    assert 0 == done.exit_code, done.output
    tensors = {
        t["name"]: t for t in json.loads((tmp_path / "q.manifest.json").read_text())["tensors"]
    }

    seen = 0
    for group in groups_of(read_gguf(draft), {}):
        written = tensors[group.name]
        for choice in group.choices:
            if choice.type.upper() == written["type"]:
                seen += 1
                assert aligned(written["bytes"]) == choice.nbytes
                assert choice.error == pytest.approx(written["relative_rmse"] ** 2, rel=1e-4)
    assert seen > 10
