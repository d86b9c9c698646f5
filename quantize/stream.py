"""Doing a plan: read, check, quantise, measure, hash, write; row chunk by row chunk, on any number of threads.

Workers take chunks of whole rows; the calling thread takes their results in file order, hashes and writes, and one more
thread hashes the source. At most
`threads + 2` chunks are in flight, so memory is bounded whatever the file's size; bytes and measures do not depend on
the number of threads, because a row's result depends on nothing but the row.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import prod
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..convert.errors import InputError
from ..convert.floats import convert_floats, find_non_finite, widened
from ..convert.ggml import FLOATS, TYPES, type_name
from ..convert.rearrange import rearranged
from ..convert.transfer import Sources, check_finite, check_ids, check_scales, place
from .metrics import ErrorSums
from .qtypes import BY_ID
from .quantization import QuantPlan, QuantTensor

CHUNK_BYTES = 1 << 20
"""Source bytes of a chunk: small enough that the passes over it stay in a core's cache."""

Bytes = npt.NDArray[np.uint8]
Importance = Mapping[str, npt.NDArray[np.float32]]
"""Tensor name to (matrices, row length) float32: one vector for each matrix of a stack."""
Progress = Callable[[int], object]
"""Called with the number of source bytes done since the last call."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one tensor."""

    tensor: QuantTensor
    source_sha256: str
    sha256: str
    errors: ErrorSums | None
    """None where the bytes were copied."""
    weighted: bool
    """Importance took part."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one tensor: the unit of work."""

    tensor: QuantTensor
    row: int
    rows: int
    importance: npt.NDArray[np.float32] | None

    @property
    def row_bytes(self) -> int:
        """Bytes of a source row."""
        kind = TYPES[self.tensor.span.type]
        return self.tensor.decision.shape[0] // kind.block * kind.size

    @property
    def last(self) -> bool:
        """Whether the tensor ends here."""
        return self.row + self.rows == prod(self.tensor.decision.shape[1:])


@dataclass(slots=True)
class Done:
    """A piece's bytes before and after."""

    source: Bytes
    output: Bytes
    errors: ErrorSums | None


@dataclass(slots=True)
class Running:
    """The hashes and sums of the tensor being written."""

    tensor: QuantTensor
    source: Any = field(default_factory=hashlib.sha256)
    output: Any = field(default_factory=hashlib.sha256)
    errors: ErrorSums | None = None

    def add(self, done: Done, hasher: Executor) -> None:
        """Take the next piece, in order; `hasher` takes the source's hash while this thread takes the output's."""
        source = hasher.submit(self.source.update, done.source)
        if not self.tensor.copies:
            self.output.update(done.output)
        if done.errors is not None:
            self.errors = done.errors + (self.errors or ErrorSums())
        source.result()

    def result(self, *, weighted: bool) -> Result:
        """The finished tensor."""
        came = self.source.hexdigest()
        wrote = came if self.tensor.copies else self.output.hexdigest()
        return Result(self.tensor, came, wrote, self.errors, weighted)


def pieces(tensor: QuantTensor, importance: npt.NDArray[np.float32] | None) -> Iterator[Piece]:
    """The tensor in chunks of whole rows; with importance no chunk crosses from one matrix into the next."""
    shape = tensor.decision.shape
    whole = Piece(tensor, 0, prod(shape[1:]), None)
    step = whole_heads(tensor, max(1, CHUNK_BYTES // whole.row_bytes))
    matrix_rows = whole.rows if importance is None else shape[1]
    for start in range(0, whole.rows, matrix_rows):
        weights = None if importance is None else importance[start // matrix_rows]
        if weights is not None and not weights.any():
            weights = None  # only zeros say nothing, and would make everything zero
        for row in range(start, start + matrix_rows, step):
            yield Piece(tensor, row, min(step, start + matrix_rows - row), weights)


def whole_heads(tensor: QuantTensor, rows: int) -> int:
    """At most about `rows`, such that no chunk cuts a head that is rearranged or a matrix that is turned."""
    if tensor.span.transposed:
        return max(1, prod(tensor.decision.shape[1:]))
    head = tensor.span.interleaved
    if head == 0 or len(tensor.decision.shape) < 2:  # a vector is one row, always whole
        return rows
    return max(head, rows // head * head)


class Pool:
    """Source buffers that are used again, each grown to what it has to hold."""

    def __init__(self, count: int) -> None:
        self.free: SimpleQueue[Bytes] = SimpleQueue()
        for _ in range(count):
            self.free.put(np.empty(CHUNK_BYTES, np.uint8))

    def take(self, nbytes: int) -> Bytes:
        """A buffer of `nbytes`; the caller waits where none is free."""
        buffer = self.free.get()
        if buffer.size < nbytes:
            buffer = np.empty(nbytes, np.uint8)
        return buffer[:nbytes]

    def give(self, view: Bytes) -> None:
        """Take a buffer back."""
        assert view.base is not None
        self.free.put(view.base)


def quantize_tensors(
    plan: QuantPlan,
    emit: Callable[[str, memoryview], object],
    *,
    threads: int,
    importance: Importance | None = None,
    progress: Progress = lambda _: None,
) -> list[Result]:
    """Quantise every tensor of the plan and hand its bytes, in order, to `emit(name, bytes)`.

    Raises InputError for a weight that is not finite or does not fit its type (tensor, row and column named), or a
    source file that changed.
    """
    importance = importance or {}
    results: list[Result] = []
    with ExitStack() as stack:
        sources = Sources((tensor.span for tensor in plan.tensors), stack)
        pool = Pool(threads + 2)
        hasher = stack.enter_context(ThreadPoolExecutor(1))
        workers = stack.enter_context(ThreadPoolExecutor(threads))
        stack.callback(partial(workers.shutdown, wait=True, cancel_futures=True))
        waiting: deque[tuple[Piece, Future[Done]]] = deque()
        running: Running | None = None

        def settle() -> None:
            nonlocal running
            piece, future = waiting.popleft()
            done = future.result()
            if running is None or running.tensor is not piece.tensor:
                running = Running(piece.tensor)
            running.add(done, hasher)
            emit(piece.tensor.name, done.output.data)
            progress(done.source.size)
            if piece.last:
                results.append(running.result(weighted=piece.importance is not None))
            pool.give(done.source)

        for tensor in plan.tensors:
            for piece in pieces(tensor, importance_of(tensor, importance)):
                while len(waiting) >= threads + 2:
                    settle()
                buffer = pool.take(piece.rows * piece.row_bytes)
                waiting.append((piece, workers.submit(work, piece, buffer, sources)))
        while waiting:
            settle()
    return results


def importance_of(tensor: QuantTensor, importance: Importance) -> npt.NDArray[np.float32] | None:
    """The importance that takes part in quantising the tensor, if any does."""
    kind = BY_ID.get(tensor.decision.type)
    if tensor.keeps_type or kind is None or not kind.searches:
        return None
    return importance.get(tensor.name)


def work(piece: Piece, buffer: Bytes, sources: Sources) -> Done:
    """Read, check, quantise and measure one piece; runs on a worker."""
    span = piece.tensor.span
    sources.read(span, piece.row * piece.row_bytes, buffer.data)
    check_finite(buffer.data, span, piece.row * piece.row_bytes)
    raw = converted(piece, buffer)
    if piece.tensor.keeps_type:
        return Done(buffer, raw, None)
    if span.type in FLOATS:
        output, errors = encode(piece, raw, span.type)
        return Done(buffer, output, errors)
    cols = piece.tensor.decision.shape[0]
    wide = np.empty(piece.rows * cols, np.float32)
    _native.kq_dequantize(span.type, raw, piece.rows, cols, wide)
    output, errors = encode(piece, wide.view(np.uint8), BY_ID[0].id)
    return Done(buffer, output, errors)


def converted(piece: Piece, buffer: Bytes) -> Bytes:
    """The piece as dflash-convert would write it in the source's type. Raises InputError for ids outside the vocabulary."""
    source = piece.tensor.source
    raw = buffer
    if source.rearranged:
        raw = np.frombuffer(rearranged(buffer.data, source, piece.row * piece.row_bytes), np.uint8)
    if source.ids_below:
        check_ids(raw.data, source)
    return raw


def encode(piece: Piece, raw: Bytes, source: int) -> tuple[Bytes, ErrorSums]:
    """The piece's float bytes `raw` in its new type, and what that cost."""
    cols, kind = piece.tensor.decision.shape[0], BY_ID[piece.tensor.decision.type]
    if kind.is_float:
        return narrow(piece, raw, source)
    blocks = np.empty(piece.rows * kind.row_bytes(cols), np.uint8)
    _native.kq_quantize(kind.id, source, raw, piece.rows, cols, piece.importance, blocks, 0)
    check_scales(blocks.data, kind.id, piece.tensor.span, piece.row * cols)
    return blocks, ErrorSums(*_native.kq_measure(kind.id, source, raw, blocks, piece.rows, cols))


def narrow(piece: Piece, raw: Bytes, source: int) -> tuple[Bytes, ErrorSums]:
    """The piece in another float type. Raises InputError where a weight does not fit it."""
    kind = piece.tensor.decision.type
    output, losses = convert_floats(raw.data, source, kind)
    if losses.overflows:
        at = find_non_finite(output, kind) or 0
        raise InputError(
            f"a weight does not fit {type_name(kind)}", found="too large",
            where=place(piece.tensor.span, piece.row * piece.tensor.decision.shape[0] + at),
            expected="finite weights", fix="give the tensor a type with --tensor-type",
        )  # fmt: skip
    wide = widened(raw.data, source).astype(np.float64)
    y = widened(output, kind).astype(np.float64)
    e = wide - y
    errors = ErrorSums(float(wide @ wide), float(y @ y), float(wide @ y), float(e @ e))
    return np.frombuffer(output, np.uint8), errors
