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

GGUF_DIALECTS = ("gguf", "lucebox", "ik")
"""The columns that spell GGUFs: canonical (llama.cpp's), Lucebox's, ik's and its relatives'."""


ANY = "any"
"""In place of a column: a GGUF that mixes the names of several dialects, as hand-patched ones do."""


@dataclass(frozen=True, slots=True)
class TensorRule:
    """One row of the table."""

    gguf: str
    """Canonical name, `{i}` where the layer goes; the row's identity even where the canonical GGUF lacks it."""
    spellings: Mapping[str, tuple[str, ...]]
    """Column (`hf` and GGUF_DIALECTS) to the accepted names, the written one first; a column may be absent."""
    shape: tuple[str, ...]
    """PyTorch order, letters of the table's head."""
    store: str
    """`matrix`, `f32` or `i64`."""
    variants: frozenset[str]
    """Variants that have it, or variants with a kind of Markov head; empty for all."""
    optional: bool
    zeros: str
    """Canonical name of the tensor beside which zeros stand for this one where it is absent; empty for none."""
    per: str
    """`layer`, `tap` or `draft`: what there is one for."""

    def belongs(self, spec: DraftSpec) -> bool:
        """Whether such a draft has it."""
        kinds = {spec.variant, f"{spec.variant}-{spec.markov_head_type}"}
        return not self.variants or not kinds.isdisjoint(self.variants)

    def places(self, spec: DraftSpec) -> range:
        """The numbers that go into its name; one -1 for a tensor of the whole draft."""
        if self.per == "layer":
            return range(spec.num_hidden_layers)
        return range(len(spec.target_layer_ids)) if self.per == "tap" else range(-1, 0)

    def dims(self, spec: DraftSpec) -> tuple[int, ...]:
        """The shape in numbers, PyTorch order."""
        letters = sizes(spec)
        return tuple(letters[name] if name in letters else int(name) for name in self.shape)


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
    state = spec.domino.gru_hidden_dim if spec.domino else 0
    return {
        "H": spec.hidden_size, "F": spec.feature_size, "T": spec.target_hidden_size, "ff": spec.intermediate_size,
        "V": spec.vocab_size, "D": spec.draft_vocab_size or spec.vocab_size, "hd": spec.head_dim,
        "nh": spec.num_attention_heads, "Q": spec.num_attention_heads * spec.head_dim,
        "KV": spec.num_key_value_heads * spec.head_dim, "M": spec.markov_rank, "C": spec.hidden_size + spec.markov_rank,
        "K": spec.conv.kernel_size if spec.conv else 0,
        "P": 2 * spec.conv.kernel_size * (spec.hidden_size // spec.conv.group_size) if spec.conv else 0,
        "R": spec.selector.rank if spec.selector else 0,
        "M3": 3 * spec.markov_rank, "J": spec.hidden_size + 2 * spec.markov_rank,
        "G": state, "G3": 3 * state, "GH": spec.hidden_size + state, "E": spec.domino.emb_dim if spec.domino else 0,
    }  # fmt: skip


@cache
def table() -> Mapping[str, Any]:
    """The packaged table as it is written."""
    return tomllib.loads(resources.files(__package__).joinpath("names.toml").read_text("utf-8"))


@cache
def rules() -> tuple[TensorRule, ...]:
    """The rows, in their order."""
    return tuple(rule_from_row(row) for row in table()["tensor"])


@cache
def dropped() -> Mapping[str, str]:
    """Names in checkpoints that are left out, `{i}` for the layer, to the reason."""
    return {name: row["reason"] for row in table()["dropped"] for name in row["hf"]}


def rule_from_row(row: Mapping[str, Any]) -> TensorRule:
    """One row; a GGUF dialect that carries the tensor and has no spelling of its own uses the canonical name."""
    name = row["gguf"]
    spellings = {
        column: tuple(row.get(column, [name])) for column in row.get("carried", GGUF_DIALECTS)
    }
    spellings["gguf"] = (name,) if "gguf" in spellings else ()
    per = row.get("per", "layer" if name.startswith("blk.") else "draft")
    return TensorRule(
        name, {k: v for k, v in spellings.items() if v} | {"hf": tuple(row["hf"])}, tuple(row["shape"]), row["store"],
        frozenset(row.get("variants", ())), row.get("optional", False), row.get("zeros", ""), per,
    )  # fmt: skip


@cache
def lookup(column: str) -> Mapping[str, TensorRule]:
    """Every accepted spelling of a column, layer number replaced by `{i}`, to its row."""
    columns = GGUF_DIALECTS if column == ANY else (column,)
    return {name: rule for c in columns for rule in rules() for name in rule.spellings.get(c, ())}


_LAYER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,5})(?=\.)")


WRAPPINGS = (
    "logit_head.", "logits_correction.", "domino_head.", "markov_head.", "dspark_markov_head.",
)  # fmt: skip
"""Modules that trainers keep a head in; one of them may stand in front of its tensors' names."""


def plain(name: str) -> str:
    """A checkpoint's name without the wrappings that trainers and re-exports add."""
    name = name.removeprefix("model.")
    if name.startswith("midlayer."):
        return f"layers.0.{name[9:]}"
    if name.startswith("dspark_confidence_head."):
        return name.removeprefix("dspark_")
    return next((name.removeprefix(w) for w in WRAPPINGS if name.startswith(w)), name)


def generic(name: str) -> tuple[str, int]:
    """A tensor name with its first layer number replaced by `{i}`, and that number (-1 without one)."""
    found = _LAYER.search(name)
    if found is None:
        return name, -1
    return name[: found.start()] + "{i}" + name[found.end() :], int(found[1])


def known(name: str) -> bool:
    """Whether a draft's checkpoint may have a tensor of this name, a fused one included."""
    pattern = generic(plain(name))[0]
    pattern = pattern.replace(".qkv_proj.", ".q_proj.")
    return pattern in lookup("hf") or plain(name) in lookup("hf") or pattern in dropped()


def match(
    spec: DraftSpec, shapes: Mapping[str, tuple[int, ...]], column: str, where: object
) -> list[Match]:
    """The tensors of `spec` in `shapes` (name to PyTorch shape), in canonical order.

    Raises InputError where a tensor is missing, not known, there under two names, or of another shape.
    """
    found = identify(spec, shapes, column, where)
    missing = [
        rule.spellings.get(column, (rule.gguf,))[0].format(i=place)
        for rule in rules()
        for place in rule.places(spec)
        if rule.belongs(spec) and (rule.gguf, place) not in found
        if not rule.optional or any(gguf == rule.gguf for gguf, _ in found)
    ]
    if missing:
        raise InputError(
            f"{len(missing)} tensors are missing", found=f"{len(shapes)} tensors", where=where, expected=shorten(missing),
            fix="download the checkpoint again, or check num_hidden_layers",
        )  # fmt: skip
    matches = [
        Match(rule, i, found[rule.gguf, i]) for rule, i in ordered(spec) if (rule.gguf, i) in found
    ]
    for m in matches:
        if shapes[m.source] != m.rule.dims(spec):
            raise InputError(
                "tensor shape contradicts the draft's geometry", found=f"{list(shapes[m.source])}",
                where=f"{where}: {m.source}", expected=f"{list(m.rule.dims(spec))} ({' x '.join(m.rule.shape)})",
            )  # fmt: skip
    return matches


def identify(
    spec: DraftSpec, shapes: Mapping[str, tuple[int, ...]], column: str, where: object
) -> dict[tuple[str, int], str]:
    """Canonical name and place of every tensor to its name in the file; unknown ones are refused by name."""
    found: dict[tuple[str, int], str] = {}
    unknown: list[str] = []
    wrapped = [name for name in shapes if name.startswith("model.")]
    bare = [name for name in shapes if name.startswith(("layers.", "fc.", "norm."))]
    if column == "hf" and wrapped and bare:
        raise InputError(
            "names with and without model. are mixed", found=f"{wrapped[0]} and {bare[0]}", where=where, expected="one kind"
        )  # fmt: skip
    for name in shapes:
        own = plain(name) if column == "hf" else name
        pattern, place = (own, -1) if own in lookup(column) else generic(own)
        rule = lookup(column).get(pattern)
        if column == "hf" and pattern in dropped():
            continue
        if rule is None or not rule.belongs(spec) or place not in rule.places(spec):
            unknown.append(name)
        elif (rule.gguf, place) in found:
            raise InputError(
                "tensor is there under two names", found=f"{found[rule.gguf, place]} and {name}", where=where, expected="one of them"
            )  # fmt: skip
        else:
            found[rule.gguf, place] = name
    if unknown:
        raise InputError(
            f"{len(unknown)} tensors do not belong to a {spec.variant} draft of {spec.num_hidden_layers} layers",
            found=shorten(unknown), where=where, expected="only tensors that a GGUF of this kind can carry",
        )  # fmt: skip
    return found


def ordered(spec: DraftSpec) -> Iterable[tuple[TensorRule, int]]:
    """Row and place of every tensor the spec may have: those of the whole draft, then layer by layer."""
    for rule in rules():
        if rule.per != "layer" and rule.belongs(spec):
            yield from ((rule, place) for place in rule.places(spec))
    for layer in range(spec.num_hidden_layers):
        yield from ((rule, layer) for rule in rules() if rule.per == "layer" and rule.belongs(spec))


def shorten(names: list[str], limit: int = 4) -> str:
    """The first few names and how many more."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(sorted(names)[:limit]) + more
