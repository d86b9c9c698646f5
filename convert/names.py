"""The tensor table (`names.toml`): which tensors a draft has, how each dialect spells them, and their shapes.

Pure but for reading its own packaged table. `match` proves that a file has exactly the tensors of its spec:
nothing missing, nothing left over, every shape as the spec says.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from .errors import InputError
from .spec import DraftSpec

SPELLINGS = ("gguf", "hf", "lucebox", "ik")
"""The columns of the table that are names."""


@dataclass(frozen=True, slots=True)
class TensorRule:
    """One row of the table."""

    gguf: str
    """Canonical name, `{i}` where the layer goes."""
    spellings: Mapping[str, tuple[str, ...]]
    """Spelling column to the accepted names, the written one first."""
    shape: tuple[str, ...]
    """PyTorch order, letters of the table's head."""
    store: str
    """`matrix`, `f32` or `i64`."""
    variants: frozenset[str]
    """Variants that have it; empty for all."""
    optional: bool

    @property
    def per_layer(self) -> bool:
        """Whether every layer has one."""
        return "{i}" in self.gguf

    def belongs(self, variant: str) -> bool:
        """Whether a draft of this variant has it."""
        return not self.variants or variant in self.variants

    def dims(self, spec: DraftSpec) -> tuple[int, ...]:
        """The shape in numbers, PyTorch order."""
        letters = sizes(spec)
        return tuple(letters[name] for name in self.shape)


@dataclass(frozen=True, slots=True)
class Match:
    """A tensor of a file and the row it is."""

    rule: TensorRule
    layer: int
    """-1 for a tensor of the whole model."""
    source: str
    """Its name in the file."""

    @property
    def name(self) -> str:
        """Its canonical name."""
        return self.rule.gguf.format(i=self.layer)

    def spelled(self, column: str) -> str:
        """Its name as dialect `column` writes it."""
        return self.rule.spellings[column][0].format(i=self.layer)


def sizes(spec: DraftSpec) -> dict[str, int]:
    """The letters of the table in numbers."""
    conv, selector = spec.conv, spec.selector
    letters = {
        "H": spec.hidden_size, "F": spec.feature_size, "ff": spec.intermediate_size, "V": spec.vocab_size,
        "hd": spec.head_dim, "nh": spec.num_attention_heads, "two": 2,
        "Q": spec.num_attention_heads * spec.head_dim, "KV": spec.num_key_value_heads * spec.head_dim,
    }  # fmt: skip
    if conv:
        letters |= {
            "K": conv.kernel_size,
            "P": 2 * conv.kernel_size * (spec.hidden_size // conv.group_size),
        }
    if selector:
        letters |= {"R": selector.rank}
    return letters


@cache
def rules() -> tuple[TensorRule, ...]:
    """The table, in its order."""
    raw = tomllib.loads(resources.files(__package__).joinpath("names.toml").read_text("utf-8"))
    return tuple(rule_from_row(row) for row in raw["tensor"])


def rule_from_row(row: Mapping[str, Any]) -> TensorRule:
    """One row, GGUF dialects falling back to the canonical name."""
    spellings = {"gguf": (row["gguf"],), "hf": tuple(row["hf"])}
    spellings |= {column: tuple(row.get(column, [row["gguf"]])) for column in ("lucebox", "ik")}
    return TensorRule(
        row["gguf"], spellings, tuple(row["shape"]), row["store"], frozenset(row.get("variants", ())), row.get("optional", False)
    )  # fmt: skip


@cache
def lookup(column: str) -> Mapping[str, TensorRule]:
    """Every accepted spelling of a column, layer number replaced by `{i}`, to its row."""
    return {name: rule for rule in rules() for name in rule.spellings[column]}


_LAYER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,5})(?=\.)")


def generic(name: str) -> tuple[str, int]:
    """A tensor name with its first layer number replaced by `{i}`, and that number (-1 without one)."""
    found = _LAYER.search(name)
    if found is None:
        return name, -1
    return name[: found.start()] + "{i}" + name[found.end() :], int(found[1])


def match(
    spec: DraftSpec, shapes: Mapping[str, tuple[int, ...]], column: str, where: object
) -> list[Match]:
    """The tensors of `spec` in `shapes` (name to PyTorch shape), in canonical order.

    Raises InputError where a tensor is missing, not known, there under two names, or of another shape.
    """
    found: dict[tuple[str, int], str] = {}
    unknown: list[str] = []
    table = lookup(column)
    for name in shapes:
        pattern, layer = generic(name.removeprefix("model.") if column == "hf" else name)
        rule = table.get(pattern)
        if rule is None or not rule.belongs(spec.variant) or layer >= spec.num_hidden_layers:
            unknown.append(name)
        elif (rule.gguf, layer) in found:
            raise InputError(
                "tensor is there under two names", found=f"{found[rule.gguf, layer]} and {name}", where=where, expected="one of them"
            )  # fmt: skip
        else:
            found[rule.gguf, layer] = name
    if unknown:
        raise InputError(
            f"{len(unknown)} tensors do not belong to a {spec.variant} draft of {spec.num_hidden_layers} layers",
            found=shorten(unknown), where=where, expected="only tensors that the canonical GGUF can carry",
        )  # fmt: skip
    matches = [
        Match(rule, layer, found[rule.gguf, layer])
        for rule, layer in wanted(spec)
        if (rule.gguf, layer) in found
    ]
    missing = [
        rule.spellings[column][0].format(i=layer)
        for rule, layer in wanted(spec)
        if not rule.optional and (rule.gguf, layer) not in found
    ]
    if missing:
        raise InputError(
            f"{len(missing)} tensors are missing", found=f"{len(shapes)} tensors", where=where, expected=shorten(missing),
            fix="download the checkpoint again, or check num_hidden_layers",
        )  # fmt: skip
    for m in matches:
        if shapes[m.source] != m.rule.dims(spec):
            raise InputError(
                "tensor shape contradicts the draft's geometry", found=f"{list(shapes[m.source])}",
                where=f"{where}: {m.source}", expected=f"{list(m.rule.dims(spec))} ({' x '.join(m.rule.shape)})",
            )  # fmt: skip
    return matches


def wanted(spec: DraftSpec) -> Iterable[tuple[TensorRule, int]]:
    """Row and layer of every tensor the spec may have, in canonical order."""
    for rule in rules():
        if rule.belongs(spec.variant) and not rule.per_layer:
            yield rule, -1
    for layer in range(spec.num_hidden_layers):
        for rule in rules():
            if rule.belongs(spec.variant) and rule.per_layer:
                yield rule, layer


def shorten(names: list[str], limit: int = 4) -> str:
    """The first few names and how many more."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(sorted(names)[:limit]) + more
