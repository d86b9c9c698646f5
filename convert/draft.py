"""A draft as it is found: a checkpoint or a GGUF of any dialect, read into one shape.

Whatever the source, what comes out is the spec, the matched tensors and where their bytes lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .beside import MaskEmbedding, check_mask_embedding
from .canonical import TargetFacts
from .checkpoint import Checkpoint, open_checkpoint
from .confidence import is_head, widened
from .dialects import spec_from_config
from .errors import InputError
from .fields import Field
from .ggml import FLOATS
from .gguf import GgufFile, read_gguf
from .gguf_dialects import field_sources, read_spec, spelling, torch_shapes
from .laguna import is_laguna, unstacked
from .names import ANY, Match, generic, lookup, match
from .places import config_fields
from .plan import Span, source_type
from .safetensors import SourceTensor
from .spec import DraftSpec
from .spelling import spellings
from .strict_json import Section, read_json
from .target import Target
from .vocabulary import tokenizer_fields, tokenizer_hash


@dataclass(frozen=True)
class Draft:
    """A draft, its tensors proven against its spec."""

    path: Path
    dialect: str
    """`hf`, or the spelling of a GGUF: `gguf`, `lucebox`, `ik`, `any` for a mixture, `laguna` for Poolside's variant of llama.cpp's."""
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
    gguf: GgufFile | None = None
    """The file as it was read, where it is a GGUF."""
    mask_embedding: MaskEmbedding | None = None
    """The mask token's embedding, where the draft brings it (MiMo)."""

    @property
    def paths(self) -> list[Path]:
        """Every file that is read."""
        return sorted({Path(span.file) for span in self.spans.values()} | {self.path})


def read_draft(
    path: str | os.PathLike[str],
    given: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | None = None,
    fc: str = "",
) -> Draft:
    """The draft at `path`: a folder, a .safetensors file or a GGUF.

    `given` supplies spec fields and wins over the source; `config` is the config.json to read them from, also for a
    GGUF that lost some. `fc` says what to do with an fc that lies the wrong way round: `transposed` turns the weights,
    `mislabelled` corrects the shape only. Raises InputError where the source is not a draft, or not a sound one.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(
            "source does not exist", where=path, expected="a folder, a .safetensors file or a GGUF"
        )
    if path.is_dir() or path.suffix == ".safetensors":
        return draft_from_checkpoint(open_checkpoint(path, config), given or {})
    return draft_from_gguf(read_gguf(path), given or {}, Path(config) if config else None, fc)


def draft_from_checkpoint(checkpoint: Checkpoint, given: Mapping[str, Any]) -> Draft:
    """The draft of an opened checkpoint."""
    values, sources = config_fields(checkpoint.config, given)
    spec = spec_from_config(checkpoint.config, checkpoint.shapes, given)
    head = {n: span_of(t) for n, t in checkpoint.tensors.items() if is_head(n, "hf")}
    head = widened(spec, head, "hf", values["confidence_sees_markov"])
    shapes = checkpoint.shapes | {name: span.shape for name, span in head.items()}
    matches = match(spec, shapes, "hf", checkpoint.path)
    check_mask_embedding(checkpoint.mask_embedding, spec)
    used = {m.source for m in matches}
    spans = {name: span_of(t) for name, t in checkpoint.tensors.items() if name in used} | head
    if values["neox"] is False:
        spans |= {
            m.source: deinterleaved(spans[m.source], spec)
            for m in matches
            if m.rule.gguf in ROTATED
        }
    return Draft(
        checkpoint.path, "hf", spec, tuple(matches), spans, sources,
        files=tuple({"name": f.path.name, "bytes": f.size, "header_sha256": f.header_sha256} for f in checkpoint.files),
        mask_embedding=checkpoint.mask_embedding,
    )  # fmt: skip


ROTATED = frozenset(
    f"blk.{{i}}.{n}"
    for n in (
        "attn_q.weight",
        "attn_k.weight",
        "attn_q.bias",
        "attn_k.bias",
        "attn_q_norm.weight",
        "attn_k_norm.weight",
    )
)
"""Tensors whose rows follow the pairs of the rotation."""


def deinterleaved(span: Span, spec: DraftSpec) -> Span:
    """The span with its heads to be put in halves; refused where only part of a head rotates."""
    if spec.rope_dimension_count != spec.head_dim:
        raise InputError(
            "interleaved pairs of a partial rotation cannot be rearranged", found=f"{spec.rope_dimension_count} of {spec.head_dim} dims",
            where=f"{span.file}: {span.name}", expected="a rotation of whole heads",
        )  # fmt: skip
    return replace(span, interleaved=spec.head_dim)


def span_of(tensor: SourceTensor) -> Span:
    """The bytes of a checkpoint's tensor."""
    kind = source_type(tensor.dtype, f"{tensor.file}: {tensor.name}")
    return Span(tensor.name, str(tensor.file), tensor.offset, tensor.nbytes, kind, tensor.shape)


def draft_from_gguf(
    file: GgufFile, given: Mapping[str, Any], config: Path | None = None, fc: str = ""
) -> Draft:
    """The draft of an opened GGUF, in any dialect or a mixture of their names."""
    file = unstacked(file)
    column = spelling(file)
    if any(generic(name)[0] not in lookup(column) for name in file.tensors):
        column = ANY
    spans = {
        t.name: Span(t.name, str(file.path), t.offset, t.nbytes, t.type, t.shape[::-1])
        for t in file.tensors.values()
    }
    if fc:
        spans, file = turn_fc(spans, file, column, fc)
    shapes = torch_shapes(file)
    if config is None:
        spec, sources = read_spec(file, given, column), field_sources(file, given)
    else:
        section = Section(read_json(config), config)
        spec = spec_from_config(section, checkpoint_shapes(shapes, column), given)
        places = config_fields(section, given)[1]
        sources = {k: v if v == "option" else f"{config.name}: {v}" for k, v in places.items() if v}
    spans = widened(spec, spans, column)
    shapes = {name: span.shape for name, span in spans.items()}
    return Draft(
        file.path, "laguna" if is_laguna(file) else column, spec, tuple(match(spec, shapes, column, file.path)), spans, sources,
        tokenizer_fields(file.fields, file.path), facts_of(file),
        ({"name": file.path.name, "bytes": file.size, "header_sha256": file.header_sha256},),
        file,
    )  # fmt: skip


def turn_fc(
    spans: dict[str, Span], file: GgufFile, column: str, word: str
) -> tuple[dict[str, Span], GgufFile]:
    """Spans and file with fc the right way round."""
    name = next(
        (n for n in spans if n in lookup(column) and lookup(column)[n].gguf == "fc.weight"), None
    )
    if name is None or len(spans[name].shape) != 2 or spans[name].type not in FLOATS:
        raise InputError(
            "there is no fc that could be turned",
            where=file.path,
            expected="fc.weight, a matrix of plain floats",
        )
    span = replace(spans[name], shape=spans[name].shape[::-1], transposed=word == "transposed")
    info = replace(file.tensors[name], shape=file.tensors[name].shape[::-1])
    return spans | {name: span}, replace(file, tensors=file.tensors | {name: info})


def checkpoint_shapes(
    shapes: Mapping[str, tuple[int, ...]], column: str
) -> dict[str, tuple[int, ...]]:
    """The shapes of a GGUF under the names of a checkpoint, for reading its config.json beside them."""
    named = ((generic(name), shape) for name, shape in shapes.items())
    rules = lookup(column)
    return {rules[p].spellings["hf"][0].format(i=i): shape for (p, i), shape in named if p in rules}


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
