"""Attestation: a quantised file is what its source gives, tensor by tensor, or it is not.

Nothing is taken on trust but the two files: the types are those that the quantised file has, the bytes are made again
from the source and compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..convert.errors import InputError, VerdictError
from ..convert.fields import Field, encode
from ..convert.ggml import tensor_bytes, type_name
from ..convert.gguf import GgufFile, TensorInfo, read_gguf
from .imatrix import Imatrix
from .policy import Decision
from .qtypes import BY_ID
from .quantization import DROPPED, QuantPlan, QuantTensor, match_importance
from .schemes import Scheme
from .source import Source
from .stream import Progress, Result, quantize_tensors

CHANGED = frozenset({*DROPPED, "general.file_type", "general.quantization_version"})
"""Keys that quantising may change."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found."""

    results: Sequence[Result]
    different: Sequence[str]
    """Tensors whose bytes are others, in file order."""
    keys: Sequence[str]
    """Metadata keys that are missing, new or changed."""

    def to_json(self) -> dict[str, Any]:
        """The verdict as `--json` prints it."""
        return {
            "equal": not (self.different or self.keys),
            "tensors": len(self.results),
            "different_tensors": list(self.different),
            "different_keys": list(self.keys),
        }

    def raise_if_different(self, where: object) -> None:
        """Raise VerdictError (exit 4) unless everything is equal."""
        if self.different or self.keys:
            found = [*self.different, *self.keys]
            raise VerdictError(
                f"{len(self.different)} tensors and {len(self.keys)} keys are not what the source gives",
                found=", ".join(found[:5]) + (", ..." if len(found) > 5 else ""), where=where, expected="equal bytes",
                fix="the imatrix that was used must be given too; else quantise again",
            )  # fmt: skip


def plan_from(file: GgufFile, source: Source) -> QuantPlan:
    """The plan that would make `file` from `source`. Raises InputError where the tensors are not the same."""
    by_name = {t.name: t for t in source.tensors}
    if by_name.keys() != file.tensors.keys():
        odd = sorted(by_name.keys() ^ file.tensors.keys())
        raise InputError(
            "the files do not have the same tensors", found=f"{len(odd)} only in one, {odd[0]} first", where=file.path, expected=str(source.path)
        )  # fmt: skip
    tensors = []
    for info in file.tensors.values():
        t = by_name[info.name]
        if info.shape != t.shape or (info.type not in BY_ID and info.type != t.type):
            raise InputError(
                "the tensor is another", found=f"{type_name(info.type)} {list(info.shape)}", where=f"{file.path}: {info.name}",
                expected=f"{list(t.shape)} of a type that can be made again",
            )  # fmt: skip
        d = Decision(info.name, info.shape, t.type, info.type, "as the file says")
        tensors.append(QuantTensor(d, t, tensor_bytes(info.type, info.shape, info.name)))
    return QuantPlan(Scheme("as the file says", "q8_0"), file.fields, tuple(tensors))


def verify(
    path: str | os.PathLike[str],
    source: Source,
    imatrix: Imatrix | None,
    *,
    threads: int,
    progress: Progress = lambda _: None,
) -> Verdict:
    """Make `path` again from `source` and compare. Raises InputError where that cannot be done."""
    file = read_gguf(path)
    plan = plan_from(file, source)
    importance = match_importance(plan, imatrix.importance(), imatrix.where) if imatrix else None
    different: dict[str, None] = {}
    done: dict[str, int] = {}
    with Path(path).open("rb") as stored:

        def compare(name: str, data: memoryview) -> None:
            info: TensorInfo = file.tensors[name]
            stored.seek(info.offset + done.get(name, 0))
            if stored.read(data.nbytes) != data:
                different[name] = None
            done[name] = done.get(name, 0) + data.nbytes

        results = quantize_tensors(
            plan, compare, threads=threads, importance=importance, progress=progress
        )
    keys = [
        key
        for key in sorted((file.fields.keys() | source.fields.keys()) - CHANGED)
        if encoded(file.fields.get(key)) != encoded(source.fields.get(key))
    ]
    return Verdict(results, list(different), keys)


def encoded(value: Field | None) -> bytes | None:
    """A metadata value as its bytes, None where there is none."""
    return None if value is None else encode(value)
