"""The head on top of a DFlash backbone: its kind and its sizes, by its tensors. Pure.

A config or a key may say the same; it is checked against the tensors and never believed alone. What no tensor shows,
which row predicts first and which predictions stay uncorrected, has to be said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import InputError
from .spec import Domino, DraftSpec

VARIANT_MARKS = {
    "dflash2": ("selector",),
    "dspark": ("markov",),
    "domino": ("domino", "prefix_gru"),
}
"""Variant to what the names of its own tensors contain."""

MARKOV_MARKS = {"gated": "markov_gate.weight", "rnn": "markov_joint.weight"}
"""Kind of Markov head to the tensor that only it has."""

LUCEBOX = {"sample_from_anchor": False, "domino.pure_draft_prefix_len": 0}
"""What Lucebox's runtime does with every Domino head: row 0 is the anchor, every row behind it is corrected."""

Shapes = Mapping[str, tuple[int, ...]]


def variant_of(names: Iterable[str]) -> str:
    """The variant, by the tensors that only one of them has."""
    known = list(names)
    for variant, marks in VARIANT_MARKS.items():
        if any(mark in name for name in known for mark in marks):
            return variant
    return "dflash1"


def unknown_to_llama_cpp(spec: DraftSpec) -> str:
    """The head for which llama.cpp refuses the draft's canonical file, in words; empty where it knows it."""
    if spec.variant == "domino":
        return "Domino head"
    return f"{spec.markov_head_type} Markov head" if spec.markov_head_type != "vanilla" else ""


def head_fields(
    variant: str,
    shapes: Shapes,
    values: Mapping[str, Any],
    need: Callable[[str], Any],
    where: object,
    *,
    lucebox: bool,
) -> dict[str, Any]:
    """The fields of DraftSpec that belong to the head.

    `shapes` maps canonical names to PyTorch shapes, `values` has what the source says (None where nothing), `need` gives a
    field that has no default or raises. `lucebox`: the head is one of Lucebox's, whose silence has a meaning. Raises
    InputError where tensors and source contradict each other, or a Domino source does not say how it predicts.
    """
    anchor = values["sample_from_anchor"]
    fields: dict[str, Any] = {"draft_vocab_size": shapes.get("d2t", (0,))[0]}
    if variant == "dspark":
        kind = next((k for k, name in MARKOV_MARKS.items() if name in shapes), "vanilla")
        agree("markov_head_type", values, kind, where)
        fields["markov_head_type"] = kind
        fields["markov_rank"] = shapes.get("markov_w1.weight", (0, 0))[-1]
        fields["sample_from_anchor"] = True if anchor is None else anchor
    if variant == "domino":
        state = shapes.get("domino_gru_hh.weight", (0, 0))[-1]
        width = shapes.get("domino_w1.weight", (0, 0))[0]
        agree("domino.gru_hidden_dim", values, state, where)
        agree("domino.emb_dim", values, width, where)
        said = {
            name: default if lucebox and values[name] is None else need(name)
            for name, default in LUCEBOX.items()
        }
        fields["domino"] = Domino(state, width, said["domino.pure_draft_prefix_len"])
        fields["sample_from_anchor"] = said["sample_from_anchor"]
    return fields


def agree(name: str, values: Mapping[str, Any], found: object, where: object) -> None:
    """Refuse a claim that the tensors contradict."""
    if values[name] not in (None, found):
        raise InputError(
            f"{name} contradicts the tensors", found=values[name], where=where, expected=f"{found}, by the tensors",
            fix="use the config.json that belongs to the weights",
        )  # fmt: skip
