"""Doing a plan: read, check, convert where the type changes, write, hash; in chunks, with bounded memory.

A few threads take one tensor after another. Reading, checking, converting, hashing and writing all release the
interpreter, so two cores do twice the work of one; each thread owns one buffer, whatever the file's size.
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

from .. import _native
from .errors import InputError
from .floats import Losses, convert_floats, find_non_finite
from .ggml import FLOATS, TYPES, type_name
from .gguf_writer import GgufWriter
from .plan import PlannedTensor, Span
from .rearrange import indivisible, rearranged

CHUNK = 1 << 20
"""Bytes read at once, cut to whole blocks: small enough to stay in the cache from reading to writing."""
MAX_THREADS = 4

Progress = Callable[[int], object]
"""Called with the number of source bytes done since the last call."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What came of a tensor: sha256 as it was read and as it was written, and what a narrower type lost."""

    name: str
    source_sha256: str
    sha256: str
    losses: Losses


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
    """Write every tensor of the plan and give back what came of each, in order.

    Raises InputError where a source value is not finite, does not fit its new type (all of them counted), or a source
    file changed.
    """
    stop = Event()
    threads = min(MAX_THREADS, os.cpu_count() or 1, len(tensors))
    with ExitStack() as stack:
        sources = Sources((t.source for t in tensors), stack)
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        futures = [pool.submit(transfer_one, t, sources, writer, progress, stop) for t in tensors]
        try:
            digests = [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    refuse_overflows(tensors, digests)
    return digests


def transfer_one(
    tensor: PlannedTensor, sources: Sources, writer: GgufWriter, progress: Progress, stop: Event
) -> Digest:
    """Write one tensor; gives up between two chunks once `stop` is set."""
    into = hashlib.sha256()
    came = into if tensor.copies else hashlib.sha256()
    losses = Losses()
    done = 0
    unit = indivisible(tensor)
    whole = max(CHUNK // unit * unit, unit)
    for raw in sources.chunks(tensor.source, memoryview(bytearray(whole))):
        if stop.is_set():
            break
        check_finite(raw, tensor.source, done)
        out = raw
        if not tensor.copies:
            out, lost = changed(raw, tensor, done)
            losses += lost
            came.update(raw)
        if tensor.ids_below:
            check_ids(out, tensor)
        writer.write(tensor.name, out)
        into.update(out)
        done += len(raw)
        progress(len(raw))
    return Digest(tensor.name, came.hexdigest(), into.hexdigest(), losses)


def changed(raw: memoryview, tensor: PlannedTensor, done: int) -> tuple[memoryview, Losses]:
    """The chunk in the planned form, and what that lost; it lies `done` bytes behind the tensor's start."""
    source = tensor.source.type
    moved = rearranged(raw, tensor, done)
    if tensor.type == source:
        return moved, Losses()
    if tensor.type in FLOATS:
        return convert_floats(moved, source, tensor.type)
    weights, kind = moved.nbytes // TYPES[source].size, TYPES[tensor.type]
    blocks = np.empty(weights // kind.block * kind.size, np.uint8)
    values = np.frombuffer(moved, np.uint8)
    _native.kq_quantize(kind.id, source, values, 1, weights, None, blocks, 0)
    check_scales(blocks.data, kind.id, tensor.source, done // TYPES[source].size)
    return blocks.data, Losses()


def check_finite(raw: memoryview, span: Span, done: int) -> None:
    """Refuse values that are infinite or not a number, the first by row and column; `raw` lies `done` bytes behind the start."""
    at = find_non_finite(raw, span.type)
    if at is not None:
        kind = TYPES[span.type]
        raise InputError(
            "a weight is not finite" if kind.id in FLOATS else "a block is damaged: its scale is not finite", found="NaN or infinity",
            where=place(span, done // kind.size * kind.block + at), expected="finite weights", fix="the source is damaged; get it again",
        )  # fmt: skip


def check_scales(blocks: memoryview, kind: int, span: Span, first: int) -> None:
    """Refuse blocks of type `kind` whose scale is not finite; weight `first` of the tensor is their first."""
    at = find_non_finite(blocks, kind)
    if at is not None:
        raise InputError(
            f"a weight is too large for {type_name(kind)}", found="a block whose scale does not fit binary16", where=place(span, first + at),
            expected="finite scales", fix="give the tensor another type",
        )  # fmt: skip


def place(span: Span, weight: int) -> str:
    """File, tensor and index of the weight with that number in the source."""
    index = []
    for dim in span.shape if span.transposed else span.shape[::-1]:
        weight, i = divmod(weight, dim)
        index.append(str(i))
    return f"{span.file}: {span.name}[{', '.join(reversed(index))}]"


def check_ids(out: memoryview, tensor: PlannedTensor) -> None:
    """Refuse token ids outside the vocabulary."""
    ids = np.frombuffer(out, "<i8")
    if ids.min() < 0 or ids.max() >= tensor.ids_below:
        raise InputError(
            "token id is outside the vocabulary", found=f"{ids.min()} to {ids.max()}", where=f"{tensor.source.file}: {tensor.source.name}",
            expected=f"0 to {tensor.ids_below - 1}",
        )  # fmt: skip


def refuse_overflows(tensors: Sequence[PlannedTensor], digests: Sequence[Digest]) -> None:
    """Raise InputError with the number of values that became infinite, and the first tensor that has some."""
    bad = [
        (t, d.losses.overflows) for t, d in zip(tensors, digests, strict=True) if d.losses.overflows
    ]
    if bad:
        first, count = bad[0]
        kind = type_name(first.type)
        raise InputError(
            f"{sum(n for _, n in bad)} values do not fit {kind}", found=f"{count} in {first.source.name}, {len(bad)} tensors in all",
            where=first.source.file, expected=f"values within {kind}", fix="use --outtype bf16 or f32",
        )  # fmt: skip
