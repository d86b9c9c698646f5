"""What quantising did to the weights, in the numbers people compare. Pure.

All come from four sums over weights x and their dequantised values y, so that they add up exactly over chunks,
tensors and files: never means of means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorSums:
    """Sums over weights; add two to join them."""

    xx: float = 0.0
    """Sum of x * x."""
    yy: float = 0.0
    """Sum of y * y."""
    xy: float = 0.0
    """Sum of x * y."""
    ee: float = 0.0
    """Sum of (x - y) squared."""

    def __add__(self, other: ErrorSums) -> ErrorSums:
        """The sums of both sets of weights."""
        return ErrorSums(
            self.xx + other.xx, self.yy + other.yy, self.xy + other.xy, self.ee + other.ee
        )

    @property
    def relative_rmse(self) -> float:
        """Root of the squared error over the squared weights; 0 for exact, 0/0 counts as exact."""
        if self.xx == 0:
            return 0.0 if self.ee == 0 else math.inf
        return math.sqrt(self.ee / self.xx)

    @property
    def cosine(self) -> float:
        """Cosine between weights and dequantised weights; two zero vectors count as equal."""
        if self.xx == 0 or self.yy == 0:
            return 1.0 if self.xx == self.yy else 0.0
        return max(-1.0, min(1.0, self.xy / math.sqrt(self.xx) / math.sqrt(self.yy)))


def bits_per_weight(nbytes: int, weights: int) -> float:
    """Bits a weight takes, 0 for no weights."""
    return 8 * nbytes / weights if weights else 0.0
