"""The best sums of one (size, loss) a group, for every size at once: an exact knapsack by dynamic programming. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

STEPS = 1 << 14
"""Sizes that are told apart at most; above it they are counted in larger units, rounded up."""


@dataclass(frozen=True)
class Frontier:
    """The sums that no other beats in both size and loss, smallest first."""

    sizes: npt.NDArray[np.int64]
    """(n,), ascending: no less than the true size, and equal to it where sizes were not rounded."""
    losses: npt.NDArray[np.float64]
    """(n,), descending."""
    steps: Sequence[tuple[int, npt.NDArray[np.int64]]]
    """By group: how many choices it has, and for each sum kept, predecessor * choices + choice."""

    def within(self, limit: int) -> int | None:
        """The index of the least loss that is no larger than `limit`, None where nothing is."""
        at = int(np.searchsorted(self.sizes, limit, "right")) - 1
        return at if at >= 0 else None

    def between(self, low: int, high: int) -> int | None:
        """An index between the two (both excluded) about half-way in size; None where there is none."""
        if high - low < 2:
            return None
        first = self.sizes[low] if low >= 0 else self.sizes[0]
        last = self.sizes[high] if high < len(self.sizes) else self.sizes[-1]
        at = int(np.searchsorted(self.sizes, (first + last) // 2))
        return min(max(at, low + 1), high - 1)

    def assignment(self, at: int) -> tuple[int, ...]:
        """The choices that make sum `at`, one a group."""
        found = []
        for choices, kept in reversed(self.steps):
            at, choice = divmod(int(kept[at]), choices)
            found.append(choice)
        return tuple(reversed(found))


def unit_of(sizes: Sequence[Sequence[int]]) -> int:
    """The unit in which choices differ: their common divisor, or what spans the range in STEPS."""
    common = gcd(*(b - min(group) for group in sizes for b in group)) or 1
    span = sum(max(group) - min(group) for group in sizes)
    return common if span // common <= STEPS else -(-span // STEPS)


def frontier(sizes: Sequence[Sequence[int]], losses: Sequence[Sequence[float]]) -> Frontier:
    """Every undominated sum of one choice a group; `sizes` and `losses` have a row a group.

    Losses are added in the order of the groups. Exact where the sizes are told apart (STEPS); else no sum is larger
    than it is taken for.
    """
    unit = unit_of(sizes)
    least = sum(min(group) for group in sizes)
    total, loss = np.zeros(1, np.int64), np.zeros(1)
    steps = []
    for group, lost in zip(sizes, losses, strict=True):
        units = -(-(np.array(group, np.int64) - min(group)) // unit)
        total_all = (total[:, None] + units).ravel()
        loss_all = (loss[:, None] + np.array(lost, np.float64)).ravel()
        order = np.lexsort((loss_all, total_all))
        best = np.minimum.accumulate(loss_all[order])
        kept = order[np.r_[True, best[1:] < best[:-1]]]
        total, loss = total_all[kept], loss_all[kept]
        steps.append((len(group), kept))
    return Frontier(total * unit + least, loss, steps)
