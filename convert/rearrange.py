"""Values that lie in another order in the source than in the output; whole heads or matrices at a time. Pure."""

from __future__ import annotations

import numpy as np

from .ggml import TYPES
from .plan import PlannedTensor, Span

WORDS = {2: "<u2", 4: "<u4"}
"""Bytes of a float to the array type that moves it."""


def indivisible(tensor: PlannedTensor) -> int:
    """Source bytes that a chunk must not cut: a block of either type, a head that is rearranged, a matrix that is turned."""
    span = tensor.source
    if span.transposed:
        return span.nbytes
    if span.interleaved:
        return span.nbytes // span.shape[0] * span.interleaved
    source = TYPES[span.type]
    return source.size * max(1, TYPES[tensor.type].block // source.block)


def rearranged(raw: memoryview, tensor: PlannedTensor, done: int) -> memoryview:
    """The chunk in the source's type, its values where and what they ought to be; it lies `done` bytes behind the start."""
    if tensor.source.transposed:
        raw = turned(raw, tensor.source)
    if tensor.source.interleaved:
        raw = halved(raw, tensor.source)
    if not tensor.offsets:
        return raw
    values = np.frombuffer(raw, "<i8")
    rows = np.arange(done // 8, done // 8 + values.size)
    return (values + rows).data.cast("B")


def turned(raw: memoryview, span: Span) -> memoryview:
    """A whole matrix, rows and columns exchanged."""
    rows, columns = span.shape
    values = np.frombuffer(raw, WORDS[TYPES[span.type].size]).reshape(columns, rows)
    return np.ascontiguousarray(values.T).data.cast("B")


def halved(raw: memoryview, span: Span) -> memoryview:
    """Whole heads, the even rows of each first and then the odd ones."""
    width = span.nbytes // span.shape[0]
    heads = np.frombuffer(raw, np.uint8).reshape(-1, span.interleaved // 2, 2, width)
    return np.ascontiguousarray(heads.transpose(0, 2, 1, 3)).data.cast("B")
