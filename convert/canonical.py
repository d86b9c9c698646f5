"""The metadata of the canonical GGUF, from DraftSpec and what is known of the target. Pure.

The keys are `docs/format.md`; llama.cpp's architecture `dflash` reads the same file. Nothing of the machine goes in:
no path, date, host or user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import Field, boolean, booleans, f32, i32s, text, u32
from .ggml import type_name
from .spec import DraftSpec, to_upstream_layers

ARCHITECTURE = "dflash"
FORMAT_VERSION = 1
QUANTIZATION_VERSION = 2

FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "BF16": 32,
    "Q4_0": 2,
    "Q8_0": 7,
    "Q2_K": 10,
    "Q3_K": 12,
    "Q4_K": 15,
    "Q5_K": 17,
    "Q6_K": 18,
}
"""`general.file_type` of a file whose matrices mostly have this type."""

GUESSED = 1024
"""`general.file_type` of anything else."""

LABELS = {"dflash1": "DFlash", "dflash2": "DFlash2", "dspark": "DSpark", "domino": "Domino"}


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a draft's file says of its target; empty and 0 for what is not known."""

    architecture: str = ""
    num_hidden_layers: int = 0
    hidden_size: int = 0
    vocab_size: int = 0
    tokenizer_hash: str = ""
    name: str = ""
    multi_section_rope: bool = False


def canonical_fields(
    spec: DraftSpec,
    target: TargetFacts,
    tokenizer: Mapping[str, Field],
    *,
    weights: int,
    type_id: int,
    confidence: bool = False,
    revision: str = "",
) -> dict[str, Field]:
    """All metadata of the file, in its order.

    `weights` is the number of weights, `type_id` the type that most of them have, `confidence` whether a DSpark draft has
    its confidence head, `revision` the commit of a hub repository.
    """
    general = general_fields(spec, target, weights, type_id, revision)
    fields = (
        general
        | geometry(spec, target)
        | behaviour(spec, confidence)
        | target_fields(target, spec)
        | dict(tokenizer)
    )
    if tokenizer:
        fields["tokenizer.ggml.mask_token_id"] = u32(spec.mask_token_id)
    return fields


def general_fields(
    spec: DraftSpec, target: TargetFacts, weights: int, type_id: int, revision: str
) -> dict[str, Field]:
    """`general.*`."""
    label = LABELS[spec.variant]
    name = target.name or target.architecture
    fields = {
        "general.architecture": text(ARCHITECTURE),
        "general.type": text("model"),
        "general.name": text(f"{name} {label}".strip()),
        "general.finetune": text(label),
        "general.size_label": text(size_label(weights)),
        "general.file_type": u32(FILE_TYPES.get(type_name(type_id), GUESSED)),
        "general.quantization_version": u32(QUANTIZATION_VERSION),
    }
    if target.name:
        fields["general.base_model.count"] = u32(1)
        fields["general.base_model.0.name"] = text(target.name)
    if revision:
        fields["general.source.revision"] = text(revision)
    return fields


def size_label(weights: int) -> str:
    """The number of weights as people write it: 1.9B, 310M, 45K."""
    for unit, letter in ((10**9, "B"), (10**6, "M")):
        if weights >= unit:
            return (
                f"{weights / unit:.1f}{letter}"
                if weights < 10 * unit
                else f"{weights / unit:.0f}{letter}"
            )
    return f"{weights / 1000:.0f}K"


def geometry(spec: DraftSpec, target: TargetFacts) -> dict[str, Field]:
    """Sizes and rotation, as upstream spells them."""
    fields = {
        "dflash.format_version": u32(FORMAT_VERSION),
        "dflash.variant": text(spec.variant),
        "dflash.block_count": u32(spec.num_hidden_layers),
        "dflash.context_length": u32(spec.context_length),
        "dflash.embedding_length": u32(spec.hidden_size),
        "dflash.feed_forward_length": u32(spec.intermediate_size),
        "dflash.vocab_size": u32(spec.vocab_size),
        "dflash.attention.head_count": u32(spec.num_attention_heads),
        "dflash.attention.head_count_kv": u32(spec.num_key_value_heads),
        "dflash.attention.key_length": u32(spec.head_dim),
        "dflash.attention.value_length": u32(spec.head_dim),
        "dflash.attention.layer_norm_rms_epsilon": f32(spec.rms_norm_eps),
        "dflash.rope.freq_base": f32(spec.rope_theta),
        "dflash.rope.dimension_count": u32(spec.rope_dimension_count),
    }
    if target.multi_section_rope:  # one live section: plain rotation by the temporal position
        fields["dflash.rope.dimension_sections"] = i32s([spec.rope_dimension_count // 2, 0, 0, 0])
    if spec.rope_scaling:
        fields["dflash.rope.scaling.type"] = text(spec.rope_scaling.type)
        fields["dflash.rope.scaling.factor"] = f32(spec.rope_scaling.factor)
        if spec.rope_scaling.original_context_length:
            fields["dflash.rope.scaling.original_context_length"] = u32(
                spec.rope_scaling.original_context_length
            )
    return fields


def behaviour(spec: DraftSpec, confidence: bool) -> dict[str, Field]:
    """What decides how the draft drafts."""
    fields = {
        "dflash.block_size": u32(spec.block_size),
        "dflash.mask_token_id": u32(spec.mask_token_id),
        "dflash.target_layer_ids": i32s(spec.target_layer_ids),
        "dflash.target_layers": i32s(to_upstream_layers(spec.target_layer_ids)),
        "dflash.attention.causal_pattern": booleans(spec.causal_layers),
    }
    if spec.causal is not None:
        fields["dflash.attention.causal"] = boolean(spec.causal)
    if spec.sliding_window:
        fields["dflash.attention.sliding_window"] = u32(spec.sliding_window)
        fields["dflash.attention.sliding_window_pattern"] = booleans(spec.sliding_layers)
    if spec.conv and spec.selector:
        fields["dflash.conv_kernel_size"] = u32(spec.conv.kernel_size)
        fields["dflash.conv_group_size"] = u32(spec.conv.group_size)
        fields["dflash.selector_rank"] = u32(spec.selector.rank)
        fields["dflash.selector_top_k"] = u32(spec.selector.top_k)
    if spec.hidden_act != "silu":
        fields["dflash.hidden_activation"] = text(spec.hidden_act)
    for key, value, neutral in (
        ("embedding_scale", spec.embedding_scale, 1.0),
        ("logit_scale", spec.logit_scale, 1.0),
        ("final_logit_softcapping", spec.final_logit_softcapping, 0.0),
        ("attention.value_scale", spec.attention_value_scale, 1.0),
    ):
        if value != neutral:
            fields[f"dflash.{key}"] = f32(value)
    if spec.variant in ("dspark", "domino"):
        fields["dflash.sample_from_anchor"] = boolean(spec.sample_from_anchor)
    if spec.variant == "dspark":
        fields["dflash.has_confidence_head"] = boolean(confidence)
    if spec.markov_head_type != "vanilla":
        fields["dflash.markov_head_type"] = text(spec.markov_head_type)
    if spec.domino:
        fields["dflash.domino.gru_hidden_dim"] = u32(spec.domino.gru_hidden_dim)
        fields["dflash.domino.emb_dim"] = u32(spec.domino.emb_dim)
        fields["dflash.domino.pure_draft_prefix_len"] = u32(spec.domino.pure_draft_prefix_len)
    return fields


def target_fields(target: TargetFacts, spec: DraftSpec) -> dict[str, Field]:
    """`dflash.target.*`, what is known of it."""
    fields = {
        "dflash.target.architecture": text(target.architecture),
        "dflash.target.block_count": u32(target.num_hidden_layers or spec.num_target_layers),
        "dflash.target.embedding_length": u32(target.hidden_size or spec.target_hidden_size),
        "dflash.target.vocab_size": u32(target.vocab_size or spec.vocab_size),
        "dflash.target.tokenizer_hash": text(target.tokenizer_hash),
    }
    return {key: field for key, field in fields.items() if field.value}
