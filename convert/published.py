"""The drafts that people have published (`manifests/drafts/*.toml`): recognise one by its tensors, say what differs.

The same geometry has been published with different windows, masks and layers, and one name with several geometries;
so the name is the one whose known fields fit best, and a difference is a note, never an error. Pure but for its table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from .errors import UsageError
from .gguf_dialects import causality
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

    def differences(self, spec: DraftSpec) -> list[str]:
        """What the spec says otherwise, as `field: found, published value`."""
        wanted = {
            name: self.fields[name] for name in (*PLAIN, "sliding_layers") if name in self.fields
        }
        if self.causal:
            wanted["causal_layers"] = causality(self.causal, spec.sliding_layers)
        return [
            f"{name} is {shown(getattr(spec, name))}, published was {shown(value)}"
            for name, value in wanted.items()
            if getattr(spec, name) != value
        ]


def shown(value: Any) -> str:
    """A field's value in a message."""
    return str(list(value)) if isinstance(value, tuple) else str(value)


@cache
def published() -> tuple[Published, ...]:
    """All packaged drafts, by file name and order."""
    folder = resources.files("dflash_gguf.manifests").joinpath("drafts")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return tuple(
        from_row(row) for f in files for row in tomllib.loads(f.read_text("utf-8"))["draft"]
    )


def from_row(row: Mapping[str, Any]) -> Published:
    """One row of a table; `layers` has a letter a layer, s for sliding and f for full."""
    fields = {name: row[name] for name in (*GEOMETRY, *PLAIN) if name in row}
    fields["target_layer_ids"] = tuple(fields["target_layer_ids"])
    if "layers" in row:
        fields["sliding_layers"] = tuple(letter == "s" for letter in row["layers"])
        fields.setdefault("sliding_window", 0)
    return Published(
        row["name"], fields, row["captures"], row.get("causal", ""), row.get("notes", "")
    )


def recognise(spec: DraftSpec) -> tuple[Published, list[str]] | None:
    """The published draft that fits best and what differs from it, None where no geometry fits."""
    found = [(p, p.differences(spec)) for p in published() if p.has_geometry(spec)]
    return min(found, key=lambda pair: len(pair[1])) if found else None


def by_name(name: str) -> Published:
    """The published draft of that name. Raises UsageError with the known names."""
    for p in published():
        if name in (p.name, p.name.partition("/")[2]):
            return p
    raise UsageError(
        "no published draft of this name is known", found=name, expected=", ".join(p.name for p in published()),
        fix="pass the fields as options, or --config",
    )  # fmt: skip
