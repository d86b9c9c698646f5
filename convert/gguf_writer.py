"""The GGUF writer: header bytes from a layout that is complete before the first byte is written.

Deterministic: equal fields and tensors give equal bytes. `GgufLayout` is pure; `GgufWriter` streams the tensor
data in the order of the layout and checks every tensor's bytes against it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType

from .errors import InputError
from .fields import Field, encode, encode_text
from .ggml import tensor_bytes
from .gguf import ALIGNMENT, MAGIC, TensorInfo
from .output import Buffer, OutputFile, OutputSet

VERSION = 3

BEHIND = 64 << 20
"""Bytes of a tensor that are made before the disk is told to begin with them."""


@dataclass(frozen=True)
class GgufLayout:
    """Everything of a GGUF but the tensor data."""

    fields: Mapping[str, Field]
    """Metadata, written in this order."""
    tensors: Sequence[tuple[str, int, tuple[int, ...]]]
    """Name, ggml type id, GGUF shape; written in this order."""

    @cached_property
    def relative(self) -> list[tuple[int, int]]:
        """Offset in the data section and bytes of each tensor."""
        spans, offset = [], 0
        for name, kind, shape in self.tensors:
            nbytes = tensor_bytes(kind, shape, name)
            spans.append((offset, nbytes))
            offset += aligned(nbytes)
        return spans

    @cached_property
    def header(self) -> bytes:
        """All bytes before the data section, padding included."""
        parts = [MAGIC, struct.pack("<IQQ", VERSION, len(self.tensors), len(self.fields))]
        parts += [encode_text(key) + encode(field) for key, field in self.fields.items()]
        for (name, kind, shape), (offset, _) in zip(self.tensors, self.relative, strict=True):
            parts.append(encode_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
            parts.append(struct.pack("<IQ", kind, offset))
        raw = b"".join(parts)
        return raw.ljust(aligned(len(raw)), b"\0")

    @cached_property
    def infos(self) -> dict[str, TensorInfo]:
        """The tensors with absolute offsets, as a reader of the file will see them."""
        start = len(self.header)
        return {
            name: TensorInfo(name, kind, shape, start + offset, nbytes)
            for (name, kind, shape), (offset, nbytes) in zip(
                self.tensors, self.relative, strict=True
            )
        }

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + sum(aligned(nbytes) for _, nbytes in self.relative)


def aligned(count: int) -> int:
    """`count` rounded up to the alignment."""
    return -(-count // ALIGNMENT) * ALIGNMENT


class GgufWriter:
    """Streams the data of a layout into an open output.

    `write` takes the next bytes of a tensor. Tensors may come in any order and from several threads, one thread a
    tensor. A tensor that gets too much or too little is our mistake and raises ValueError before anything takes its
    final name.
    """

    def __init__(self, file: OutputFile, layout: GgufLayout) -> None:
        self.file = file
        self.layout = layout
        self.done = dict.fromkeys(layout.infos, 0)
        file.reserve(layout.size)
        file.write(layout.header, 0)

    def write(self, name: str, data: Buffer) -> None:
        """The next bytes of tensor `name`."""
        info, done, count = self.layout.infos[name], self.done[name], memoryview(data).nbytes
        if done + count > info.nbytes:
            raise ValueError(
                f"writer got {done + count} bytes for {name}, its plan wants {info.nbytes}"
            )
        self.file.write(data, info.offset + done)
        self.done[name] = done + count
        if done + count == info.nbytes or (done + count) // BEHIND > done // BEHIND:
            start = done // BEHIND * BEHIND
            self.file.start_writing(info.offset + start, done + count - start)

    def finish(self) -> None:
        """Check that the file is whole."""
        short = [name for name, info in self.layout.infos.items() if self.done[name] != info.nbytes]
        if short:
            raise ValueError(f"writer got too few bytes for {short[0]}")
        self.file.check(self.layout.size, self.layout.header)


class GgufOutput:
    """`GgufWriter` for one file that appears under its name only if the block ends well.

    ::

        with GgufOutput(path, fields, tensors, overwrite=False, inputs=[source]) as writer:
            writer.write("output_norm.weight", data)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Mapping[str, Field],
        tensors: Sequence[tuple[str, int, tuple[int, ...]]],
        *,
        overwrite: bool = False,
        inputs: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        if not tensors:
            raise InputError("nothing to write: no tensors", where=path, expected="at least one")
        self.path = Path(path)
        self.layout = GgufLayout(fields, tensors)
        self.outputs = OutputSet([self.path], overwrite=overwrite, inputs=inputs)

    def __enter__(self) -> GgufWriter:
        """The writer, header written."""
        files = self.outputs.__enter__()
        try:
            self.writer = GgufWriter(files[0], self.layout)
        except BaseException:
            self.outputs.abandon()
            raise
        return self.writer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Check and rename, or remove what was written."""
        if kind is None:
            try:
                self.writer.finish()
            except BaseException:
                self.outputs.abandon()
                raise
        self.outputs.__exit__(kind, error, trace)
