"""The one command that mends everything that is wrong with a draft's file. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .defects import ASKED, Defect
from .draft import Draft
from .spelling import DIALECTS, READERS


@dataclass(frozen=True, slots=True)
class Repair:
    """A command line, and the options whose values it leaves open."""

    words: tuple[str, ...]
    asks: tuple[str, ...]

    @property
    def command(self) -> str:
        """The line as a shell takes it; open values in capitals or as alternatives."""
        return " ".join(w if w in ASKED.values() else shlex.quote(w) for w in self.words)

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"command": self.command, "asks": list(self.asks)}


def repair(
    path: Path, draft: Draft | None, defects: Sequence[Defect], target: Path | None
) -> Repair | None:
    """The command that mends all `defects` of the file at `path` at once.

    `target` is the target where one is known. None where nothing is wrong, or something is that no conversion mends.
    """
    if not defects or not all(defect.mended for defect in defects):
        return None
    options: dict[str, str] = {}
    dialect = dialect_of(draft)
    if target is not None or not has_tokenizer(draft, dialect):
        options["--target"] = str(target or "")
    for defect in defects:
        options |= {o: v for o, v in defect.options.items() if v or o not in options}
    if dialect != "canonical":
        options["--dialect"] = dialect
    words = [w for o, v in options.items() for w in (o, v or ASKED[o])]
    asks = tuple(o for o, v in options.items() if not v)
    return Repair(("dflash-convert", str(path), str(mended_name(path)), *words), asks)


def mended_name(path: Path) -> Path:
    """Where the mended file goes: beside the old one."""
    stem = path.stem if path.suffix in (".gguf", ".safetensors") else path.name
    return path.with_name(f"{stem}-mended.gguf")


def dialect_of(draft: Draft | None) -> str:
    """The dialect that the file was made for, by its architecture; its tensor names may be what is wrong."""
    if draft is None or draft.gguf is None:
        return "canonical"
    column = READERS[draft.gguf.architecture]
    if draft.dialect in ("lucebox", "ik") and column != "gguf":
        column = draft.dialect
    if draft.dialect == "laguna":  # the canonical dialect has no gates
        column = "ik"
    return next(name for name, c in DIALECTS.items() if c == column)


def has_tokenizer(draft: Draft | None, dialect: str) -> bool:
    """Whether the conversion finds the tokenizer that the dialect wants without the target."""
    if draft is None or draft.gguf is None:
        return draft is None
    return dialect == "lucebox" or "tokenizer.ggml.tokens" in draft.tokenizer
