"""What a conversion will write: every tensor with its source, type, bytes and offset. Pure.

The plan is complete before an output is opened; doing it is copying.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from .errors import InputError, UsageError
from .fields import Field
from .ggml import BF16, BY_NAME, F16, F32, FLOATS, I64, Q8_0, fit_row, tensor_bytes, type_name
from .gguf_writer import GgufLayout
from .matrices import why_kept
from .names import Match, shorten
from .spec import DraftSpec
from .spelling import DIALECTS

OUTTYPES = {"source": None, "bf16": BF16, "f16": F16, "f32": F32, "q8_0": Q8_0}
"""`--outtype` to the type of matrices; None keeps each tensor's own."""

NUMBERS = frozenset(BY_NAME[n].id for n in ("I8", "I16", "I32", "I64", "F64"))
"""Types that no matrix of a draft may have."""

WRITTEN = FLOATS | {Q8_0}
"""Types that plain floats are converted to."""

STORE = {"f32": F32, "i64": I64}
"""`store` of a tensor rule to the one type it may have."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a source tensor: where they lie and what they are."""

    name: str
    file: str
    offset: int
    nbytes: int
    type: int
    """ggml type id."""
    shape: tuple[int, ...]
    """PyTorch order, as it ought to be."""
    transposed: bool = False
    """Whether the bytes lie the other way round."""
    interleaved: int = 0
    """Rows of a head whose rotated pairs are neighbours; they are put half and half. 0: they are already."""
    overlay: bytes = b""
    """What stands in place of the file's bytes, from `overlay_at` on; where it covers the span, no file is read."""
    overlay_at: int = 0


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of the output."""

    name: str
    type: int
    shape: tuple[int, ...]
    """GGUF order."""
    nbytes: int
    source: Span
    offsets: bool = False
    """Whether the source counts from each row's own number (`d2t` of a checkpoint), the output absolutely."""
    ids_below: int = 0
    """For token ids: the vocabulary they must lie in; 0 for weights."""
    wanted: str = ""
    """The type that was asked for, where the row's length forbade it."""

    @property
    def copies(self) -> bool:
        """Whether the source's bytes are kept."""
        return self.type == self.source.type and not self.rearranged

    @property
    def rearranged(self) -> bool:
        """Whether the values change places, or count from elsewhere, whatever their type."""
        return self.offsets or self.source.transposed or self.source.interleaved > 0


@dataclass(frozen=True)
class ConvertPlan:
    """Everything a conversion writes."""

    spec: DraftSpec
    fields: Mapping[str, Field]
    tensors: tuple[PlannedTensor, ...]

    @cached_property
    def layout(self) -> GgufLayout:
        """The output without its tensor data."""
        return GgufLayout(self.fields, [(t.name, t.type, t.shape) for t in self.tensors])

    @property
    def notes(self) -> list[str]:
        """What the plan could not do as it was asked, in words."""
        odd = [t for t in self.tensors if t.wanted]
        return [
            f"{len(odd)} tensors have rows that {odd[0].wanted} blocks do not divide and become {type_name(odd[0].type)}: "
            + shorten([t.name for t in odd])
        ] if odd else []  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The plan as `--dry-run --json` prints it."""
        layout = self.layout
        return {
            "bytes": layout.size,
            "spec": self.spec.to_json(),
            "tensors": [
                {
                    "name": t.name, "type": type_name(t.type), "shape": list(t.shape), "offset": layout.infos[t.name].offset,
                    "bytes": t.nbytes, "source": t.source.name, "source_type": type_name(t.source.type),
                } | ({"instead_of": t.wanted} if t.wanted else {})
                for t in self.tensors
            ],
        }  # fmt: skip


def plan_tensors(
    matches: Sequence[Match],
    spans: Mapping[str, Span],
    outtype: str,
    vocab_size: int,
    column: str = "gguf",
    origin: str = "gguf",
) -> tuple[PlannedTensor, ...]:
    """The output's tensors in canonical order, named as dialect `column` spells them; `origin` spelled the source.

    Raises InputError for what the dialect or a GGUF cannot carry, UsageError where `outtype` would requantise.
    """
    lost = [m for m in matches if column not in m.rule.spellings]
    if lost:
        able = [d for d, c in DIALECTS.items() if all(c in m.rule.spellings for m in matches)]
        raise InputError(
            f"{len(lost)} tensors that this dialect cannot carry", found=shorten([m.source for m in lost]), where=spans[lost[0].source].file,
            expected="tensors that its runtimes load", fix=f"use --dialect {' or '.join(able)}" if able else "no dialect carries all of them",
        )  # fmt: skip
    planned = [plan_tensor(m, spans[m.source], OUTTYPES[outtype], column) for m in matches]
    return tuple(
        replace(t, offsets=origin == "hf", ids_below=vocab_size) if t.type == I64 else t
        for t in planned
    )


def plan_tensor(match: Match, span: Span, matrix: int | None, column: str) -> PlannedTensor:
    """One tensor: its type by its rule and `--outtype`."""
    shape = span.shape[::-1]
    kind, wanted = stored_type(match, span.type, shape, matrix)
    if match.rule.store == "matrix" and span.type in NUMBERS:
        raise InputError(
            "matrix has a type without weights", found=type_name(span.type), where=f"{span.file}: {span.name}",
            expected="floats, or a quantised type",
        )  # fmt: skip
    if kind != span.type and not (span.type in FLOATS and kind in WRITTEN):
        if match.rule.store == "matrix":
            raise UsageError(
                "a quantised tensor cannot be given another type here", found=type_name(span.type), where=f"{span.file}: {span.name}",
                expected="--outtype source", fix="convert the original checkpoint",
            )  # fmt: skip
        raise InputError(
            "tensor has a type it cannot have", found=type_name(span.type), where=f"{span.file}: {span.name}", expected=type_name(kind)
        )  # fmt: skip
    nbytes = tensor_bytes(kind, shape, span.name)
    return PlannedTensor(match.spelled(column), kind, shape, nbytes, span, wanted=wanted)


def stored_type(
    match: Match, source: int, shape: tuple[int, ...], matrix: int | None
) -> tuple[int, str]:
    """The type of a tensor, and the one that was asked for where its rows forbid that.

    A float type is for what the tensor's rule calls a matrix, a quantised one for what llama-quantize would touch.
    """
    kept = STORE.get(match.rule.store, source)
    if matrix in FLOATS:
        return STORE.get(match.rule.store, matrix), ""
    if matrix is None or why_kept(match.name, shape):
        return kept, ""
    fitted = fit_row(matrix, shape[0])
    return fitted, "" if fitted == matrix else type_name(matrix)


def source_type(dtype: str, where: str) -> int:
    """The ggml id of a safetensors dtype; what cannot be carried is refused, never silently dropped."""
    kind = BY_NAME.get(dtype)
    if kind is None or kind.id not in FLOATS | {I64}:
        raise InputError(
            "tensor has a type that cannot be converted", found=dtype, where=where, expected="BF16, F16 or F32",
            fix="use the unquantised checkpoint; its scales cannot be carried along",
        )  # fmt: skip
    return kind.id


def main_type(tensors: Iterable[tuple[int, int]]) -> int:
    """The type that most weights have, of pairs (type, weights)."""
    counts: Counter[int] = Counter()
    for kind, weights in tensors:
        counts[kind] += weights
    return counts.most_common(1)[0][0]


def weight_count(tensors: Sequence[PlannedTensor]) -> int:
    """Weights in all tensors."""
    return sum(prod(t.shape) for t in tensors)
