"""The drafts that people have published (`manifests/drafts/*.toml`): recognise one by its tensors, say what differs.

The same geometry has been published with different windows, masks and layers, and one name with several geometries;
so the name is the one that the file names, else the one whose known fields fit best, and a difference is a note. Only
what converters are known to have damaged (a dropped window, layer ids stored by the other convention) is a defect, and
only where everything else fits. Pure but for its table.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from .causality import causality
from .checks import VARIANTS
from .errors import InputError, UsageError, one_line
from .spec import DraftSpec

GEOMETRY = (
    "variant", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "head_dim",
)  # fmt: skip
"""What the tensors show: a draft of another geometry is another draft."""

PLAIN = (
    "block_size", "mask_token_id", "target_layer_ids", "num_target_layers", "sliding_window", "rope_theta", "vocab_size",
    "rms_norm_eps", "final_logit_softcapping", "logit_scale", "attention_value_scale",
)  # fmt: skip
"""Fields that are compared as they stand."""


@dataclass(frozen=True, slots=True)
class Published:
    """One published draft: its name and every field that is known of it."""

    name: str
    fields: Mapping[str, Any]
    captures: int
    causal: str
    """`none`, `all` or `sliding`; empty where it is not known."""
    notes: str
    target: str = ""
    """Family of the target's GGUF architecture, where it is known."""

    def supplied(self) -> dict[str, Any]:
        """What it can supply to a file that lost it, as `given` fields of the readers."""
        names = (
            "block_size",
            "mask_token_id",
            "target_layer_ids",
            "sliding_window",
            "sliding_layers",
            "rope_theta",
        )
        found = {name: self.fields[name] for name in names if name in self.fields}
        return found | ({"causality": self.causal} if self.causal else {})

    def has_geometry(self, spec: DraftSpec) -> bool:
        """Whether the spec's tensors could be this draft's."""
        return self.captures == len(spec.target_layer_ids) and all(
            self.fields[name] == getattr(spec, name) for name in GEOMETRY
        )

    def values(self, spec: DraftSpec) -> dict[str, Any]:
        """The spec fields that are known of it; causality follows its own sliding layers, else the spec's."""
        known = {
            name: self.fields[name] for name in (*PLAIN, "sliding_layers") if name in self.fields
        }
        if self.causal:
            sliding = known.get("sliding_layers", spec.sliding_layers)
            known["causal_layers"] = causality(self.causal, sliding)
        return known

    def differing(self, spec: DraftSpec, unknown: Collection[str] = ()) -> dict[str, Any]:
        """The fields that the spec says otherwise, with the published value; those that are `unknown` are not asked."""
        return {
            name: value
            for name, value in self.values(spec).items()
            if name not in unknown and getattr(spec, name) != value
        }

    def differences(self, spec: DraftSpec, unknown: Collection[str] = ()) -> list[str]:
        """What the spec says otherwise, as `field is found, published was value`."""
        return [
            f"{name} is {shown(getattr(spec, name))}, published was {shown(value)}"
            for name, value in self.differing(spec, unknown).items()
        ]

    def named_in(self, text: str) -> bool:
        """Whether `text` (a file's own name for its model) names this draft or its target."""
        stem = re.sub(r"[-_ ]DFlash.*| \(.*", "", self.name.rpartition("/")[2], flags=re.IGNORECASE)
        return f"-{slug(stem)}-" in f"-{slug(text)}-"

    def lost_window(self, spec: DraftSpec) -> bool:
        """Whether this draft has a sliding window and the spec none."""
        return bool(self.fields.get("sliding_window")) and spec.sliding_window == 0

    def shift(self, spec: DraftSpec) -> int:
        """What every layer id of the spec lies above the published one; 0 where they are equal or not shifted by one."""
        apart = {
            a - b
            for a, b in zip(spec.target_layer_ids, self.fields["target_layer_ids"], strict=True)
        }
        return apart.pop() if apart in ({1}, {-1}) else 0

    def is_damaged(self, spec: DraftSpec, unknown: Collection[str] = ()) -> bool:
        """Whether the spec is this draft, but for what converters are known to have damaged."""
        excused = set()
        if self.lost_window(spec):
            excused |= {"sliding_window", "sliding_layers", "causal_layers"}
        if self.shift(spec):
            excused |= {"target_layer_ids"}
        return self.differing(spec, unknown).keys() <= excused


def slug(text: str) -> str:
    """`text` in lower case, its words joined by single dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def shown(value: Any) -> str:
    """A field's value in a message."""
    return str(list(value)) if isinstance(value, tuple) else str(value)


@cache
def published() -> tuple[Published, ...]:
    """All packaged drafts, by file name and order."""
    folder = resources.files("dflash_gguf.manifests").joinpath("drafts")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return tuple(p for f in files for p in parse_table(f.read_bytes(), f.name))


SIZES = {name: int for name in (*GEOMETRY[1:], *PLAIN) if name != "target_layer_ids"}
REALS = dict.fromkeys(("rope_theta", "rms_norm_eps", "final_logit_softcapping", "logit_scale", "attention_value_scale"), (int, float))  # fmt: skip
TYPES: dict[str, Any] = SIZES | REALS | {
    "name": str, "variant": str, "captures": int, "target_layer_ids": list, "layers": str, "causal": str, "notes": str,
    "conv_kernel_size": int, "conv_group_size": int, "selector_rank": int, "selector_top_k": int,
}  # fmt: skip
"""What a row may say, and the type of it."""

NEEDED = ("name", *GEOMETRY, "captures", "target_layer_ids")
"""What every row must say."""


def parse_table(raw: bytes, where: str) -> tuple[Published, ...]:
    """The drafts of one table. Raises InputError with the field for anything that is not a sound one."""
    try:
        table = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError("the table of published drafts is not TOML", found=one_line(error), where=where) from error  # fmt: skip
    rows, target = table.get("draft"), table.get("target", "")
    if not isinstance(rows, list) or not isinstance(target, str) or table.keys() - {"draft", "target"}:  # fmt: skip
        raise InputError("the table of published drafts has other parts", found=one_line(sorted(table)), where=where, expected="[[draft]] rows, and a target")  # fmt: skip
    return tuple(from_row(row, f"{where}: row {i}", target) for i, row in enumerate(rows))


def from_row(row: Any, where: str, target: str = "") -> Published:
    """One row of a table; `layers` has a letter a layer, s for sliding and f for full. `target` is the table's."""

    def check(holds: bool, what: str, found: object, expected: str) -> None:
        if not holds:
            raise InputError(what, found=one_line(found), where=where, expected=expected)

    check(isinstance(row, dict), "not a row", row, "a table")
    absent = [name for name in NEEDED if name not in row]
    check(not absent, "a published draft lacks a field", absent, " ".join(NEEDED))
    for name, value in row.items():
        kind = TYPES.get(name)
        sound = kind is not None and isinstance(value, kind) and not isinstance(value, bool)
        check(sound, f"{one_line(name)} is not known, or of the wrong type", value, str(kind))
    ids, layers, causal = row["target_layer_ids"], row.get("layers"), row.get("causal", "")
    whole = all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
    check(whole and len(ids) == row["captures"], "layer ids do not fit", ids, f"{row['captures']} numbers")  # fmt: skip
    check(row["variant"] in VARIANTS, "variant is not known", row["variant"], " ".join(VARIANTS))
    check(causal in ("", "none", "all", "sliding"), "causality is not known", causal, "none, all or sliding")  # fmt: skip
    fields = {name: row[name] for name in (*GEOMETRY, *PLAIN) if name in row}
    fields["target_layer_ids"] = tuple(ids)
    if layers is not None:
        check(len(layers) == row["num_hidden_layers"] and set(layers) <= {"s", "f"}, "layers do not fit", layers, "a letter s or f for each layer")  # fmt: skip
        fields["sliding_layers"] = tuple(letter == "s" for letter in layers)
        fields.setdefault("sliding_window", 0)
    return Published(row["name"], fields, row["captures"], causal, row.get("notes", ""), target)


def candidates(spec: DraftSpec, name: str = "", unknown: Collection[str] = ()) -> list[Published]:
    """The published drafts of the spec's geometry, the likeliest first: those that `name` names, then by what differs."""

    def rank(p: Published) -> tuple[bool, int]:
        return not p.named_in(name), len(p.differing(spec, unknown))

    return sorted((p for p in published() if p.has_geometry(spec)), key=rank)


def recognise(
    spec: DraftSpec, name: str = "", unknown: Collection[str] = ()
) -> tuple[Published, list[str]] | None:
    """The likeliest published draft and what differs from it, None where no geometry fits.

    `name` is what the file calls its model; `unknown` are fields of the spec that mean nothing.
    """
    best = next(iter(candidates(spec, name, unknown)), None)
    return None if best is None else (best, best.differences(spec, unknown))


def by_name(name: str) -> Published:
    """The published draft of that name. Raises UsageError with the known names."""
    for p in published():
        if name in (p.name, p.name.partition("/")[2]):
            return p
    raise UsageError(
        "no published draft of this name is known", found=name, expected=", ".join(p.name for p in published()),
        fix="pass the fields as options, or --config",
    )  # fmt: skip
