"""Doing a plan: read, convert where the type changes, write, hash; in chunks, with bounded memory.

The main thread reads and writes, a second one hashes and looks for values that are not finite; both release the
interpreter while they work. A ring of buffers between them bounds the memory whatever the file's size.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from .errors import InputError
from .floats import from_float32, non_finite, overflows, to_float32
from .ggml import BF16, F16, F32, FLOATS, type_name
from .gguf_writer import GgufWriter
from .plan import PlannedTensor, Span

CHUNK = 4 << 20
"""Bytes read at once; a multiple of every float's size."""
DEPTH = 4
"""Chunks in flight."""

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

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.fds: dict[str, int] = {}

    def read(self, span: Span, position: int, into: memoryview) -> None:
        """Fill `into` from `position` bytes behind the span's start."""
        fd = self.fds.get(span.file)
        if fd is None:
            fd = self.fds[span.file] = os.open(span.file, os.O_RDONLY | os.O_CLOEXEC)
            self.stack.callback(os.close, fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        done = 0
        while done < len(into):
            count = os.preadv(fd, [into[done:]], span.offset + position + done)
            if count == 0:
                raise InputError(
                    "source file became shorter while it was read", found=f"end at {span.offset + position + done}",
                    where=f"{span.file}: {span.name}", expected=f"{span.offset + span.nbytes} bytes",
                )  # fmt: skip
            done += count


class Ring:
    """Buffers that are reused in turn; one is handed out only when the work on it is done."""

    def __init__(self, worker: ThreadPoolExecutor) -> None:
        self.worker = worker
        self.buffers = [memoryview(bytearray(CHUNK)) for _ in range(DEPTH)]
        self.pending: list[Future[None] | None] = [None] * DEPTH
        self.next = 0

    def take(self, count: int) -> memoryview:
        """`count` bytes of the next buffer."""
        self.settle(self.next)
        return self.buffers[self.next][:count]

    def submit(self, job: Callable[[], None]) -> None:
        """Work on the buffer that was taken last, in order."""
        self.pending[self.next] = self.worker.submit(job)
        self.next = (self.next + 1) % DEPTH

    def settle(self, slot: int) -> None:
        """Wait for the work on a buffer; its error is raised here."""
        future = self.pending[slot]
        if future is not None:
            self.pending[slot] = None
            future.result()

    def drain(self) -> None:
        """Wait for all work."""
        for step in range(DEPTH):
            self.settle((self.next + step) % DEPTH)


def transfer(
    tensors: Sequence[PlannedTensor], writer: GgufWriter, progress: Progress
) -> list[Digest]:
    """Write every tensor of the plan in order and give back its digests.

    Raises InputError where a source value is not finite or does not fit, or a source file changed.
    """
    hashes: list[tuple[str, Any, Any]] = []
    with ExitStack() as stack:
        sources = Sources(stack)
        ring = Ring(stack.enter_context(ThreadPoolExecutor(1)))
        for tensor in tensors:
            into = hashlib.sha256()
            came = into if tensor.copies else hashlib.sha256()
            for position, count in chunks(tensor.source.nbytes):
                raw = ring.take(count)
                sources.read(tensor.source, position, raw)
                out = raw if tensor.copies else narrowed(raw, tensor)
                ring.submit(lambda t=tensor, r=raw, o=out, i=into, c=came: observe(t, r, o, i, c))  # type: ignore[misc]
                writer.write(tensor.name, out)
                progress(count)
            hashes.append((tensor.name, came, into))
        ring.drain()
    return [Digest(name, came.hexdigest(), into.hexdigest()) for name, came, into in hashes]


def chunks(nbytes: int) -> Iterator[tuple[int, int]]:
    """Position and size of each chunk."""
    for position in range(0, nbytes, CHUNK):
        yield position, min(CHUNK, nbytes - position)


def observe(tensor: PlannedTensor, raw: memoryview, out: memoryview, into: Any, came: Any) -> None:
    """Hash a chunk and refuse values that are not finite."""
    span = tensor.source
    into.update(out)
    if came is not into:
        came.update(raw)
    if span.type in FLOATS and (bad := non_finite(raw, span.type)):
        raise InputError(
            f"tensor has {bad} values that are not finite", found="NaN or infinity", where=f"{span.file}: {span.name}",
            expected="finite weights", fix="the checkpoint is damaged; download it again",
        )  # fmt: skip


def narrowed(raw: memoryview, tensor: PlannedTensor) -> memoryview:
    """The chunk in the planned type."""
    return from_float32(to_float32(raw, tensor.source.type), tensor.type)


def check_fit(tensors: Sequence[PlannedTensor]) -> None:
    """Refuse a plan whose narrower type cannot hold every value; reads what is to be narrowed once.

    Raises InputError with the number of values and the first tensor that has some.
    """
    bad: dict[str, int] = {}
    buffer = memoryview(bytearray(CHUNK))
    narrower = {(F32, F16), (BF16, F16), (F32, BF16)}
    with ExitStack() as stack:
        sources = Sources(stack)
        for t in tensors:
            if (t.source.type, t.type) not in narrower:
                continue
            for position, count in chunks(t.source.nbytes):
                sources.read(t.source, position, buffer[:count])
                if not non_finite(buffer[:count], t.source.type):
                    bad[t.source.name] = bad.get(t.source.name, 0) + overflows(
                        buffer[:count], t.source.type, t.type
                    )
    bad = {name: count for name, count in bad.items() if count}
    if bad:
        name, count = next(iter(bad.items()))
        kind = next(type_name(t.type) for t in tensors if t.source.name == name)
        raise InputError(
            f"{sum(bad.values())} values do not fit {kind}", found=f"{count} in {name}, {len(bad)} tensors in all", where=tensors[0].source.file,
            expected=f"values within {kind}", fix="use --outtype bf16 or f32",
        )  # fmt: skip
