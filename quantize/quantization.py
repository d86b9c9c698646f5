"""The plan of a quantised file: every tensor with its source, type, bytes and offset, before anything is written. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..convert.canonical import FILE_TYPES, GUESSED
from ..convert.errors import InputError, UsageError
from ..convert.fields import Field, u32
from ..convert.ggml import FLOATS, tensor_bytes, type_name
from ..convert.gguf_writer import GgufLayout
from ..convert.plan import PlannedTensor, Span, main_type
from .metrics import bits_per_weight
from .policy import Decision, Facts, Override, Tensor, decide
from .qtypes import BY_ID
from .schemes import Scheme
from .source import Source

QUANTIZATION_VERSION = 2
"""`general.quantization_version`: the block formats as they are since 2023."""

DROPPED = ("general.alignment", "split.no", "split.count", "split.tensors.count")
"""Keys that speak of the source file, not of the model: the output has alignment 32 and is whole."""


@dataclass(frozen=True, slots=True)
class QuantTensor:
    """One tensor of the output."""

    decision: Decision
    source: PlannedTensor
    nbytes: int

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.decision.name

    @property
    def span(self) -> Span:
        """Where the source bytes lie, and their type."""
        return self.source.source

    @property
    def copies(self) -> bool:
        """Whether the source's bytes are kept."""
        return self.keeps_type and not self.source.rearranged

    @property
    def keeps_type(self) -> bool:
        """Whether the source's type is kept."""
        return self.decision.type == self.span.type


@dataclass(frozen=True)
class QuantPlan:
    """Everything a quantisation writes."""

    scheme: Scheme
    fields: Mapping[str, Field]
    tensors: tuple[QuantTensor, ...]

    @cached_property
    def layout(self) -> GgufLayout:
        """The output without its tensor data."""
        return GgufLayout(
            self.fields, [(t.name, t.decision.type, t.decision.shape) for t in self.tensors]
        )

    @property
    def fallbacks(self) -> list[QuantTensor]:
        """The tensors whose row length forbade the type the scheme asked for."""
        return [t for t in self.tensors if t.decision.wanted]

    def totals(self) -> dict[str, Any]:
        """Bytes, weights and bits per weight of the whole file, by type and in all."""
        by_type: Counter[str] = Counter()
        for t in self.tensors:
            by_type[type_name(t.decision.type)] += t.nbytes
        nbytes = sum(t.nbytes for t in self.tensors)
        weights = sum(t.decision.weights for t in self.tensors)
        lost = sum(t.nbytes for t in self.fallbacks)
        return {
            "bytes": self.layout.size,
            "source_bytes": sum(t.span.nbytes for t in self.tensors),
            "weights": weights,
            "bits_per_weight": round(bits_per_weight(nbytes, weights), 4),
            "bytes_by_type": dict(by_type.most_common()),
            "fallback_tensors": len(self.fallbacks),
            "fallback_bytes_share": round(lost / nbytes, 6) if nbytes else 0.0,
        }


def plan_quantization(
    source: Source,
    scheme: Scheme,
    overrides: Sequence[Override] = (),
    *,
    strict: bool = False,
    allow_requantize: bool = False,
) -> QuantPlan:
    """The plan for `source` under `scheme`.

    Raises UsageError for an override that matches nothing, a fallback under `strict`, and for a quantised source
    whose type would change without `allow_requantize`.
    """
    by_name = {t.name: t for t in source.tensors}
    facts = Facts(
        source.spec.num_hidden_layers,
        source.spec.num_attention_heads // source.spec.num_key_value_heads,
        "output.weight" not in by_name,
    )
    decisions = decide(
        scheme, [Tensor(t.name, t.type, t.shape) for t in source.tensors], facts, overrides
    )
    tensors = tuple(
        QuantTensor(d, by_name[d.name], tensor_bytes(d.type, d.shape, d.name)) for d in decisions
    )
    plan = QuantPlan(scheme, output_fields(source.fields, scheme, tensors), tensors)
    refuse_unreadable(plan)
    if not allow_requantize:
        refuse_requantizing(plan)
    if strict and plan.fallbacks:
        first = plan.fallbacks[0].decision
        raise UsageError(
            f"{len(plan.fallbacks)} tensors do not take the type the scheme asks for",
            found=f"rows of {first.shape[0]}, {type_name(first.type)} instead of {first.wanted}", where=first.name,
            expected="rows that the block divides (--strict)", fix="drop --strict, or give the tensor a type with --tensor-type",
        )  # fmt: skip
    return plan


def refuse_requantizing(plan: QuantPlan) -> None:
    """Raise UsageError where a tensor that is quantised already would change its type."""
    again = [t for t in plan.tensors if not t.keeps_type and t.span.type not in FLOATS]
    if again:
        first = again[0].decision
        raise UsageError(
            f"{len(again)} tensors are quantised already", found=f"{type_name(first.source)}, to become {type_name(first.type)}",
            where=first.name, expected="F32, F16 or BF16", fix="start from the unquantised file, or pass --allow-requantize",
        )  # fmt: skip


def refuse_unreadable(plan: QuantPlan) -> None:
    """Raise UsageError where a tensor would have to be decoded from a type that this library does not know."""
    for t in plan.tensors:
        if not t.keeps_type and t.span.type not in BY_ID:
            raise UsageError(
                "a tensor's type cannot be decoded", found=type_name(t.span.type), where=t.name,
                expected=" ".join(sorted(kind.name for kind in BY_ID.values())), fix=f"--tensor-type '{t.name}=keep'",
            )  # fmt: skip


def output_fields(
    fields: Mapping[str, Field], scheme: Scheme, tensors: Sequence[QuantTensor]
) -> dict[str, Field]:
    """The source's metadata with file type and quantisation version set, and what speaks of the old file dropped."""
    kept = {key: field for key, field in fields.items() if key not in DROPPED}
    quantised = any(t.decision.type not in FLOATS and prod(t.decision.shape) for t in tensors)
    kept["general.file_type"] = u32(file_type(scheme, tensors))
    if quantised:
        kept["general.quantization_version"] = u32(QUANTIZATION_VERSION)
    return kept


def file_type(scheme: Scheme, tensors: Sequence[QuantTensor]) -> int:
    """`general.file_type`: the scheme's, or what the converter says of the type that most weights have."""
    if scheme.file_type is not None:
        return scheme.file_type
    main = main_type((t.decision.type, t.decision.weights) for t in tensors)
    return FILE_TYPES.get(type_name(main), GUESSED)


def match_importance(
    plan: QuantPlan, importance: Mapping[str, npt.NDArray[np.float32]], where: object
) -> dict[str, npt.NDArray[np.float32]]:
    """The importance of those tensors that the plan quantises.

    An embedding of another size is left out, as llama-quantize does. Raises InputError where any other size does not
    fit, a mean is not finite, or no entry names a tensor of the draft.
    """
    found = {}
    for t in plan.tensors:
        if t.name not in importance:
            continue
        wanted = (prod(t.decision.shape[2:]), t.decision.shape[0])
        if not np.isfinite(importance[t.name]).all():
            raise InputError(
                "importance is not finite", found="a mean too large for float32", where=f"{where}: {t.name}",
                expected="finite means", fix="collect it again",
            )  # fmt: skip
        if importance[t.name].shape == wanted:
            found[t.name] = importance[t.name]
        elif not t.name.endswith("token_embd.weight"):
            raise InputError(
                "importance does not fit the tensor", found=f"{importance[t.name].shape[1]} columns", where=f"{where}: {t.name}",
                expected=f"{wanted[1]} columns", fix="collect it on this draft",
            )  # fmt: skip
    if not found:
        raise InputError(
            "the importance matrix belongs to another model", found=f"{len(importance)} entries, none of them a tensor of this draft",
            where=where, expected=plan.tensors[0].name,
        )  # fmt: skip
    return found
