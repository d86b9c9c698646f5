"""What a draft is, in plain words; what is wrong with it, and which command mends it; which runtimes load it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .draft import Draft, mismatches, read_draft
from .errors import DflashError, InputError, VerdictError
from .ggml import type_name
from .gguf import read_gguf
from .gguf_dialects import OPTIONS, canonical_shapes
from .names import ANY
from .published import recognise
from .runtimes import Verdict, verdicts
from .spec import to_upstream_layers
from .target import Target, read_target
from .vocabulary import template_note

DIALECTS = {
    "hf": "Hugging Face checkpoint",
    "gguf": "GGUF, llama.cpp's dialect",
    "lucebox": "GGUF, Lucebox's dialect",
    "ik": "GGUF, the dialect of ik_llama.cpp and its relatives",
    "any": "GGUF, the names of several dialects mixed",
}

STAND_INS: dict[str, Any] = {
    "mask_token_id": 0,
    "block_size": 16,
    "rope_theta": 1e6,
    "sliding_window": 1,
}
"""Values that let the reading go on behind a missing field, to find the next fault; they are never shown or written."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A draft and what was found about it."""

    path: Path
    draft: Draft | None
    """None where too much is missing to say what it is."""
    defects: tuple[DflashError, ...]
    """What is wrong with the file itself."""
    faults: tuple[DflashError, ...]
    """Why the target does not fit."""
    target: Target | None
    stood_in: frozenset[str]
    """Fields that are not known; what the draft says of them means nothing."""

    def to_json(self) -> dict[str, Any]:
        """Everything, as `--json` prints it."""
        body: dict[str, Any] = {
            "file": str(self.path),
            "sound": not self.defects,
            "defects": [d.parts() for d in self.defects],
            "pairing": None if self.target is None else [fault.parts() for fault in self.faults],
        }
        if self.draft is None:
            return body
        draft, known = self.draft, recognise(self.draft.spec)
        spec = draft.spec.to_json()
        return body | {
            "dialect": draft.dialect,
            "spec": {name: None if name in self.stood_in else value for name, value in spec.items()},
            "spec_sha256": draft.spec.digest() if not self.stood_in else None,
            "target_layers": list(to_upstream_layers(draft.spec.target_layer_ids)),
            "sources": dict(draft.sources),
            "tensors": len(draft.matches),
            "bytes_by_type": bytes_by_type(draft),
            "tokenizer_tokens": len(draft.tokenizer["tokenizer.ggml.tokens"].value) if "tokenizer.ggml.tokens" in draft.tokenizer else 0,
            "published": None if known is None else {"name": known[0].name, "differences": known[1], "notes": known[0].notes},
            "runtimes": [asdict(v) for v in verdicts(draft)],
        }  # fmt: skip

    @property
    def verdict(self) -> DflashError | None:
        """InputError (exit 3) for a defect, VerdictError (exit 4) where the target does not fit, None where all is well."""
        if self.defects:
            return InputError(
                f"the draft has {len(self.defects)} defects", where=self.path, found="; ".join(d.what for d in self.defects)
            )  # fmt: skip
        if self.faults:
            return VerdictError(
                f"draft and target do not belong together: {len(self.faults)} reasons", where=self.path,
                found="; ".join(fault.what for fault in self.faults),
            )  # fmt: skip
        return None


def inspect(
    path: str | os.PathLike[str], target: str | os.PathLike[str] | None = None
) -> Inspection:
    """What the draft at `path` is. Raises InputError where it is no draft at all, or the target no target."""
    path = Path(path)
    goal = read_target(target) if target else None
    draft, defects, stood_in = read_on(path)
    faults = tuple(mismatches(draft, goal)) if goal and draft else ()
    return Inspection(path, draft, tuple(defects), faults, goal, frozenset(stood_in))


def read_on(path: Path) -> tuple[Draft | None, list[DflashError], set[str]]:
    """The draft, its defects, and the fields that had to be made up to find them all.

    A missing field is recorded and read on with a stand-in; anything else that is wrong ends the search, and is raised
    where it is the first thing.
    """
    defects: list[DflashError] = []
    given: dict[str, Any] = {}
    while True:
        try:
            return read_draft(path, given), defects, set(given)
        except InputError as error:
            field = next(
                (name for name, option in OPTIONS.items() if error.fix.endswith(option)), ""
            )
            value = stand_in(field, path)
            if value is not None and field not in given:
                given[field] = value
                defects.append(error)
            elif defects:
                return None, [*defects, error], set(given)
            else:
                raise


def stand_in(field: str, path: Path) -> Any:
    """A value that lets the reading go on, None where none does."""
    if field == "target_layer_ids" and path.is_file() and path.suffix == ".gguf":
        file = read_gguf(path)
        fc = canonical_shapes(file, ANY).get("fc.weight", ())
        width = file.ask.integer(f"{file.architecture}.embedding_length") or 0
        return tuple(range(fc[1] // width)) if len(fc) == 2 and width else None
    return STAND_INS.get(field)


def bytes_by_type(draft: Draft) -> dict[str, int]:
    """Bytes of tensor data for each type."""
    counts: Counter[str] = Counter()
    for span in draft.spans.values():
        counts[type_name(span.type)] += span.nbytes
    return dict(counts.most_common())


def layers_in_words(flags: tuple[bool, ...], yes: str, no: str) -> str:
    """`all sliding`, or the layers by number."""
    if len(set(flags)) == 1:
        return f"all {yes if flags[0] else no}"
    chosen = [str(i) for i, flag in enumerate(flags) if flag]
    return f"{yes} in {' '.join(chosen)}, {no} in the others"


def render_inspection(found: Inspection) -> str:
    """The inspection as lines of `name  value`."""
    rows: list[tuple[str, str]] = [("file", str(found.path))]
    if found.draft is not None:
        rows += [(n, v) for n, field, v in describe(found.draft) if field not in found.stood_in]
        rows += runtimes_in_words(found.draft)
    for defect in found.defects:
        rows += [("defect", str(defect.what)), ("  mend by", repair(found.path, defect))]
    if found.target is not None:
        rows.append(
            (
                "pairing",
                "fits the target" if not found.faults else "; ".join(str(f) for f in found.faults),
            )
        )
    return "\n".join(f"{name:<12}{value}" for name, value in rows)


def repair(path: Path, defect: DflashError) -> str:
    """The one command that mends a defect."""
    option = next((o for o in OPTIONS.values() if defect.fix.endswith(o)), "")
    return (
        f"dflash-convert {path.name} mended.gguf --target TARGET {option} VALUE"
        if option
        else defect.fix
    )


def describe(draft: Draft) -> list[tuple[str, str, str]]:
    """Row name, the field it depends on, and the value in words."""
    s, source, known = draft.spec, draft.sources.get, recognise(draft.spec)
    scaling = f", {s.rope_scaling.type} x{s.rope_scaling.factor:g}" if s.rope_scaling else ""
    rows = [
        ("dialect", "", DIALECTS[draft.dialect]),
        ("variant", "", s.variant),
        ("geometry", "", f"{s.num_hidden_layers} layers, hidden {s.hidden_size}, feed-forward {s.intermediate_size}, "
                         f"{s.num_attention_heads} heads over {s.num_key_value_heads} of {s.head_dim}, vocabulary {s.vocab_size}"),
        ("block", "block_size", f"{s.block_size} tokens, anchor included"),
        ("mask token", "mask_token_id", f"{s.mask_token_id}{came(source('mask_token_id'))}"),
        ("captures", "target_layer_ids", f"after layers {numbers(s.target_layer_ids)} "
                                         f"(0-based; llama.cpp counts {numbers(to_upstream_layers(s.target_layer_ids))})"),
        ("target", "", f"{s.num_target_layers or 'unknown number of'} layers of hidden {s.target_hidden_size}"),
        ("window", "sliding_window", f"{s.sliding_window}, {layers_in_words(s.sliding_layers, 'sliding', 'full')}" if s.sliding_window else "none"),
        ("causality", "", layers_in_words(s.causal_layers, "causal", "two-sided") + came(source("is_causal"))),
        ("RoPE", "rope_theta", f"base {s.rope_theta:g}{came(source('rope_theta'))}, {s.rope_dimension_count} of {s.head_dim} dims{scaling}"),
    ]  # fmt: skip
    if s.conv and s.selector:
        rows.append(("DFlash 2", "", f"convolution of {s.conv.kernel_size} taps in groups of {s.conv.group_size}, "
                                     f"selector of rank {s.selector.rank}, {s.selector.top_k} candidates"))  # fmt: skip
    rows.append(
        (
            "tensors",
            "",
            f"{len(draft.matches)}: "
            + ", ".join(f"{k} {v} bytes" for k, v in bytes_by_type(draft).items()),
        )
    )
    if known is not None:
        rows.append(
            ("published", "", f"looks like {known[0].name}" + "".join(f"; {d}" for d in known[1]))
        )
    note = template_note(draft.tokenizer)
    return [*rows, ("note", "", note)] if note else rows


def runtimes_in_words(draft: Draft) -> list[tuple[str, str]]:
    """A row for each runtime."""
    words = {True: "loads it", False: "does not load it", None: "not known"}

    def row(v: Verdict) -> tuple[str, str]:
        return (
            "runtime",
            f"{v.runtime}: {words[v.loads]}"
            + "".join(f"; {text}" for text in (*v.reasons, *v.remarks)),
        )

    return [row(v) for v in verdicts(draft)]


def came(source: str | None) -> str:
    """Where a value came from, in brackets."""
    return f" ({source})" if source else ""


def numbers(values: tuple[int, ...]) -> str:
    """Numbers with spaces between."""
    return " ".join(map(str, values))
