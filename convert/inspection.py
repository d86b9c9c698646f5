"""What a draft is, in plain words: dialect, geometry, where each field came from, and whether a target fits."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .draft import Draft, mismatches, read_draft
from .errors import DflashError, VerdictError
from .ggml import type_name
from .spec import to_upstream_layers
from .target import Target, read_target

DIALECTS = {
    "hf": "Hugging Face checkpoint",
    "gguf": "GGUF, llama.cpp's dialect",
    "lucebox": "GGUF, Lucebox's dialect",
    "ik": "GGUF, the dialect of ik_llama.cpp and its relatives",
    "any": "GGUF, the names of several dialects mixed",
}


@dataclass(frozen=True, slots=True)
class Inspection:
    """A draft and what was found about it."""

    draft: Draft
    target: Target | None
    faults: tuple[DflashError, ...]
    """Why the target does not fit."""

    def bytes_by_type(self) -> dict[str, int]:
        """Bytes of tensor data for each type."""
        counts: Counter[str] = Counter()
        for span in self.draft.spans.values():
            counts[type_name(span.type)] += span.nbytes
        return dict(counts.most_common())

    def to_json(self) -> dict[str, Any]:
        """Everything, as `--json` prints it."""
        draft = self.draft
        return {
            "file": str(draft.path),
            "dialect": draft.dialect,
            "spec": draft.spec.to_json(),
            "spec_sha256": draft.spec.digest(),
            "target_layers": list(to_upstream_layers(draft.spec.target_layer_ids)),
            "sources": dict(draft.sources),
            "tensors": len(draft.matches),
            "bytes_by_type": self.bytes_by_type(),
            "tokenizer_tokens": len(draft.tokenizer["tokenizer.ggml.tokens"].value)
            if draft.tokenizer
            else 0,
            "pairing": None if self.target is None else [fault.parts() for fault in self.faults],
        }

    def raise_if_unsound(self) -> None:
        """Raise VerdictError (exit 4) where the target does not fit."""
        if self.faults:
            raise VerdictError(
                f"draft and target do not belong together: {len(self.faults)} reasons", where=self.draft.path,
                found="; ".join(fault.what for fault in self.faults),
            )  # fmt: skip


def inspect(
    path: str | os.PathLike[str], target: str | os.PathLike[str] | None = None
) -> Inspection:
    """What the draft at `path` is. Raises InputError where it is no sound draft."""
    draft = read_draft(Path(path))
    goal = read_target(target) if target else None
    return Inspection(draft, goal, tuple(mismatches(draft, goal)) if goal else ())


def layers_in_words(flags: tuple[bool, ...], yes: str, no: str) -> str:
    """`all sliding`, or the layers by number."""
    if len(set(flags)) == 1:
        return f"all {yes if flags[0] else no}"
    chosen = [str(i) for i, flag in enumerate(flags) if flag]
    return f"{yes} in {' '.join(chosen)}, {no} in the others"


def render_inspection(found: Inspection) -> str:
    """The inspection as lines of `name  value`."""
    draft, s = found.draft, found.draft.spec
    source = draft.sources.get
    rows = [
        ("file", str(draft.path)),
        ("dialect", DIALECTS[draft.dialect]),
        ("variant", s.variant),
        ("geometry", f"{s.num_hidden_layers} layers, hidden {s.hidden_size}, feed-forward {s.intermediate_size}, "
                     f"{s.num_attention_heads} heads over {s.num_key_value_heads} of {s.head_dim}, vocabulary {s.vocab_size}"),
        ("block", f"{s.block_size} tokens, anchor included"),
        ("mask token", f"{s.mask_token_id}{came(source('mask_token_id'))}"),
        ("captures", f"after layers {numbers(s.target_layer_ids)} (0-based; llama.cpp counts {numbers(to_upstream_layers(s.target_layer_ids))})"),
        ("target", f"{s.num_target_layers or 'unknown number of'} layers of hidden {s.target_hidden_size}"),
        ("window", f"{s.sliding_window}, {layers_in_words(s.sliding_layers, 'sliding', 'full')}" if s.sliding_window else "none"),
        ("causality", layers_in_words(s.causal_layers, "causal", "two-sided") + came(source("is_causal"))),
        ("RoPE", f"base {s.rope_theta:g}{came(source('rope_theta'))}, {s.rope_dimension_count} of {s.head_dim} dims"
                 + (f", {s.rope_scaling.type} x{s.rope_scaling.factor:g}" if s.rope_scaling else "")),
    ]  # fmt: skip
    if s.conv and s.selector:
        rows.append(("DFlash 2", f"convolution of {s.conv.kernel_size} taps in groups of {s.conv.group_size}, "
                                 f"selector of rank {s.selector.rank}, {s.selector.top_k} candidates"))  # fmt: skip
    rows.append(
        (
            "tensors",
            f"{len(draft.matches)}: "
            + ", ".join(f"{k} {v} bytes" for k, v in found.bytes_by_type().items()),
        )
    )
    if found.target is not None:
        rows.append(
            (
                "pairing",
                "fits the target" if not found.faults else "; ".join(str(f) for f in found.faults),
            )
        )
    return "\n".join(f"{name:<12}{value}" for name, value in rows)


def came(source: str | None) -> str:
    """Where a value came from, in brackets."""
    return f" ({source})" if source else ""


def numbers(values: tuple[int, ...]) -> str:
    """Numbers with spaces between."""
    return " ".join(map(str, values))
