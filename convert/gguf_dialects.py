"""From the metadata of a GGUF, in any dialect, to DraftSpec. Pure.

`spelling` knows the keys. A file that has two of them for one field must say the same in both; a field that changes
results and is nowhere is refused with the option that supplies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .causality import causal_layers, causality
from .errors import InputError
from .fields import Questions
from .gguf import GgufFile
from .heads import head_fields, variant_of
from .laguna import is_laguna
from .names import GGUF_DIALECTS, generic, lookup, match, shorten
from .spec import Conv, DraftSpec, RopeScaling, Selector, from_upstream_layers
from .spelling import READERS, spellings

KEYS: dict[str, tuple[str, str]] = {
    "hidden_size": ("integer", "embedding_length"),
    "intermediate_size": ("integer", "feed_forward_length"),
    "num_hidden_layers": ("integer", "block_count"),
    "num_attention_heads": ("integer", "attention.head_count"),
    "num_key_value_heads": ("integer", "attention.head_count_kv"),
    "head_dim": ("integer", "attention.key_length"),
    "vocab_size": ("integer", "vocab_size"),
    "context_length": ("integer", "context_length"),
    "rms_norm_eps": ("number", "attention.layer_norm_rms_epsilon"),
    "rope_theta": ("number", "rope.freq_base"),
    "rope_dimension_count": ("integer", "rope.dimension_count"),
    "block_size": ("integer", "block_size"),
    "mask_token_id": ("integer", "mask_token_id"),
    "target_layer_ids": ("integers", "target_layer_ids"),
    "target_layers": ("integers", "target_layers"),
    "sliding_window": ("integer", "attention.sliding_window"),
    "sliding_layers": ("flags", "attention.sliding_window_pattern"),
    "causal": ("flag", "attention.causal"),
    "causal_layers": ("flags", "attention.causal_pattern"),
    "hidden_act": ("text", "hidden_activation"),
    "conv.kernel_size": ("integer", "conv_kernel_size"),
    "conv.group_size": ("integer", "conv_group_size"),
    "selector.rank": ("integer", "selector_rank"),
    "selector.top_k": ("integer", "selector_top_k"),
    "rope_scaling.type": ("text", "rope.scaling.type"),
    "rope_scaling.factor": ("number", "rope.scaling.factor"),
    "rope_scaling.original_context_length": ("integer", "rope.scaling.original_context_length"),
    "num_target_layers": ("integer", "target.block_count"),
    "embedding_scale": ("number", "embedding_scale"),
    "logit_scale": ("number", "logit_scale"),
    "final_logit_softcapping": ("number", "final_logit_softcapping"),
    "attention_value_scale": ("number", "attention.value_scale"),
    "sample_from_anchor": ("flag", "sample_from_anchor"),
    "markov_head_type": ("text", "markov_head_type"),
    "domino.gru_hidden_dim": ("integer", "domino.gru_hidden_dim"),
    "domino.emb_dim": ("integer", "domino.emb_dim"),
    "domino.pure_draft_prefix_len": ("integer", "domino.pure_draft_prefix_len"),
    "variant": ("text", "variant"),
}
"""Field to the reader and the canonical key behind `dflash.`."""

ALSO = {"mask_token_id": ("tokenizer.ggml.mask_token_id",)}
"""Keys outside the architecture that hold a field."""

NEUTRAL = (
    "hidden_act", "num_target_layers", "embedding_scale", "logit_scale", "final_logit_softcapping", "attention_value_scale",
)  # fmt: skip
"""Fields that DraftSpec has a neutral value for, which is what their absence means."""

OPTIONS = {
    "mask_token_id": "--mask-token-id",
    "target_layer_ids": "--target-layer-ids",
    "block_size": "--block-size",
    "rope_theta": "--rope-theta",
    "sliding_window": "--sliding-window",
    "sliding_layers": "--sliding-layers",
}
"""The options of dflash-convert that supply what a file lacks."""


def spec_from_gguf(file: GgufFile, given: Mapping[str, Any] | None = None) -> DraftSpec:
    """The draft that a GGUF of any dialect describes, its tensors checked against it.

    `given` supplies fields by name and wins over the file. Raises InputError where the file is not a draft, lacks
    a field that changes results, or contradicts itself.
    """
    spec = read_spec(file, given or {})
    match(spec, torch_shapes(file), spelling(file), file.path)
    return spec


def torch_shapes(file: GgufFile) -> dict[str, tuple[int, ...]]:
    """Name to shape in PyTorch order."""
    return {name: info.shape[::-1] for name, info in file.tensors.items()}


def spelling(file: GgufFile) -> str:
    """Which column of the tensor table the file is spelled in: by its tensors, and by its architecture on a tie.

    Raises InputError where the architecture is not a draft's.
    """
    column = READERS.get(file.architecture)
    if column is None:
        raise InputError(
            "not a DFlash draft", found=f"architecture {file.architecture}", where=f"{file.path}: general.architecture",
            expected=" ".join(READERS),
        )  # fmt: skip
    known = {c: sum(generic(name)[0] in lookup(c) for name in file.tensors) for c in GGUF_DIALECTS}
    return max(GGUF_DIALECTS, key=lambda c: (known[c], c == column))


def read_spec(file: GgufFile, given: Mapping[str, Any], column: str = "") -> DraftSpec:
    """The fields of the file, before its tensors are looked at."""
    column = column or spelling(file)
    found = {name: given[name] if name in given else read_key(file, name) for name in KEYS}
    if "target_layer_ids" in given:
        found["target_layers"] = None
    shapes = canonical_shapes(file, column)
    check_fc(shapes.get("fc.weight", ()), found["hidden_size"], file)
    ids, sliding = layer_ids(found, file), sliding_layers(found, file)
    variant = found["variant"] or variant_of(file.tensors)
    head = head_fields(
        variant, shapes, found, lambda name: need(found, name, file), file.path, lucebox=column == "lucebox"
    )  # fmt: skip
    return DraftSpec(
        variant=variant,
        **{name: need(found, name, file) for name in REQUIRED},
        vocab_size=found["vocab_size"] or vocabulary(file, shapes),
        rope_dimension_count=found["rope_dimension_count"] or need(found, "head_dim", file),
        target_layer_ids=ids,
        target_hidden_size=captured_width(
            shapes.get("fc.weight", ()), ids, f"{file.path}: fc.weight"
        ),
        sliding_window=(found["sliding_window"] or 0) if any(sliding) else 0,
        sliding_layers=sliding,
        causal_layers=causality(given["causality"], sliding)
        if "causality" in given
        else causal_layers(found, sliding, laguna=is_laguna(file)),
        conv=part(found, "conv", Conv, file),
        selector=part(found, "selector", Selector, file),
        rope_scaling=rope_scaling(found, file),
        **head,
        **{k: found[k] for k in NEUTRAL if found[k] is not None},
    )


REQUIRED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "context_length", "rms_norm_eps", "rope_theta", "block_size", "mask_token_id",
)  # fmt: skip


def canonical_shapes(file: GgufFile, column: str) -> dict[str, tuple[int, ...]]:
    """Canonical name (of a tensor of the whole draft) to PyTorch shape."""
    rules = lookup(column)
    return {rules[name].gguf: shape for name, shape in torch_shapes(file).items() if name in rules}


def vocabulary(file: GgufFile, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Vocabulary size of a file that does not state it: the selector's rows, the embedding's, or the tokens."""
    for name in ("selector_successor.weight", "token_embd.weight", "markov_w1.weight"):
        if name in shapes:
            return shapes[name][0]
    return len(file.ask.texts("tokenizer.ggml.tokens") or ())


def read_key(file: GgufFile, name: str) -> Any:
    """The value of a field, None where no key has it; refused where two keys differ."""
    read: Callable[[str], Any] = getattr(Questions(file.fields, file.path), KEYS[name][0])
    keys = keys_of(name, file.architecture)
    values = {key: value for key in keys if (value := read(key)) is not None}
    if len(set(values.values())) > 1:
        raise InputError(
            "two keys contradict each other", found=", ".join(f"{k} = {v}" for k, v in values.items()), where=file.path,
            expected="equal values", fix=f"dflash-convert with {OPTIONS[name]}" if name in OPTIONS else "",
        )  # fmt: skip
    return next(iter(values.values()), None)


def field_sources(file: GgufFile, given: Mapping[str, Any]) -> dict[str, str]:
    """Field to the keys of the file that hold it, or `option` where it is given; a field that is nowhere is left out."""
    found = {
        name: ", ".join(key for key in keys_of(name, file.architecture) if key in file.fields)
        for name in KEYS
    }
    return {name: keys for name, keys in found.items() if keys} | dict.fromkeys(given, "option")


def keys_of(name: str, arch: str) -> tuple[str, ...]:
    """Every key that may hold a field in a file of architecture `arch`."""
    return (*spellings(KEYS[name][1], arch), *ALSO.get(name, ()))


def own_keys(file: GgufFile) -> str:
    """The first of the keys that speak of the draft, whatever architecture they name, and how many more."""
    other = ("general.", "tokenizer.", "split.")
    return shorten([key for key in file.fields if not key.startswith(other)]) or "no key of a draft"


def need(found: Mapping[str, Any], name: str, file: GgufFile) -> Any:
    """A field that has no default."""
    if found[name] is None:
        option = OPTIONS.get(name)
        raise InputError(
            f"draft does not say its {name}", found=f"no key for it beside {own_keys(file)}", where=file.path,
            expected=", ".join(spellings(KEYS[name][1], file.architecture)),
            fix=f"dflash-convert with {option}" if option else "convert the checkpoint again",
        )  # fmt: skip
    return found[name]


def layer_ids(found: Mapping[str, Any], file: GgufFile) -> tuple[int, ...]:
    """The captured layers from either convention, checked against each other where both are there."""
    raw, shifted = found["target_layer_ids"], found["target_layers"]
    if raw is None and shifted is None:
        need(found, "target_layer_ids", file)
    if raw is not None and shifted is not None and raw != from_upstream_layers(shifted):
        raise InputError(
            "the two readings of the target layers contradict each other",
            found=f"target_layer_ids = {list(raw)}, target_layers = {list(shifted)}", where=file.path,
            expected="target_layers = target_layer_ids + 1", fix="dflash-convert with --target-layer-ids",
        )  # fmt: skip
    return tuple(raw) if raw is not None else from_upstream_layers(shifted)


def check_fc(fc: tuple[int, ...], hidden: int | None, file: GgufFile) -> None:
    """Refuse a transposed fc by its own name, with the option that mends it."""
    if len(fc) == 2 and fc[0] != hidden and fc[1] == hidden:
        raise InputError(
            "fc is transposed", found=f"[{fc[0]}, {fc[1]}]", where=f"{file.path}: fc.weight", expected=f"[{hidden}, layers * target hidden]",
            fix="dflash-convert with --fc transposed (turn the weights) or --fc mislabelled (correct the shape only)",
        )  # fmt: skip


def captured_width(fc: tuple[int, ...], ids: tuple[int, ...], where: object) -> int:
    """Width of one captured state, from fc's input; refused where it does not divide."""
    if len(fc) != 2 or not ids or fc[1] % len(ids):
        raise InputError(
            "fc does not fit the captured layers", found=f"fc {list(fc)}, {len(ids)} layers", where=where,
            expected="[hidden, layers * target hidden]",
        )  # fmt: skip
    return fc[1] // len(ids)


def sliding_layers(found: Mapping[str, Any], file: GgufFile) -> tuple[bool, ...]:
    """Which layers have a window; a window without a pattern is refused."""
    pattern, window, layers = (
        found["sliding_layers"],
        found["sliding_window"],
        found["num_hidden_layers"] or 0,
    )
    if pattern is None and window:
        need(found, "sliding_layers", file)
    return tuple(pattern) if pattern is not None else (False,) * min(layers, 4096)


def part(found: Mapping[str, Any], name: str, kind: type[Any], file: GgufFile) -> Any:
    """Conv or Selector, None where none of its keys is there; refused where only some are."""
    values = {k.partition(".")[2]: v for k, v in found.items() if k.startswith(f"{name}.")}
    if all(value is None for value in values.values()):
        return None
    for key in values:
        need(found, f"{name}.{key}", file)
    return kind(**values)


def rope_scaling(found: Mapping[str, Any], file: GgufFile) -> RopeScaling | None:
    """The scaling, None where the file has none or says `none`."""
    kind = found["rope_scaling.type"]
    if kind in (None, "none"):
        return None
    return RopeScaling(
        kind,
        need(found, "rope_scaling.factor", file),
        found["rope_scaling.original_context_length"] or 0,
    )
