"""What dflash-quantize reads: a draft in any form, as canonical tensors whose bytes lie in files.

A canonical GGUF keeps its metadata as it is; a checkpoint or another dialect passes through the converter's plan, so
that one streaming pass converts and quantises.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..convert.conversion import plan_conversion
from ..convert.draft import read_draft
from ..convert.errors import UsageError
from ..convert.fields import Field
from ..convert.hub import resolve
from ..convert.plan import PlannedTensor, plan_tensors
from ..convert.spec import DraftSpec
from ..convert.target import read_target


@dataclass(frozen=True)
class Source:
    """An opened draft."""

    path: Path
    spec: DraftSpec
    fields: Mapping[str, Field]
    """Metadata of the output, before quantising changes two keys."""
    tensors: tuple[PlannedTensor, ...]
    """Canonical names and shapes, with the spans their bytes come from."""
    files: Sequence[Mapping[str, Any]]
    """Name and size of every source file, for the manifest."""
    paths: Sequence[Path]
    """Every file that is read."""


def open_source(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    subfolder: str | None = None,
    *,
    quiet: bool = True,
) -> Source:
    """The draft at `path`: a canonical GGUF, another dialect, a checkpoint folder, a .safetensors file or a hub repository id.

    `revision` and `subfolder` are the repository's. Raises InputError where it is no sound draft, UsageError where a target is needed and
    missing, EnvironmentFault where the hub cannot be reached.
    """
    folder, commit = resolve(Path(path), revision, subfolder, quiet=quiet)
    draft = read_draft(folder)
    if draft.gguf is not None and draft.dialect == "gguf" and target is None:
        tensors = plan_tensors(draft.matches, draft.spans, "source", draft.spec.vocab_size)
        return Source(draft.path, draft.spec, draft.gguf.fields, tensors, draft.files, draft.paths)
    if draft.dialect == "hf" and target is None:
        raise UsageError(
            "a checkpoint has no tokenizer", where=path, expected="--target TARGET",
            fix="name the target's GGUF or Hugging Face folder with --target",
        )  # fmt: skip
    goal = read_target(target) if target is not None else None
    plan = plan_conversion(draft, goal, "source", revision=commit)
    paths = [*draft.paths, *([goal.path] if goal else [])]
    return Source(draft.path, plan.spec, plan.fields, plan.tensors, draft.files, paths)
