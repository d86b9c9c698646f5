"""Whether a target is the one a draft was trained for: the facts side by side. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .draft import Draft
from .errors import InputError
from .target import Target


@dataclass(frozen=True, slots=True)
class Check:
    """One fact of draft and target."""

    name: str
    draft: str
    target: str
    fits: bool | None
    """None where the draft does not say."""

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self)


def checks(draft: Draft, target: Target) -> list[Check]:
    """Every fact that must agree."""
    s, t = draft.spec, target.spec
    ids = s.target_layer_ids
    own_hash = draft.facts.tokenizer_hash
    return [
        Check("vocabulary size", str(s.vocab_size), str(t.vocab_size), s.vocab_size == t.vocab_size),
        Check("hidden size", str(s.target_hidden_size), str(t.hidden_size), s.target_hidden_size == t.hidden_size),
        Check("number of layers", str(s.num_target_layers or "not said"), str(t.num_hidden_layers),
              s.num_target_layers == t.num_hidden_layers if s.num_target_layers else None),
        Check("captured layers", " ".join(map(str, ids)), f"0 to {t.num_hidden_layers - 1}", max(ids) < t.num_hidden_layers),
        Check("mask token", str(s.mask_token_id), f"an embedding of {t.vocab_size} rows", s.mask_token_id < t.vocab_size),
        Check("tokenizer", own_hash[:16] or "not said", target.tokenizer_hash[:16], own_hash == target.tokenizer_hash if own_hash else None),
    ]  # fmt: skip


WRONG = {
    "captured layers": "the target does not fit: captured layers are out of its range",
    "mask token": "the target does not fit: the mask token is outside its embedding",
}
"""What is wrong where a check fails; `its NAME is another` where nothing is said here."""


def mismatches(draft: Draft, target: Target) -> list[InputError]:
    """Every reason why `target` cannot be the target of `draft`, empty where it fits."""
    return [
        InputError(
            WRONG.get(check.name, f"the target does not fit: its {check.name} is another"),
            found=check.target if check.name not in WRONG else check.draft, where=target.path,
            expected=check.target if check.name in WRONG else f"{check.draft} ({draft.path})",
            fix="point --target at the model this draft was trained for",
        )
        for check in checks(draft, target)
        if check.fits is False
    ]  # fmt: skip
