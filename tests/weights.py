"""Rows of weights for the quantisers' tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def rows(seed: int, n: int, cols: int = 512) -> Floats:
    """Rows of sixteen kinds in turn: what trained weights look like, and what breaks searches."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, cols)) * np.exp2(rng.integers(-8, 4, (n, 1)))
    kind = np.arange(n) % 16
    some = x[kind == 0].shape
    x[kind == 1] = rng.standard_t(2, x[kind == 1].shape)
    x[kind == 2] *= rng.random(x[kind == 2].shape) < 0.05
    x[kind == 3] = np.abs(x[kind == 3])
    x[kind == 4] = -np.abs(x[kind == 4]) - 1
    x[kind == 5] = np.round(x[kind == 5] * 4) / 4
    jumps = np.exp2(rng.integers(-30, 20, (some[0], cols // 16)))
    x[kind == 6] *= np.repeat(jumps, 16, axis=1)[: (kind == 6).sum()]
    x[kind == 7] = x[kind == 7] * 1e-3 + 5
    x[kind == 8] = x[kind == 8].astype(np.float16)
    nearly = rng.integers(0, 3, some) * 2.0 ** -rng.integers(15, 24, (some[0], 1))
    x[kind == 10] = -5 - nearly[: (kind == 10).sum()]
    zeros = np.where(rng.random(some) < 0.5, -0.0, 0.0) + (rng.random(some) < 0.01)
    x[kind == 11] = zeros[: (kind == 11).sum()]
    x[kind == 12] *= 1e30
    x[kind == 13] = rng.integers(-1, 2, x[kind == 13].shape)
    ties = (
        rng.integers(-126, 126, some) + 0.5 + rng.integers(-1, 2, some) * 2.0**-18
    )  # of Q8_0, whose steps are 1
    ties[:, ::32] = 127
    x[kind == 14] = (ties * np.exp2(rng.integers(-9, 3, (some[0], 1))))[: (kind == 14).sum()]
    constant = rng.choice([-1.0, 1.0], (some[0], 1)) * 10.0 ** rng.uniform(-44, 37, (some[0], 1))
    x[kind == 15] = np.broadcast_to(constant, some)[: (kind == 15).sum()]
    with np.errstate(under="ignore"):
        x[kind == 9] *= 10.0 ** rng.uniform(-44, -8, ((kind == 9).sum(), 1))
        return np.ascontiguousarray(x, np.float32)
