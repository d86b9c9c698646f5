"""From a draft's config.json, in any publisher's spelling, to DraftSpec. Pure.

`places` knows where each field stands. What changes results and stands nowhere is refused with the option that
supplies it: published values do not follow the formulas people use for them.
What kind of draft it is goes by its tensors, never by the `architectures` label alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from .causality import causality
from .errors import InputError
from .gguf_dialects import OPTIONS, captured_width, spec_from_gguf
from .heads import head_fields, variant_of
from .names import lookup, plain, shorten
from .places import PLACES, config_fields
from .spec import Conv, DraftSpec, RopeScaling, Selector, from_upstream_layers
from .strict_json import Section

__all__ = ["config_fields", "spec_from_config", "spec_from_gguf"]

ARCHITECTURE = re.compile(r"DFlash|DSpark|Domino|MuseGlimmerAssistant")

NEUTRAL = (
    "hidden_act",
    "embedding_scale",
    "logit_scale",
    "final_logit_softcapping",
    "attention_value_scale",
)
"""Fields whose absence means DraftSpec's neutral value."""


def spec_from_config(
    config: Section, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any] | None = None
) -> DraftSpec:
    """The draft that config.json and the tensor shapes (name to PyTorch shape) describe.

    `given` supplies fields by name and wins over the config. Raises InputError where something that changes results
    is missing or contradicts itself. Whether every tensor fits is `names.match`'s question.
    """
    check_architecture(config)
    check_decoder(shapes, config)
    given = given or {}
    values = config_fields(config, given)[0] | dict(given)
    bare = {plain(name): shape for name, shape in shapes.items()}
    fc = bare.get("fc.weight") or bare.get("encoder.fc.weight") or ()
    ids = captured_layers(values, fc, config)
    sliding, window = windows(values, config)
    variant = variant_of(shapes)
    check_claims(values, bare, config)
    check_reduced_vocabulary(values, bare, config)
    rules = lookup("hf")
    head = head_fields(
        variant, {rules[name].gguf: shape for name, shape in bare.items() if name in rules}, values,
        lambda name: need(values, name, config), config.where, lucebox="domino_gru.weight_ih_l0" in bare,
    )  # fmt: skip
    return DraftSpec(
        variant=variant,
        **{name: need(values, name, config) for name in REQUIRED},
        rope_dimension_count=rotated(values, config),
        target_layer_ids=ids,
        target_hidden_size=captured_width(fc, ids, f"{config.where}: fc.weight"),
        sliding_window=window,
        sliding_layers=sliding,
        causal_layers=causality(causal_word(values, variant, config), sliding),
        conv=part(values, "conv", Conv, config),
        selector=part(values, "selector", Selector, config),
        rope_scaling=scaling(values, config),
        num_target_layers=values["num_target_layers"] or 0,
        **head,
        **{name: values[name] for name in NEUTRAL if values[name] is not None},
    )


REQUIRED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "context_length", "rms_norm_eps", "rope_theta", "block_size", "mask_token_id",
)  # fmt: skip


def need(values: Mapping[str, Any], name: str, config: Section) -> Any:
    """A field that has no default."""
    if values.get(name) is None:
        places = PLACES[name][1]
        raise InputError(
            f"config does not say {name}", found="nothing", where=config.where, expected=" or ".join(places),
            fix=f"pass {OPTIONS[name]}" if name in OPTIONS else "use the config.json that belongs to the weights",
        )  # fmt: skip
    return values[name]


def check_architecture(config: Section) -> None:
    """`architectures` names a draft of the family."""
    names = config.texts("architectures")
    if not names or not any(ARCHITECTURE.search(name) for name in names):
        raise InputError(
            "not a DFlash draft", found=f"architectures {names}", where=f"{config.where}: architectures",
            expected="DFlashDraftModel, DFlash2DraftModel or a relative",
            fix="point at the draft's folder, and at the target's with --target",
        )  # fmt: skip


GEMMA = ("layer_scalar", "pre_feedforward_layernorm", "post_feedforward_layernorm")
"""Parts of a layer that only a Gemma 4 decoder has."""


def check_decoder(shapes: Mapping[str, tuple[int, ...]], config: Section) -> None:
    """Refuse the decoder of Gemma 4 (its DSpark draft): it computes what DraftSpec has no words for."""
    found = [name for name in shapes if any(part in name for part in GEMMA)]
    if found:
        raise InputError(
            "a Gemma 4 decoder is not converted", found=shorten(found), where=config.where,
            expected="two norms a layer, keys and values of their own, no layer scalars, attention scaled by its head's size",
            fix="llama.cpp's own converter knows Gemma4DSparkModel",
        )  # fmt: skip


def rotated(values: Mapping[str, Any], config: Section) -> int:
    """Rotated dims of a head. A partial rotation is believed of MiMo's layout only: elsewhere it leaked from the target."""
    head_dim: int = need(values, "head_dim", config)
    nested = config.section("dflash_config")
    mimo = nested is not None and "attention_sink_bias" in nested
    factor = config.number("partial_rotary_factor") if mimo else None
    if factor is None:
        return head_dim
    if not 0 < factor <= 1:
        raise InputError(
            "partial rotation is not usable", found=factor, where=f"{config.where}: partial_rotary_factor", expected="above 0, at most 1",
        )  # fmt: skip
    return int(head_dim * factor)


def check_claims(values: Mapping[str, Any], shapes: Mapping[str, Any], config: Section) -> None:
    """Flags that imply tensors are checked against the tensors."""
    claims = (
        ("attention biases", config.flag("attention_bias"), "q_proj.bias"),
        ("a confidence head", values["confidence"], "confidence"),
        ("a Domino head", values["projector_type"] == "domino", "gru"),
        ("a Markov head", values["projector_type"] == "dspark", "markov"),
    )
    for what, claimed, mark in claims:
        if claimed and not any(mark in name for name in shapes):
            raise InputError(
                f"config announces {what} that the tensors lack", found="true", where=config.where, expected=f"tensors named *{mark}*",
                fix="download the checkpoint again, with the files of its heads",
            )  # fmt: skip


def causal_word(values: Mapping[str, Any], variant: str, config: Section) -> str:
    """`none`, `all` or `sliding`: the flag, else the speculators' flag, else the reference's rule for silence."""
    if values.get("causality"):
        return str(values["causality"])
    if values["is_causal"] is not None:
        return "all" if values["is_causal"] else "none"
    two_sided = values["non_causal"]
    if values["layer_types"] is None and two_sided is None:
        return "none"  # causality goes by layer type; no types, no causal layers
    if two_sided is None and variant == "dflash2" and "speculators_model_type" in config:
        two_sided = True  # the format's own default for this kind
    return "none" if two_sided else "sliding"


def check_reduced_vocabulary(
    values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: Section
) -> None:
    """The config's size of a reduced head and `d2t` must agree."""
    rows, said = shapes.get("d2t", (0,))[0], values["draft_vocab_size"]
    if said not in (None, rows) and not (rows == 0 and said == values["vocab_size"]):
        raise InputError(
            "reduced vocabulary contradicts d2t", found=f"draft_vocab_size = {said}, d2t has {rows} rows", where=config.where,
            expected="equal numbers",
        )  # fmt: skip


def captured_layers(
    values: Mapping[str, Any], fc: tuple[int, ...], config: Section
) -> tuple[int, ...]:
    """The captured layers; ids that count from one are shifted, and must agree with the others.

    speculators may list one layer more, the target's last, which fc has no input for.
    """
    raw, shifted = values["target_layer_ids"], values["shifted_layer_ids"]
    width = values["target_hidden_size"] or values["hidden_size"]
    if shifted and len(fc) == 2 and width and (len(shifted) - 1) * width == fc[1]:
        shifted = shifted[:-1]
    if raw is None:
        return (
            from_upstream_layers(shifted)
            if shifted
            else tuple(need(values, "target_layer_ids", config))
        )
    if shifted is not None and from_upstream_layers(shifted) != tuple(raw):
        raise InputError(
            "the two readings of the target layers contradict each other", found=f"{raw} and {shifted}", where=config.where,
            expected="the second is the first plus 1", fix="pass --target-layer-ids",
        )  # fmt: skip
    return tuple(raw)


def windows(values: Mapping[str, Any], config: Section) -> tuple[tuple[bool, ...], int]:
    """Which layers slide, and the window (0 where none does)."""
    layers, kinds, window = (
        need(values, "num_hidden_layers", config),
        values["layer_types"],
        values["sliding_window"],
    )
    if values.get("sliding_layers") is not None:
        sliding = tuple(values["sliding_layers"])
    elif kinds is not None:
        unknown = sorted(set(kinds) - {"sliding_attention", "full_attention"})
        if unknown or len(kinds) != layers:
            raise InputError(
                "layer_types is not usable", found=unknown or f"{len(kinds)} entries", where=config.where,
                expected=f"{layers} of sliding_attention, full_attention",
            )  # fmt: skip
        sliding = tuple(kind == "sliding_attention" for kind in kinds)
    elif values["use_sliding_window"] and config.integer("max_window_layers") not in (None, 0):
        raise InputError(
            "config does not say which layers have the window", found="use_sliding_window without layer_types",
            where=config.where, expected="layer_types", fix="pass --sliding-layers",
        )  # fmt: skip
    else:
        sliding = (bool(values["use_sliding_window"]),) * min(layers, 4096)
    if any(sliding) and (values["use_sliding_window"] is False or not window):
        raise InputError(
            "sliding layers and window contradict each other", where=config.where,
            found=f"layer_types slide, use_sliding_window = {values['use_sliding_window']}, sliding_window = {window}",
            expected="a window for the sliding layers", fix="pass --sliding-window (0 for none)",
        )  # fmt: skip
    return sliding, window if any(sliding) else 0


def part(values: Mapping[str, Any], name: str, kind: type[Any], config: Section) -> Any:
    """Conv or Selector, None where none of its fields is there; refused where only some are."""
    found = {k.partition(".")[2]: v for k, v in values.items() if k.startswith(f"{name}.")}
    if all(v is None for v in found.values()):
        return None
    for key in found:
        need(values, f"{name}.{key}", config)
    return kind(**found)


def scaling(values: Mapping[str, Any], config: Section) -> RopeScaling | None:
    """The RoPE scaling, None for the plain rotation."""
    kind = values["rope_scaling.type"]
    if kind in (None, "default", "none"):
        return None
    factor = need(values, "rope_scaling.factor", config)
    if not math.isfinite(factor):
        raise InputError(
            "RoPE factor is not usable",
            found=factor,
            where=config.where,
            expected="a finite number",
        )
    return RopeScaling(kind, factor, values["rope_scaling.original_context_length"] or 0)
