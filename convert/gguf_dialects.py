"""From the metadata of a GGUF, in any dialect, to DraftSpec. Pure.

One table lists, for each field, every key that a dialect uses for it (`models.md` sections 7 and 8). A file that has
two of them must say the same in both; a field that changes results and is nowhere is refused with the option that
supplies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .errors import InputError
from .fields import Questions
from .gguf import GgufFile
from .names import generic, lookup, match
from .spec import Conv, DraftSpec, RopeScaling, Selector, from_upstream_layers

DIALECTS: dict[str, str] = {
    "dflash": "gguf",
    "dspark": "gguf",
    "qwen35-dflash-draft": "lucebox",
    "gemma4-dflash-draft": "lucebox",
    "dflash-draft": "ik",
}
"""Architecture name to the spelling of its tensors; `dflash-draft` is used by two worlds, see `spelling`."""


class Key(NamedTuple):
    """Where a field may stand, `{a}` being the architecture, and how it is read."""

    read: str
    """Method of Questions."""
    keys: tuple[str, ...]


KEYS: dict[str, Key] = {
    "hidden_size": Key("integer", ("{a}.embedding_length",)),
    "intermediate_size": Key("integer", ("{a}.feed_forward_length",)),
    "num_hidden_layers": Key("integer", ("{a}.block_count",)),
    "num_attention_heads": Key("integer", ("{a}.attention.head_count",)),
    "num_key_value_heads": Key("integer", ("{a}.attention.head_count_kv",)),
    "head_dim": Key("integer", ("{a}.attention.key_length", "{a}.attention.value_length")),
    "vocab_size": Key("integer", ("{a}.vocab_size",)),
    "context_length": Key("integer", ("{a}.context_length",)),
    "rms_norm_eps": Key("number", ("{a}.attention.layer_norm_rms_epsilon",)),
    "rope_theta": Key("number", ("{a}.rope.freq_base",)),
    "rope_dimension_count": Key("integer", ("{a}.rope.dimension_count",)),
    "block_size": Key("integer", ("{a}.block_size", "{a}.dflash.block_size")),
    "mask_token_id": Key(
        "integer", ("{a}.mask_token_id", "{a}.dflash.mask_token_id", "tokenizer.ggml.mask_token_id")
    ),
    "target_layer_ids": Key("integers", ("{a}.target_layer_ids", "{a}.dflash.target_layer_ids")),
    "target_layers": Key("integers", ("{a}.target_layers",)),
    "sliding_window": Key("integer", ("{a}.attention.sliding_window",)),
    "sliding_layers": Key("flags", ("{a}.attention.sliding_window_pattern",)),
    "causal": Key("flag", ("{a}.attention.causal",)),
    "causal_layers": Key("flags", ("{a}.attention.causal_pattern",)),
    "hidden_act": Key("text", ("{a}.hidden_activation",)),
    "conv.kernel_size": Key(
        "integer", ("{a}.conv_kernel_size", "{a}.dflash.dflash2.conv_kernel_size")
    ),
    "conv.group_size": Key(
        "integer", ("{a}.conv_group_size", "{a}.dflash.dflash2.conv_group_size")
    ),
    "selector.rank": Key("integer", ("{a}.selector_rank", "{a}.dflash.dflash2.selector_rank")),
    "selector.top_k": Key("integer", ("{a}.selector_top_k", "{a}.dflash.dflash2.selector_top_k")),
    "rope_scaling.type": Key("text", ("{a}.rope.scaling.type",)),
    "rope_scaling.factor": Key("number", ("{a}.rope.scaling.factor",)),
    "rope_scaling.original_context_length": Key(
        "integer", ("{a}.rope.scaling.original_context_length",)
    ),
    "num_target_layers": Key(
        "integer", ("{a}.target.block_count", "{a}.dflash.target.block_count")
    ),
    "embedding_scale": Key("number", ("{a}.embedding_scale",)),
    "logit_scale": Key("number", ("{a}.logit_scale",)),
    "final_logit_softcapping": Key("number", ("{a}.final_logit_softcapping",)),
    "attention_value_scale": Key("number", ("{a}.attention.value_scale",)),
    "sample_from_anchor": Key("flag", ("{a}.sample_from_anchor",)),
    "variant": Key("text", ("{a}.variant",)),
}

OPTIONS = {
    "mask_token_id": "--mask-token-id",
    "target_layer_ids": "--target-layer-ids",
    "block_size": "--block-size",
    "rope_theta": "--rope-theta",
    "sliding_window": "--sliding-window",
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
    """Which column of the tensor table the file is written in, by its architecture and its tensor names.

    Raises InputError where the architecture is not a draft's.
    """
    column = DIALECTS.get(file.architecture)
    if column is None:
        raise InputError(
            "not a DFlash draft", found=f"architecture {file.architecture}", where=f"{file.path}: general.architecture",
            expected=" ".join(DIALECTS),
        )  # fmt: skip
    known = {
        c: sum(generic(name)[0] in lookup(c) for name in file.tensors)
        for c in ("gguf", "lucebox", "ik")
    }
    best = max(known.values())
    return column if known[column] == best else max(known, key=lambda c: known[c])


def read_spec(file: GgufFile, given: Mapping[str, Any]) -> DraftSpec:
    """The fields of the file, before its tensors are looked at."""
    arch = file.architecture
    spelling(file)
    found = {
        name: given[name] if name in given else read_key(file.ask, arch, key)
        for name, key in KEYS.items()
    }
    layers = found["num_hidden_layers"] or 0
    if "target_layer_ids" in given:
        found["target_layers"] = None
    ids = layer_ids(found, file)
    shapes = torch_shapes(file)

    def first(*names: str) -> tuple[int, ...]:
        return next((shapes[n] for n in names if n in shapes), ())

    fc = first("fc.weight", "dflash.fc.weight", "dflash_fc.weight")
    codebook = first(
        "selector_successor.weight", "dflash.selector.succ_cb", "selector.succ_codebook"
    )
    vocab = found["vocab_size"] or (codebook or (len(file.kv.get("tokenizer.ggml.tokens", ())),))[0]
    sliding = sliding_layers(found, layers, file)
    return DraftSpec(
        variant=found["variant"] or ("dflash2" if found["selector.rank"] else "dflash1"),
        hidden_size=need(found, "hidden_size", file),
        intermediate_size=need(found, "intermediate_size", file),
        num_hidden_layers=need(found, "num_hidden_layers", file),
        num_attention_heads=need(found, "num_attention_heads", file),
        num_key_value_heads=need(found, "num_key_value_heads", file),
        head_dim=need(found, "head_dim", file),
        vocab_size=vocab,
        context_length=need(found, "context_length", file),
        rms_norm_eps=need(found, "rms_norm_eps", file),
        rope_theta=need(found, "rope_theta", file),
        rope_dimension_count=found["rope_dimension_count"] or need(found, "head_dim", file),
        block_size=need(found, "block_size", file),
        mask_token_id=need(found, "mask_token_id", file),
        target_layer_ids=ids,
        target_hidden_size=target_hidden_size(fc, ids, file),
        sliding_window=found["sliding_window"] or 0 if any(sliding) else 0,
        sliding_layers=sliding,
        causal_layers=causality(given["causality"], sliding)
        if "causality" in given
        else causal_layers(found, sliding),
        conv=part(found, "conv", Conv, file),
        selector=part(found, "selector", Selector, file),
        rope_scaling=rope_scaling(found, file),
        **{k: found[k] for k in OPTIONAL if found[k] is not None},
    )


OPTIONAL = (
    "hidden_act", "num_target_layers", "embedding_scale", "logit_scale", "final_logit_softcapping",
    "attention_value_scale", "sample_from_anchor",
)  # fmt: skip
"""Fields that DraftSpec has a neutral value for, which is what their absence means."""


def read_key(ask: Questions, arch: str, key: Key) -> Any:
    """The value of a field, None where no key has it; refused where two keys differ."""
    read: Callable[[str], Any] = getattr(ask, key.read)
    names = [name.format(a=arch) for name in key.keys]
    values = {name: value for name in names if (value := read(name)) is not None}
    if len(set(values.values())) > 1:
        raise InputError(
            "two keys contradict each other", found=", ".join(f"{k} = {v}" for k, v in values.items()), where=ask.where,
            expected="equal values", fix="pass the right one as an option to dflash-convert",
        )  # fmt: skip
    return next(iter(values.values()), None)


def need(found: Mapping[str, Any], name: str, file: GgufFile) -> Any:
    """A field that has no default."""
    if found[name] is None:
        keys = ", ".join(key.format(a=file.architecture) for key in KEYS[name].keys)
        option = OPTIONS.get(name)
        raise InputError(
            f"draft does not say its {name}", found="no key", where=file.path, expected=keys,
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


def target_hidden_size(fc: tuple[int, ...], ids: tuple[int, ...], file: GgufFile) -> int:
    """Width of one captured state, from fc's input; refused where it does not divide."""
    if len(fc) != 2 or not ids or fc[1] % len(ids):
        raise InputError(
            "fc does not fit the captured layers", found=f"fc {list(fc)}, {len(ids)} layers", where=f"{file.path}: fc.weight",
            expected="[hidden, layers * target hidden]",
        )  # fmt: skip
    return fc[1] // len(ids)


def sliding_layers(found: Mapping[str, Any], layers: int, file: GgufFile) -> tuple[bool, ...]:
    """Which layers have a window; a window without a pattern is refused."""
    pattern, window = found["sliding_layers"], found["sliding_window"]
    if pattern is None and window:
        raise InputError(
            "draft has a window but does not say for which layers", found=f"sliding_window = {window}", where=file.path,
            expected=f"{file.architecture}.attention.sliding_window_pattern, one bool a layer",
        )  # fmt: skip
    return tuple(pattern) if pattern is not None else (False,) * min(layers, 4096)


def causal_layers(found: Mapping[str, Any], sliding: tuple[bool, ...]) -> tuple[bool, ...]:
    """Causality by layer: the pattern, else the global flag, else the reference's rule for a config that is silent.

    Converters write the flag only if the config declares it, so its absence means what the config's absence means:
    sliding layers are causal, full ones see the whole block.
    """
    if found["causal_layers"] is not None:
        return tuple(found["causal_layers"])
    return sliding if found["causal"] is None else (found["causal"],) * len(sliding)


def causality(word: str, sliding: tuple[bool, ...]) -> tuple[bool, ...]:
    """The causal layers that `none`, `all` or `sliding` means."""
    return sliding if word == "sliding" else (word == "all",) * len(sliding)


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
