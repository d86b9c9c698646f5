"""What a draft is, what is wrong with it, and whether it fits its target: the facts. `description` puts them in words."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .defects import Defect, Reading, find_defects, name_in_file, read_on
from .draft import Draft
from .errors import DflashError, InputError, VerdictError
from .ggml import BF16, F16, type_name
from .pairing import Check, checks
from .published import Published, candidates, recognise
from .repair import Repair, repair
from .runtimes import verdicts
from .spec import to_upstream_layers
from .target import read_target
from .vocabulary import template_note
from .weights import Progress, damaged


@dataclass(frozen=True, slots=True)
class Inspection:
    """A draft and what was found about it."""

    path: Path
    reading: Reading
    defects: tuple[Defect, ...]
    """What is wrong with the file itself."""
    pairing: tuple[Check, ...] | None
    """None where no target was named, or there is no draft to compare."""
    repair: Repair | None
    weights_read: bool

    @property
    def draft(self) -> Draft | None:
        """None where too much is missing to say what it is."""
        return self.reading.draft

    @property
    def stood_in(self) -> frozenset[str]:
        """Fields that are not known; what the draft says of them means nothing."""
        return self.reading.stood_in

    @property
    def known(self) -> tuple[Published, list[str]] | None:
        """The published draft that this one looks like, and what differs from it."""
        draft = self.draft
        if draft is None:
            return None
        return recognise(draft.spec, name_in_file(draft), self.stood_in)

    def to_json(self) -> dict[str, Any]:
        """Everything, as `--json` prints it."""
        body: dict[str, Any] = {
            "file": str(self.path),
            "sound": not self.defects,
            "defects": [d.to_json() for d in self.defects],
            "repair": self.repair and self.repair.to_json(),
            "pairing": None if self.pairing is None else {
                "fits": all(c.fits is not False for c in self.pairing), "checks": [c.to_json() for c in self.pairing]
            },
            "weights": "read" if self.weights_read else "not read",
        }  # fmt: skip
        draft, known = self.draft, self.known
        if draft is None:
            return body
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
            "warnings": self.warnings,
            "notes": notes(draft),
            "runtimes": [asdict(v) for v in verdicts(draft)],
        }  # fmt: skip

    @property
    def warnings(self) -> list[str]:
        """What differs from the published draft, and what else the file could be."""
        if self.draft is None or self.known is None:
            return []
        spec, name, (best, differences) = self.draft.spec, name_in_file(self.draft), self.known
        others = [
            p
            for p in candidates(spec, name, self.stood_in)
            if p is not best
            and p.is_damaged(spec, self.stood_in)
            and p.differing(spec, self.stood_in)
        ]
        return [f"it looks like {best.name}, but {difference}" for difference in differences] + [
            f"{p.name} has the same tensors, and if this is that one it was damaged: --published '{p.name}' compares"
            for p in others
        ]

    @property
    def verdict(self) -> DflashError | None:
        """InputError (exit 3) for a defect, VerdictError (exit 4) where the target does not fit, None where all is well."""
        if self.defects:
            return InputError(
                f"the draft has {counted(len(self.defects), 'defect')}", where=self.path, found="; ".join(d.error.what for d in self.defects),
                fix=self.repair.command if self.repair else "",
            )  # fmt: skip
        wrong = [c for c in self.pairing or () if c.fits is False]
        if wrong:
            return VerdictError(
                f"draft and target do not belong together: {counted(len(wrong), 'reason')}", where=self.path,
                found="; ".join(f"{c.name} {c.draft}, target {c.target}" for c in wrong),
            )  # fmt: skip
        return None


def inspect(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    config: Path | None = None,
    published: str = "",
    weights: Progress | None = None,
) -> Inspection:
    """What the draft at `path` is.

    `config` is the config.json of the checkpoint it was made of, `published` the name of a published draft that it is:
    what differs from them is then a defect. With `weights` every weight is read, and it is told how many bytes were.
    Raises InputError where it is no draft at all, or the target no target.
    """
    path = Path(path)
    goal = read_target(target) if target else None
    reading = read_on(path)
    defects = find_defects(path, reading, goal, config, published)
    draft = reading.draft
    if draft is not None and weights is not None:
        spans = [draft.spans[m.source] for m in draft.matches]
        defects += tuple(Defect(d.error(), mended=False) for d in damaged(spans, weights))
    pairing = tuple(checks(draft, goal)) if goal and draft else None
    mend = repair(path, draft, defects, Path(target) if target else None)
    return Inspection(
        path, reading, defects, pairing, mend, weights is not None and draft is not None
    )


def counted(count: int, noun: str) -> str:
    """`1 defect`, `2 defects`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def bytes_by_type(draft: Draft) -> dict[str, int]:
    """Bytes of tensor data for each type."""
    counts: Counter[str] = Counter()
    for span in draft.spans.values():
        counts[type_name(span.type)] += span.nbytes
    return dict(counts.most_common())


def notes(draft: Draft) -> list[str]:
    """What its types mean on a card, and what its chat template does."""
    found = []
    kinds = {span.type for span in draft.spans.values()}
    if BF16 in kinds:
        found.append(
            "BF16 matrices are slow on cards before sm_80 (a P40 is sm_61): dflash-quantize --scheme q8_0 for them"
        )
    if F16 in kinds and draft.spec.variant == "dflash2":
        found.append(
            "F16 matrices: what flows between the layers of DFlash 2 overflows F16 activations; BF16 or Q8_0 do not"
        )
    template = template_note(draft.tokenizer)
    return [*found, template] if template else found
