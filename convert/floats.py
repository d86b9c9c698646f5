"""Plain float formats in NumPy: widen, narrow, and find what a format cannot hold. Pure.

BF16 rounds to nearest even, as the hardware and PyTorch do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ggml import BF16, F16, F32, TYPES

DTYPES: dict[int, np.dtype[Any]] = {
    F32: np.dtype("<f4"),
    F16: np.dtype("<f2"),
    BF16: np.dtype("<u2"),
}
"""ggml id to the array type that holds its bytes; BF16 as its bits."""

EXPONENT: dict[int, Any] = {
    F32: np.uint32(0x7F800000),
    F16: np.uint16(0x7C00),
    BF16: np.uint16(0x7F80),
}
"""The exponent's bits; all of them set means infinity or not a number."""

BLOCK = 1 << 17
"""Values looked at together: they and their exponents stay in the cache, which doubles the speed."""

BITS: dict[int, np.dtype[Any]] = {F32: np.dtype("<u4"), F16: np.dtype("<u2"), BF16: np.dtype("<u2")}


def non_finite(raw: memoryview, kind: int) -> int:
    """How many values of `raw`, or scales of its whole blocks, are infinite or not a number."""
    if kind not in EXPONENT:
        return bad_scales(raw, kind)
    mask = EXPONENT[kind]
    bits = np.frombuffer(raw, BITS[kind])
    exponents = np.empty(min(BLOCK, bits.size), bits.dtype)
    count = 0
    for start in range(0, bits.size, BLOCK):
        piece = bits[start : start + BLOCK]
        found = np.bitwise_and(piece, mask, out=exponents[: piece.size])
        if found.max() == mask:
            count += int(np.count_nonzero(found == mask))
    return count


def bad_scales(raw: memoryview, kind: int) -> int:
    """How many scales of quantised blocks are infinite or not a number."""
    block = TYPES[kind]
    rows = np.frombuffer(raw, np.uint8).reshape(-1, block.size)
    return sum(non_finite(rows[:, at : at + 2].copy().data.cast("B"), F16) for at in block.scales)


def to_float32(raw: memoryview, kind: int) -> NDArray[np.float32]:
    """The values of `raw` as float32."""
    values = np.frombuffer(raw, DTYPES[kind])
    if kind == BF16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def from_float32(values: NDArray[np.float32], kind: int) -> memoryview:
    """The bytes of finite `values` in the format `kind`, rounded to nearest even; too large becomes infinite."""
    if kind == BF16:
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).data.cast("B")
    with np.errstate(over="ignore"):
        return values.astype(DTYPES[kind]).data.cast("B")


def overflows(raw: memoryview, source: int, kind: int) -> int:
    """How many finite values of `raw` would become infinite in the format `kind`."""
    return non_finite(from_float32(to_float32(raw, source), kind), kind)
