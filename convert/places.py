"""Where a draft's config.json holds each field, in every publisher's spelling. Pure.

A field may stand in several places; all that are there must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .errors import InputError
from .strict_json import Section

BACKBONE = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_parameters.rope_theta", "rope_theta", "hidden_act",
    "layer_types", "sliding_window", "use_sliding_window",
)  # fmt: skip
"""Keys that the speculators format keeps below `transformer_layer_config`."""

PLACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hidden_size": ("integer", ("hidden_size",)),
    "intermediate_size": ("integer", ("intermediate_size",)),
    "num_hidden_layers": ("integer", ("num_hidden_layers",)),
    "num_attention_heads": ("integer", ("num_attention_heads",)),
    "num_key_value_heads": ("integer", ("num_key_value_heads",)),
    "head_dim": ("integer", ("head_dim",)),
    "vocab_size": ("integer", ("vocab_size",)),
    "context_length": ("integer", ("max_position_embeddings",)),
    "rms_norm_eps": ("number", ("rms_norm_eps",)),
    "rope_theta": ("number", ("rope_parameters.rope_theta", "rope_theta", "rope_scaling.rope_theta")),
    "block_size": ("integer", ("dflash_config.block_size", "block_size")),
    "mask_token_id": ("integer", ("dflash_config.mask_token_id", "mask_token_id")),
    "target_layer_ids": ("integers", ("dflash_config.target_layer_ids", "target_layer_ids")),
    "shifted_layer_ids": ("integers", ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")),
    "num_target_layers": ("integer", ("num_target_layers", "dflash_config.num_target_layers")),
    "sliding_window": ("integer", ("dflash_config.swa_window_size", "sliding_window")),
    "use_sliding_window": ("flag", ("dflash_config.use_swa", "use_sliding_window")),
    "layer_types": ("texts", ("layer_types",)),
    "is_causal": ("flag", ("is_causal", "dflash_config.causal")),
    "neox": ("flag", ("rope_is_neox_style", "dflash_config.rope_is_neox_style")),
    "non_causal": ("flag", ("sliding_window_non_causal",)),
    "sample_from_anchor": (
        "flag", ("sample_from_anchor", "dflash_config.sample_from_anchor", "dflash_config.shift_label", "shift_label")
    ),
    "target_hidden_size": ("integer", ("target_hidden_size",)),
    "draft_vocab_size": ("integer", ("draft_vocab_size",)),
    "markov_head_type": ("text", ("markov_head_type", "dflash_config.markov_head_type")),
    "projector_type": ("text", ("dflash_config.projector_type", "projector_type")),
    "domino.gru_hidden_dim": ("integer", ("dflash_config.gru_hidden_dim", "gru_hidden_dim")),
    "domino.emb_dim": ("integer", ("dflash_config.emb_dim", "emb_dim", "logits_correction_emb_dim")),
    "domino.pure_draft_prefix_len": ("integer", ("dflash_config.pure_draft_prefix_len", "pure_draft_prefix_len")),
    "confidence": ("flag", ("enable_confidence_head", "use_confidence_head", "dflash_config.use_confidence_head")),
    "confidence_sees_markov": ("flag", ("confidence_head_with_markov", "dflash_config.confidence_head_with_markov")),
    "hidden_act": ("text", ("hidden_act",)),
    "conv.kernel_size": ("integer", ("dflash_config.conv_kernel_size", "conv_kernel_size")),
    "conv.group_size": ("integer", ("dflash_config.conv_group_size", "conv_group_size")),
    "selector.rank": ("integer", ("dflash_config.selector_rank", "selector_rank")),
    "selector.top_k": ("integer", ("dflash_config.selector_top_k", "selector_top_k")),
    "rope_scaling.type": (
        "text", ("rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type", "rope_scaling.type")
    ),
    "rope_scaling.factor": ("number", ("rope_parameters.factor", "rope_scaling.factor")),
    "rope_scaling.original_context_length": (
        "integer", ("rope_parameters.original_max_position_embeddings", "rope_scaling.original_max_position_embeddings")
    ),
    "embedding_scale": ("number", ("dflash_config.input_embedding_scale", "input_embedding_scale")),
    "logit_scale": ("number", ("dflash_config.output_multiplier", "output_multiplier")),
    "final_logit_softcapping": ("number", ("dflash_config.final_logit_softcapping", "final_logit_softcapping")),
    "attention_value_scale": ("number", ("dflash_config.attention_value_scale", "attention_value_scale")),
}  # fmt: skip
"""Field to the reader and the places in config.json that hold it, the reference's favourite first."""

PLACES = {
    field: (kind, places + tuple(f"transformer_layer_config.{p}" for p in places if p in BACKBONE))
    for field, (kind, places) in PLACES.items()
}


def config_fields(
    config: Section, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The value of every field of PLACES (None where absent), and the place each came from.

    A field that is `given` is not looked at.

    Raises InputError where two places differ or a value has the wrong type.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for field, (kind, places) in PLACES.items():
        if field in given:
            values[field], sources[field] = given[field], "option"
            continue
        found = {place: v for place in places if (v := look(config, place, kind)) is not None}
        first = next(iter(found.values()), None)
        if any(v != first for v in found.values()):
            raise InputError(
                f"config gives two values for {field}", found=", ".join(f"{k} = {v}" for k, v in found.items()),
                where=config.where, expected="one value", fix="correct the config, or pass the value as an option",
            )  # fmt: skip
        values[field] = first
        sources[field] = ", ".join(found)
    return values, sources


def look(config: Section, place: str, kind: str) -> Any:
    """The value at a dotted place, None where it is absent."""
    *path, key = place.split(".")
    section: Section | None = config
    for name in path:
        section = section.section(name) if section else None
    read: Callable[[str], Any] | None = getattr(section, kind, None)
    return read(key) if read else None
