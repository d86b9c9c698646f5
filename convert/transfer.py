"""Doing a plan: read, check, convert where the type changes, write, hash; in chunks, with bounded memory.

A few threads take one tensor after another. Reading, hashing, checking and writing all release the interpreter, so
two cores do twice the work of one; each thread owns one buffer, whatever the file's size.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event

import numpy as np

from .errors import InputError
from .floats import BITS, from_float32, non_finite, overflows, to_float32
from .ggml import BF16, F16, F32, TYPES, type_name
from .gguf_writer import GgufWriter
from .plan import PlannedTensor, Span

CHUNK = 2 << 20
"""Bytes read at once, cut to whole blocks."""
MAX_THREADS = 4

Progress = Callable[[int], object]
"""Called with the number of source bytes done since the last call."""


@dataclass(frozen=True, slots=True)
class Digest:
    """sha256 of a tensor as it was read and as it was written."""

    name: str
    source_sha256: str
    sha256: str


class Sources:
    """The open source files; read by position, every byte that was promised or an error."""

    def __init__(self, spans: Iterable[Span], stack: ExitStack) -> None:
        self.fds: dict[str, int] = {}
        for file in {span.file for span in spans}:
            self.fds[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, self.fds[file])

    def chunks(self, span: Span, buffer: memoryview) -> Iterator[memoryview]:
        """The bytes of `span`, piece after piece, each in the same `buffer`."""
        for position in range(0, span.nbytes, len(buffer)):
            piece = buffer[: span.nbytes - position]
            self.read(span, position, piece)
            yield piece

    def read(self, span: Span, position: int, into: memoryview) -> None:
        """Fill `into` from `position` bytes behind the span's start, its overlay laid over what the file has."""
        begin = span.overlay_at - position
        first, last = max(begin, 0), min(begin + len(span.overlay), len(into))
        done = len(into) if first == 0 and last == len(into) else 0
        while done < len(into):
            count = os.preadv(self.fds[span.file], [into[done:]], span.offset + position + done)
            if count == 0:
                raise InputError(
                    "source file became shorter while it was read", found=f"end at {span.offset + position + done}",
                    where=f"{span.file}: {span.name}", expected=f"{span.offset + span.nbytes} bytes",
                )  # fmt: skip
            done += count
        if first < last:
            into[first:last] = span.overlay[first - begin : last - begin]


def transfer(
    tensors: Sequence[PlannedTensor], writer: GgufWriter, progress: Progress
) -> list[Digest]:
    """Write every tensor of the plan and give back its digests, in order.

    Raises InputError where a source value is not finite or a source file changed.
    """
    stop = Event()
    threads = min(MAX_THREADS, os.cpu_count() or 1, len(tensors))
    with ExitStack() as stack:
        sources = Sources((t.source for t in tensors), stack)
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        futures = [pool.submit(transfer_one, t, sources, writer, progress, stop) for t in tensors]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def transfer_one(
    tensor: PlannedTensor, sources: Sources, writer: GgufWriter, progress: Progress, stop: Event
) -> Digest:
    """Write one tensor; gives up between two chunks once `stop` is set."""
    into = hashlib.sha256()
    came = into if tensor.copies else hashlib.sha256()
    done = 0
    unit = indivisible(tensor.source)
    whole = max(CHUNK // unit * unit, unit)
    for raw in sources.chunks(tensor.source, memoryview(bytearray(whole))):
        if stop.is_set():
            break
        check_finite(raw, tensor.source)
        out = raw if tensor.copies else changed(raw, tensor, done)
        if tensor.ids_below:
            check_ids(out, tensor)
        writer.write(tensor.name, out)
        into.update(out)
        if came is not into:
            came.update(raw)
        done += len(raw)
        progress(len(raw))
    return Digest(tensor.name, came.hexdigest(), into.hexdigest())


def indivisible(span: Span) -> int:
    """Bytes that a chunk must not cut: a block, a head that is rearranged, a matrix that is turned."""
    if span.transposed:
        return span.nbytes
    rows = span.shape[0]
    return span.nbytes // rows * span.interleaved if span.interleaved else TYPES[span.type].size


def check_finite(raw: memoryview, span: Span) -> None:
    """Refuse values that are infinite or not a number."""
    if bad := non_finite(raw, span.type):
        raise InputError(
            f"tensor has {bad} values or scales that are not finite", found="NaN or infinity", where=f"{span.file}: {span.name}",
            expected="finite weights", fix="the checkpoint is damaged; download it again",
        )  # fmt: skip


def check_ids(out: memoryview, tensor: PlannedTensor) -> None:
    """Refuse token ids outside the vocabulary."""
    ids = np.frombuffer(out, "<i8")
    if ids.min() < 0 or ids.max() >= tensor.ids_below:
        raise InputError(
            "token id is outside the vocabulary", found=f"{ids.min()} to {ids.max()}", where=f"{tensor.source.file}: {tensor.source.name}",
            expected=f"0 to {tensor.ids_below - 1}",
        )  # fmt: skip


def changed(raw: memoryview, tensor: PlannedTensor, done: int) -> memoryview:
    """The chunk in the planned form; it lies `done` bytes behind the tensor's start."""
    raw = rearranged(raw, tensor, done)
    same = tensor.type == tensor.source.type
    return raw if same else from_float32(to_float32(raw, tensor.source.type), tensor.type)


def rearranged(raw: memoryview, tensor: PlannedTensor, done: int) -> memoryview:
    """The chunk in the source's type, its values where and what they ought to be; `done` as in `changed`."""
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
    return np.ascontiguousarray(
        np.frombuffer(raw, BITS[span.type]).reshape(columns, rows).T
    ).data.cast("B")


def halved(raw: memoryview, span: Span) -> memoryview:
    """Whole heads, the even rows of each first and then the odd ones."""
    width = span.nbytes // span.shape[0]
    heads = np.frombuffer(raw, np.uint8).reshape(-1, span.interleaved // 2, 2, width)
    return np.ascontiguousarray(heads.transpose(0, 2, 1, 3)).data.cast("B")


def check_fit(tensors: Sequence[PlannedTensor]) -> None:
    """Refuse a plan whose narrower type cannot hold every value; reads what is to be narrowed once.

    Raises InputError with the number of values and the first tensor that has some.
    """
    bad: dict[str, int] = {}
    narrower = {(F32, F16), (BF16, F16), (F32, BF16)}
    chosen = [t for t in tensors if (t.source.type, t.type) in narrower]
    with ExitStack() as stack:
        sources = Sources((t.source for t in chosen), stack)
        for t in chosen:
            for raw in sources.chunks(t.source, memoryview(bytearray(CHUNK))):
                check_finite(raw, t.source)
                bad[t.source.name] = bad.get(t.source.name, 0) + overflows(
                    raw, t.source.type, t.type
                )
    bad = {name: count for name, count in bad.items() if count}
    if bad:
        name, count = next(iter(bad.items()))
        kind = next(type_name(t.type) for t in tensors if t.source.name == name)
        raise InputError(
            f"{sum(bad.values())} values do not fit {kind}", found=f"{count} in {name}, {len(bad)} tensors in all", where=tensors[0].source.file,
            expected=f"values within {kind}", fix="use --outtype bf16 or f32",
        )  # fmt: skip
