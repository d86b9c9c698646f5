"""Tensors that a file needs and its source lacks: zeros for absent biases, and an embedding and head of the draft's own.

llama.cpp takes a draft's embedding and output head from the target where the draft has none. A draft that knows its
mask token by a vector of its own (MiMo) needs the target's whole table with that one row replaced, and with a table of its own it
needs the head too: llama.cpp (b11434) would otherwise take the table for the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

from .beside import MaskEmbedding
from .checkpoint import shard_name
from .draft import Draft, span_of
from .errors import InputError, UsageError
from .files import open_regular
from .floats import convert_floats, find_non_finite
from .ggml import F32, FLOATS, type_name
from .gguf import read_gguf
from .names import Match, TensorRule, ordered
from .plan import Span
from .safetensors import read_safetensors
from .strict_json import Section, read_json
from .target import Target
from .vocabulary import inside

EMBEDDING, HEAD = "token_embd.weight", "output.weight"

FOLDER_NAMES = {
    EMBEDDING: ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "language_model.model.embed_tokens.weight"),
    HEAD: ("lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight"),
}  # fmt: skip
"""The target's embedding and head in a checkpoint."""


def supplied(draft: Draft, target: Target | None, column: str) -> Draft:
    """The draft with all tensors that a file of dialect `column` needs.

    Raises InputError where the dialect or the target cannot supply one, UsageError where there is no target to take it from.
    """
    spans = dict(draft.spans)
    found = {(m.rule.gguf, m.layer): m for m in draft.matches}

    def add(rule: TensorRule, place: int, span: Span) -> None:
        spans[span.name] = span
        found[rule.gguf, place] = Match(rule, place, span.name)

    rows = list(ordered(draft.spec))
    for rule, place in rows:
        if rule.zeros and (rule.gguf, place) not in found and (rule.zeros, place) in found:
            add(rule, place, zeros(rule, draft, spans[found[rule.zeros, place].source]))
    for name, span in own_table(draft, target, column).items():
        add(next(rule for rule, _ in rows if rule.gguf == name), -1, span)
    matches = tuple(found[rule.gguf, place] for rule, place in rows if (rule.gguf, place) in found)
    return replace(draft, matches=matches, spans=spans)


def zeros(rule: TensorRule, draft: Draft, beside: Span) -> Span:
    """Zeros for a tensor that the draft does without."""
    shape = rule.dims(draft.spec)
    nbytes = 4 * prod(shape)
    return Span(f"zeros for {rule.gguf}", beside.file, 0, nbytes, F32, shape, overlay=bytes(nbytes))


def own_table(draft: Draft, target: Target | None, column: str) -> dict[str, Span]:
    """Embedding and head by canonical name, where the draft needs more of its own than it has."""
    own = {m.rule.gguf: draft.spans[m.source] for m in draft.matches}
    mask = draft.mask_embedding
    if mask is not None and column != "gguf":
        raise InputError(
            "this dialect cannot carry the draft's own embedding of its mask token", found=mask.tensor.file.name, where=draft.path,
            expected="a dialect whose runtimes read a draft's own token_embd.weight", fix="use --dialect canonical",
        )  # fmt: skip
    if column != "gguf" or (mask is None and (EMBEDDING not in own or HEAD in own)):
        return {}
    out: dict[str, Span] = {}
    theirs = target_spans(target, draft) if {EMBEDDING, HEAD} - own.keys() else {}
    if HEAD not in own:
        out[HEAD] = replace(theirs.get(HEAD, theirs[EMBEDDING]), name="the target's head")
    if mask is not None:
        table = own.get(EMBEDDING) or replace(theirs[EMBEDDING], name="the target's embedding")
        out[EMBEDDING] = with_row(table, mask)
    return out


def with_row(table: Span, mask: MaskEmbedding) -> Span:
    """The table with the mask token's row replaced, rounded to the table's type."""
    if table.type not in FLOATS:
        raise InputError(
            "the mask token's row cannot be put into a quantised embedding", found=type_name(table.type), where=f"{table.file}: {table.name}",
            expected="F32, F16 or BF16", fix="name the target's unquantised GGUF or its Hugging Face folder with --target",
        )  # fmt: skip
    with open_regular(mask.tensor.file) as file:
        file.seek(mask.tensor.offset)
        raw = file.read(mask.tensor.nbytes)
    values, kind = memoryview(raw), span_of(mask.tensor).type
    row, losses = convert_floats(values, kind, table.type)
    if find_non_finite(values, kind) is not None or losses.overflows:
        raise InputError(
            "mask embedding has values that are not finite, or do not fit the target's embedding", found=mask.tensor.dtype,
            where=mask.tensor.file, expected=f"finite values within {type_name(table.type)}",
        )  # fmt: skip
    return replace(table, overlay=bytes(row), overlay_at=mask.token_id * len(row))


def target_spans(target: Target | None, draft: Draft) -> Mapping[str, Span]:
    """The target's embedding, and its head where it has one, by canonical name; their shapes are checked."""
    if target is None:
        raise UsageError(
            "the draft needs its target's embedding and head", where=draft.path, expected="--target TARGET, with its weights",
            fix="name the target's GGUF or Hugging Face folder with --target",
        )  # fmt: skip
    spans = folder_spans(target.path) if target.path.is_dir() else gguf_spans(target.path)
    shape = (draft.spec.vocab_size, draft.spec.hidden_size)
    for span in spans.values():
        if span.shape != shape:
            raise InputError(
                "the target's embedding does not fit the draft", found=f"{list(span.shape)}", where=f"{span.file}: {span.name}", expected=f"{list(shape)}"
            )  # fmt: skip
    if EMBEDDING not in spans:
        raise InputError(
            "the target has no embedding that the draft could take", where=target.path, found="no token_embd.weight, no embed_tokens.weight",
            expected="the target with its weights",
        )  # fmt: skip
    return spans


def gguf_spans(path: Path) -> dict[str, Span]:
    """Embedding and head of a target's GGUF."""
    tensors = read_gguf(path).tensors
    return {
        name: Span(name, str(path), t.offset, t.nbytes, t.type, t.shape[::-1])
        for name in (EMBEDDING, HEAD) if (t := tensors.get(name)) is not None
    }  # fmt: skip


def folder_spans(folder: Path) -> dict[str, Span]:
    """Embedding and head of a target's checkpoint; only the shards that hold them are opened."""
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    placed: Mapping[str, object] = {}
    if indexes:
        index = Section(read_json(inside(indexes[0], folder), limit=8 << 20), indexes[0])
        weights = index.section("weight_map")
        placed = weights.values if weights else {}
    else:
        for file in sorted(folder.glob("*.safetensors")):
            placed = {
                **placed,
                **dict.fromkeys(read_safetensors(inside(file, folder)).tensors, file.name),
            }
    spans: dict[str, Span] = {}
    for gguf, names in FOLDER_NAMES.items():
        name = next((n for n in names if n in placed), None)
        if name is not None:
            shard = folder / shard_name(placed[name], folder)
            tensor = read_safetensors(inside(shard, folder)).tensors.get(name)
            if tensor is None:
                raise InputError(
                    "index names a shard without the tensor",
                    found=name,
                    where=shard,
                    expected="the shard that holds it",
                )
            spans[gguf] = span_of(tensor)
    config = Section(read_json(folder / "config.json"), folder / "config.json")
    if HEAD not in spans and config.flag("tie_word_embeddings") is False:
        raise InputError(
            "the target has no output head", found="tie_word_embeddings false, no lm_head.weight", where=folder, expected="the target with all its weights"
        )  # fmt: skip
    return spans
