"""A draft as it is found: a checkpoint or a GGUF of any dialect, read into one shape.

Whatever the source, what comes out is the spec, the matched tensors and where their bytes lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .canonical import TargetFacts
from .checkpoint import open_checkpoint
from .dialects import config_fields, spec_from_config
from .errors import InputError
from .fields import Field
from .gguf import GgufFile, read_gguf
from .gguf_dialects import read_spec, spelling, torch_shapes
from .names import Match, match
from .plan import Span, source_type
from .safetensors import SourceTensor
from .spec import DraftSpec
from .spelling import spellings
from .target import Target
from .vocabulary import tokenizer_fields, tokenizer_hash


@dataclass(frozen=True)
class Draft:
    """A draft, its tensors proven against its spec."""

    path: Path
    dialect: str
    """`hf`, or the spelling of a GGUF: `gguf`, `lucebox`, `ik`."""
    spec: DraftSpec
    matches: tuple[Match, ...]
    spans: Mapping[str, Span]
    sources: Mapping[str, str]
    """Field to the place it was read from, where that is known."""
    tokenizer: Mapping[str, Field] = field(default_factory=dict)
    """What a GGUF carries of its target's tokenizer."""
    facts: TargetFacts = field(default_factory=TargetFacts)
    """What a GGUF says of its target."""
    files: tuple[dict[str, Any], ...] = ()
    """Name, bytes and header hash of every source file, for the manifest."""

    @property
    def paths(self) -> list[Path]:
        """Every file that is read."""
        return sorted({Path(span.file) for span in self.spans.values()} | {self.path})


def read_draft(
    path: str | os.PathLike[str],
    given: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | None = None,
) -> Draft:
    """The draft at `path`: a folder, a .safetensors file or a GGUF.

    `given` supplies spec fields and wins over the source; `config` is the config.json to use for a checkpoint. Raises
    InputError where the source is not a draft, or not a sound one.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(
            "source does not exist", where=path, expected="a folder, a .safetensors file or a GGUF"
        )
    if not path.is_dir() and path.suffix != ".safetensors":
        return draft_from_gguf(read_gguf(path), given or {})
    checkpoint = open_checkpoint(path, config)
    _, sources = config_fields(checkpoint.config, given or {})
    spec = spec_from_config(checkpoint.config, checkpoint.shapes, given)
    return Draft(
        path, "hf", spec, tuple(match(spec, checkpoint.shapes, "hf", path)),
        {name: span_of(t) for name, t in checkpoint.tensors.items()}, sources,
        files=tuple({"name": f.path.name, "bytes": f.size, "header_sha256": f.header_sha256} for f in checkpoint.files),
    )  # fmt: skip


def span_of(tensor: SourceTensor) -> Span:
    """The bytes of a checkpoint's tensor."""
    kind = source_type(tensor.dtype, f"{tensor.file}: {tensor.name}")
    return Span(tensor.name, str(tensor.file), tensor.offset, tensor.nbytes, kind, tensor.shape)


def draft_from_gguf(file: GgufFile, given: Mapping[str, Any]) -> Draft:
    """The draft of an opened GGUF, in any dialect."""
    spec = read_spec(file, given)
    column = spelling(file)
    shapes = torch_shapes(file)
    spans = {
        t.name: Span(t.name, str(file.path), t.offset, t.nbytes, t.type, t.shape[::-1])
        for t in file.tensors.values()
    }
    return Draft(
        file.path, column, spec, tuple(match(spec, shapes, column, file.path)), spans, dict.fromkeys(given, "option"),
        tokenizer_fields(file.fields), facts_of(file), ({"name": file.path.name, "bytes": file.size},),
    )  # fmt: skip


def facts_of(file: GgufFile) -> TargetFacts:
    """What a canonical GGUF records of its target, empty where it does not."""
    ask, arch = file.ask, file.architecture

    def first(rest: str, read: Callable[[str], Any]) -> Any:
        return next((v for key in spellings(f"target.{rest}", arch) if (v := read(key))), None)

    return TargetFacts(
        architecture=first("architecture", ask.text) or "",
        num_hidden_layers=first("block_count", ask.integer) or 0,
        hidden_size=first("embedding_length", ask.integer) or 0,
        vocab_size=first("vocab_size", ask.integer) or 0,
        tokenizer_hash=first("tokenizer_hash", ask.text) or tokenizer_hash(file.fields),
        name=ask.text("general.base_model.0.name") or "",
        multi_section_rope=f"{arch}.rope.dimension_sections" in file.fields,
    )


def facts_of_target(target: Target) -> TargetFacts:
    """What a draft's file will say of `target`."""
    s = target.spec
    return TargetFacts(
        s.architecture,
        s.num_hidden_layers,
        s.hidden_size,
        s.vocab_size,
        target.tokenizer_hash,
        s.name,
        s.multi_section_rope,
    )


def mismatches(draft: Draft, target: Target) -> list[InputError]:
    """Every reason why `target` cannot be the target of `draft`, empty where it fits."""
    spec, t = draft.spec, target.spec
    rules = (
        ("hidden size", spec.target_hidden_size, t.hidden_size),
        ("vocabulary size", spec.vocab_size, t.vocab_size),
        ("number of layers", spec.num_target_layers or t.num_hidden_layers, t.num_hidden_layers),
        ("tokenizer", draft.facts.tokenizer_hash or target.tokenizer_hash, target.tokenizer_hash),
    )
    faults = [
        InputError(
            f"the target does not fit: its {name} is another", found=found, where=target.path, expected=f"{wanted} ({draft.path})",
            fix="point --target at the model this draft was trained for",
        )
        for name, wanted, found in rules
        if wanted != found
    ]  # fmt: skip
    outside = [i for i in spec.target_layer_ids if i >= t.num_hidden_layers]
    if outside:
        faults.append(
            InputError(
                "the target does not fit: captured layers are out of its range", found=outside, where=target.path,
                expected=f"0 to {t.num_hidden_layers - 1} ({t.num_hidden_layers} layers in the target)",
                fix="point --target at the model this draft was trained for",
            )
        )  # fmt: skip
    return faults
