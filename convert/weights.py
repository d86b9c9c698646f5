"""Reading every weight of a draft to find values that are not finite, by tensor and index; in chunks, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .floats import find_non_finite, widened
from .ggml import F16, FLOATS, TYPES, type_name
from .plan import Span
from .transfer import Sources

CHUNK = 2 << 20
"""Bytes read at once, cut to whole blocks."""

Progress = Callable[[int], object]
"""Called with the number of bytes read since the last call."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Values of one tensor, or scales of its blocks, that are infinite or not a number."""

    span: Span
    count: int
    index: tuple[int, ...]
    """Of the first one, in PyTorch order (rows first); in a quantised tensor of the first weight of its block."""
    value: str
    """`nan`, `inf` or `-inf`."""

    def error(self) -> InputError:
        """The damage as an error."""
        kind = type_name(self.span.type)
        what = "values" if self.span.type in FLOATS else "scales of blocks"
        at = ", ".join(map(str, self.index))
        return InputError(
            f"tensor has {self.count} {what} that are not finite", found=f"{self.value} in {kind}, first at [{at}]",
            where=f"{self.span.file}: {self.span.name}[{at}]", expected="finite weights",
            fix="the weights are damaged and no option brings them back: get the file again",
        )  # fmt: skip


def damaged(spans: Iterable[Span], progress: Progress = lambda _: None) -> Iterator[Damage]:
    """Every tensor that has values which are not finite, in the order of `spans`.

    Types whose scales are not known (ggml's packed two-bit and three-bit kinds) have nothing to look at. Raises
    InputError where a file became shorter meanwhile.
    """
    spans = list(spans)
    with ExitStack() as stack:
        sources = Sources(spans, stack)
        for span in spans:
            found = scan(span, sources, progress)
            if found is not None:
                yield found


def scan(span: Span, sources: Sources, progress: Progress) -> Damage | None:
    """The damage of one tensor, None where all of it is finite."""
    block = TYPES[span.type]
    buffer = memoryview(bytearray(max(CHUNK // block.size, 1) * block.size))
    count, first, value, done = 0, -1, "", 0
    for raw in sources.chunks(span, buffer):
        at = find_non_finite(raw, span.type)
        if at is not None:
            bad = bad_values(raw, span.type)
            if first < 0:
                first, value = done // block.size * block.block + at, str(bad[0])
            count += bad.size
        done += len(raw)
        progress(len(raw))
    return Damage(span, count, position(first, span.shape), value) if count else None


def bad_values(raw: memoryview, kind: int) -> NDArray[np.float32]:
    """The values of `raw`, or scales of its blocks, that are not finite, in their order."""
    values = raw
    if kind not in FLOATS:
        block = TYPES[kind]
        rows = np.frombuffer(raw, np.uint8).reshape(-1, block.size)
        scales = np.concatenate([rows[:, at : at + 2] for at in block.scales], axis=1)
        values, kind = np.ascontiguousarray(scales).data.cast("B"), F16
    every = widened(values, kind)
    return every[~np.isfinite(every)]


def position(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of weight number `flat` of a tensor."""
    index = []
    for i in range(len(shape)):
        width = prod(shape[i + 1 :])
        index.append(flat // width)
        flat %= width
    return tuple(index)
