"""Values of tensors: find what is not finite, and change one plain float type into another, counting what is lost.

Works on bytes as they lie in files; csrc/floats and csrc/kquant do it, without the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import _native
from .ggml import F32, FLOATS, TYPES


@dataclass(frozen=True, slots=True)
class Losses:
    """How many values a narrower type could not hold; a value is counted once."""

    overflows: int = 0
    """Became infinite."""
    flushed: int = 0
    """Were not zero and became it."""
    subnormals: int = 0
    """Became subnormal and lost digits by it."""

    def __add__(self, other: Losses) -> Losses:
        return Losses(
            self.overflows + other.overflows,
            self.flushed + other.flushed,
            self.subnormals + other.subnormals,
        )


def find_non_finite(raw: memoryview, kind: int) -> int | None:
    """Where the first NaN or infinity stands among the weights of `raw`, in weights; None if there is none.

    For a quantised type it is the first weight of the first block whose scale is none. A type without F16 scales, or
    one that csrc/kquant does not know, passes.
    """
    data = np.frombuffer(raw, np.uint8)
    if kind in FLOATS:
        at = _native.fl_find_nonfinite(kind, data)
    elif _native.kq_block_weights(kind):
        at = _native.kq_find_bad_block(kind, data)
    else:
        return None
    return at * TYPES[kind].block if at * TYPES[kind].size < raw.nbytes else None


def widened(raw: memoryview, kind: int) -> NDArray[np.float32]:
    """The floats of `raw` as float32, which is exact; NaN stays NaN."""
    return np.frombuffer(convert_floats(raw, kind, F32)[0], np.float32)


def convert_floats(raw: memoryview, source: int, kind: int) -> tuple[memoryview, Losses]:
    """The finite floats of `raw` in the type `kind`, rounded to nearest even, and what that lost."""
    out = np.empty(raw.nbytes // TYPES[source].size * TYPES[kind].size, np.uint8)
    losses = Losses(*_native.fl_convert(source, np.frombuffer(raw, np.uint8), kind, out))
    return out.data, losses
