"""What must hold between the fields of a DraftSpec, as a table: field, rule, what is expected. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .errors import InputError

if TYPE_CHECKING:
    from .spec import DraftSpec

VARIANTS = ("dflash1", "dflash2", "dspark", "domino")
"""What `dflash.variant` may say."""

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")

MARKOV_HEADS = ("vanilla", "gated", "rnn")
"""What turns a row of the first Markov table into one for the second: nothing, a gate, a recurrent state."""

ROPE_SCALINGS = ("linear", "yarn")

MAX_LAYERS = 512
MAX_BLOCK = 1024
MAX_SIZE = 2**31 - 1


class Rule(NamedTuple):
    """One rule: the field it is about, what is wrong when it fails, the test, and what is expected."""

    field: str
    what: str
    holds: Callable[[DraftSpec], bool]
    expected: Callable[[DraftSpec], str]


def size(field: str) -> Rule:
    """The field is a positive 31-bit integer."""
    return Rule(
        field,
        f"{field} is not a size",
        lambda s: 0 < getattr(s, field) <= MAX_SIZE,
        lambda _: "1 to 2^31 - 1",
    )


def stored(value: float) -> float:
    """The number as the file will hold it, a float32: what is judged is what is written."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))


def factor(field: str) -> Rule:
    """The field is a number to multiply by."""
    return Rule(
        field,
        f"{field} is not usable",
        lambda s: math.isfinite(stored(getattr(s, field))) and stored(getattr(s, field)) != 0,
        lambda _: "finite and not 0, as float32",
    )


def one_a_layer(field: str) -> Rule:
    """The field has one entry a draft layer."""
    return Rule(
        field,
        f"{field} has the wrong length",
        lambda s: len(getattr(s, field)) == s.num_hidden_layers,
        lambda s: f"{s.num_hidden_layers}, one a layer",
    )


def only_in(variant: str, field: str) -> Rule:
    """The field is there exactly in this variant."""
    return Rule(
        field,
        f"{field} and variant contradict each other",
        lambda s: (getattr(s, field) is not None) == (s.variant == variant),
        lambda s: f"{'present' if s.variant == variant else 'absent'} in {s.variant}",
    )


def last_target_layer(s: DraftSpec) -> int:
    """The highest layer id the target can have; a very large one where its depth is not known."""
    return s.num_target_layers - 1 if s.num_target_layers else MAX_SIZE


# fmt: off
RULES: tuple[Rule, ...] = (
    *map(size, (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "context_length",
        "rope_dimension_count", "target_hidden_size",
    )),
    *map(factor, ("embedding_scale", "logit_scale", "attention_value_scale")),
    Rule("num_hidden_layers", "too many draft layers",
         lambda s: s.num_hidden_layers <= MAX_LAYERS, lambda _: f"at most {MAX_LAYERS}"),
    Rule("num_attention_heads", "query heads do not divide among the KV heads",
         lambda s: s.num_attention_heads % s.num_key_value_heads == 0,
         lambda s: f"a multiple of num_key_value_heads = {s.num_key_value_heads}"),
    Rule("rope_dimension_count", "rotated dims do not fit the head",
         lambda s: s.rope_dimension_count <= s.head_dim and s.rope_dimension_count % 2 == 0,
         lambda s: f"even and at most head_dim = {s.head_dim}"),
    Rule("rms_norm_eps", "RMS epsilon is not usable",
         lambda s: 0 < stored(s.rms_norm_eps) < 1, lambda _: "between 0 and 1"),
    Rule("rope_theta", "RoPE base is not usable",
         lambda s: 1 < stored(s.rope_theta) < math.inf, lambda _: "finite and above 1"),
    Rule("rope_scaling", "RoPE scaling is not usable",
         lambda s: not s.rope_scaling or (s.rope_scaling.type in ROPE_SCALINGS
                                          and 0 < stored(s.rope_scaling.factor) < math.inf
                                          and 0 <= s.rope_scaling.original_context_length <= MAX_SIZE),
         lambda _: f"type {' or '.join(ROPE_SCALINGS)}, a finite factor above 0"),
    Rule("final_logit_softcapping", "soft cap is not usable",
         lambda s: s.final_logit_softcapping == 0 or 0 < stored(s.final_logit_softcapping) < math.inf,
         lambda _: "finite, 0 for none"),
    Rule("hidden_act", "activation is not known",
         lambda s: s.hidden_act in ACTIVATIONS, lambda _: " ".join(ACTIVATIONS)),
    Rule("block_size", "block size is not usable",
         lambda s: 2 <= s.block_size <= MAX_BLOCK, lambda _: f"2 to {MAX_BLOCK}"),
    Rule("mask_token_id", "mask token is outside the vocabulary",
         lambda s: 0 <= s.mask_token_id < s.vocab_size, lambda s: f"0 to {s.vocab_size - 1}"),
    Rule("num_target_layers", "target depth is not usable",
         lambda s: 0 <= s.num_target_layers <= MAX_SIZE, lambda _: "0 (not known) to 2^31 - 1"),
    Rule("target_layer_ids", "no captured target layers",
         lambda s: 0 < len(s.target_layer_ids) <= MAX_LAYERS, lambda _: f"1 to {MAX_LAYERS} ids"),
    Rule("target_layer_ids", "target layer id out of range",
         lambda s: all(0 <= i <= last_target_layer(s) for i in s.target_layer_ids),
         lambda s: f"0 to {last_target_layer(s)} (the target has {s.num_target_layers or '?'} layers)"),
    Rule("target_layer_ids", "a target layer is captured twice",
         lambda s: len(set(s.target_layer_ids)) == len(s.target_layer_ids), lambda _: "distinct ids"),
    Rule("target_layer_ids", "target layers are not in ascending order",
         lambda s: list(s.target_layer_ids) == sorted(s.target_layer_ids), lambda s: f"{sorted(s.target_layer_ids)}"),
    *map(one_a_layer, ("sliding_layers", "causal_layers")),
    Rule("sliding_window", "sliding layers and window contradict each other",
         lambda s: 0 <= s.sliding_window <= MAX_SIZE and (s.sliding_window > 0) == any(s.sliding_layers),
         lambda s: f"a window exactly where a layer slides (pattern {list(s.sliding_layers)})"),
    Rule("variant", "variant is not known", lambda s: s.variant in VARIANTS, lambda _: " ".join(VARIANTS)),
    only_in("dflash2", "conv"),
    only_in("dflash2", "selector"),
    only_in("domino", "domino"),
    Rule("conv", "convolution is longer than the block",
         lambda s: not s.conv or 1 <= s.conv.kernel_size <= s.block_size,
         lambda s: f"kernel_size 1 to {s.block_size}"),
    Rule("conv", "convolution groups do not divide the hidden size",
         lambda s: not s.conv or (s.conv.group_size > 0 and s.hidden_size % s.conv.group_size == 0),
         lambda s: f"group_size a divisor of hidden_size = {s.hidden_size}"),
    Rule("selector", "selector rank is not usable",
         lambda s: not s.selector or 0 < s.selector.rank < 2**20, lambda _: "rank 1 to 2^20 - 1"),
    Rule("selector", "too many selector candidates",
         lambda s: not s.selector or (0 < s.selector.top_k <= s.vocab_size
                                      and s.selector.top_k * (s.selector.top_k + 1) <= s.hidden_size),
         lambda s: f"top_k * (top_k + 1) <= hidden_size = {s.hidden_size} (llama.cpp packs its table in one row)"),
    Rule("markov_rank", "Markov rank and variant contradict each other",
         lambda s: 0 <= s.markov_rank < 2**20 and (s.markov_rank > 0) == (s.variant == "dspark"),
         lambda s: "1 to 2^20 - 1" if s.variant == "dspark" else f"0 in {s.variant}"),
    Rule("markov_head_type", "Markov head is of a kind that is not known",
         lambda s: s.markov_head_type in (MARKOV_HEADS if s.variant == "dspark" else ("vanilla",)),
         lambda s: " ".join(MARKOV_HEADS) if s.variant == "dspark" else f"vanilla in {s.variant}"),
    Rule("domino", "Domino head is not usable",
         lambda s: not s.domino or (0 < s.domino.gru_hidden_dim < 2**20 and 0 < s.domino.emb_dim < 2**20
                                    and 0 <= s.domino.pure_draft_prefix_len < s.block_size),
         lambda s: f"widths 1 to 2^20 - 1, a prefix of 0 to {s.block_size - 1}"),
    Rule("draft_vocab_size", "reduced vocabulary is larger than the full one",
         lambda s: 0 <= s.draft_vocab_size <= s.vocab_size, lambda s: f"0 to {s.vocab_size}"),
)
# fmt: on


def check(s: DraftSpec) -> None:
    """Raise InputError for the first rule that does not hold; `where` names the field."""
    for rule in RULES:
        if not rule.holds(s):
            found = getattr(s, rule.field)
            raise InputError(
                rule.what,
                found=f"{rule.field} = {list(found) if isinstance(found, tuple) else found}",
                where=f"draft: {rule.field}",
                expected=rule.expected(s),
            )
