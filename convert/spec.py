"""DraftSpec: the one description of a draft. Every reader produces it and every writer consumes it.

Pure: opens nothing, prints nothing. The layer convention is decided here and nowhere else:
`target_layer_ids` are 0-based target layers and the hidden state is taken *after* the layer (attention and
feed-forward residuals added). A format that stores another number converts in its own reader and writer with
`to_upstream_layers` and `from_upstream_layers`.

Fields that change results (mask token, block size, layer ids, RoPE base, windows, causality) have no default.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .checks import MAX_BLOCK, MAX_LAYERS, VARIANTS, check

__all__ = [
    "FIELD_NAMES",
    "MAX_BLOCK",
    "MAX_LAYERS",
    "VARIANTS",
    "Conv",
    "Domino",
    "DraftSpec",
    "RopeScaling",
    "Selector",
    "from_upstream_layers",
    "to_upstream_layers",
]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """A RoPE scaling that a config declares, as upstream spells it."""

    type: str
    """`linear` or `yarn`; key `dflash.rope.scaling.type`."""
    factor: float
    """Context extension factor; key `dflash.rope.scaling.factor`."""
    original_context_length: int = 0
    """Positions the base was trained for, 0 if not declared; key `...original_context_length`."""


@dataclass(frozen=True, slots=True)
class Conv:
    """The grouped dynamic convolution of DFlash 2 (spec-runtime 2.1)."""

    kernel_size: int
    """K taps, tap 0 the current row; key `dflash.conv_kernel_size`."""
    group_size: int
    """Channels that share a dynamic coefficient; key `dflash.conv_group_size`."""


@dataclass(frozen=True, slots=True)
class Selector:
    """The candidate selector of DFlash 2 (spec-runtime 2.2)."""

    rank: int
    """R, width of the codebooks; key `dflash.selector_rank`."""
    top_k: int
    """Candidates a row; key `dflash.selector_top_k`."""


@dataclass(frozen=True, slots=True)
class Domino:
    """The recurrent head of Domino (spec-runtime 3.2); its sizes are its tensors'."""

    gru_hidden_dim: int
    """G, width of the GRU's state; key `dflash.domino.gru_hidden_dim`."""
    emb_dim: int
    """E, width between its two projections; key `dflash.domino.emb_dim`."""
    pure_draft_prefix_len: int
    """Predictions at the start of a block that stay uncorrected; key `dflash.domino.pure_draft_prefix_len`."""


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """Everything a runtime must know of a draft, in config.json spellings. Checks itself on construction.

    Raises InputError when two fields contradict each other; `where` names the field.
    """

    variant: str
    """One of VARIANTS; key `dflash.variant`."""
    hidden_size: int
    """H; key `dflash.embedding_length`."""
    intermediate_size: int
    """ff; key `dflash.feed_forward_length`."""
    num_hidden_layers: int
    """L; key `dflash.block_count`."""
    num_attention_heads: int
    """nh; key `dflash.attention.head_count`."""
    num_key_value_heads: int
    """nkv; key `dflash.attention.head_count_kv`."""
    head_dim: int
    """hd; keys `dflash.attention.key_length` and `value_length`."""
    vocab_size: int
    """V of the target's embedding; key `dflash.vocab_size`."""
    context_length: int
    """Trained positions; key `dflash.context_length`."""
    rms_norm_eps: float
    """Key `dflash.attention.layer_norm_rms_epsilon`."""
    rope_theta: float
    """RoPE base; key `dflash.rope.freq_base`."""
    rope_dimension_count: int
    """Rotated dims of a head, NEOX pairs; key `dflash.rope.dimension_count`."""
    block_size: int
    """q, rows of a block, anchor included; key `dflash.block_size`."""
    mask_token_id: int
    """Token of the unknown rows; keys `dflash.mask_token_id`, `tokenizer.ggml.mask_token_id`."""
    target_layer_ids: tuple[int, ...]
    """Captured target layers, 0-based, state taken after the layer; key `dflash.target_layer_ids`."""
    target_hidden_size: int
    """H of the target: fc maps len(target_layer_ids) * target_hidden_size to H."""
    sliding_window: int
    """W in tokens, 0 where no layer has a window; key `dflash.attention.sliding_window`."""
    sliding_layers: tuple[bool, ...]
    """True where layer i sees only its window; key `dflash.attention.sliding_window_pattern`."""
    causal_layers: tuple[bool, ...]
    """True where row i of a block may not see rows j > i; key `dflash.attention.causal_pattern`."""
    hidden_act: str = "silu"
    """`silu`, `gelu` or `gelu_pytorch_tanh`; key `dflash.hidden_activation` where it is not silu."""
    conv: Conv | None = None
    selector: Selector | None = None
    rope_scaling: RopeScaling | None = None
    num_target_layers: int = 0
    """Layers of the target, 0 if not known; key `dflash.target.block_count`."""
    embedding_scale: float = 1.0
    """Factor on the shared embeddings; key `dflash.embedding_scale`."""
    logit_scale: float = 1.0
    """Output multiplier; key `dflash.logit_scale`."""
    final_logit_softcapping: float = 0.0
    """Cap c of c*tanh(l/c), 0 for none; key `dflash.final_logit_softcapping`."""
    attention_value_scale: float = 1.0
    """Factor on the attention output; key `dflash.attention.value_scale`."""
    sample_from_anchor: bool = False
    """DSpark and Domino: row 0 already predicts; key `dflash.sample_from_anchor`."""
    draft_vocab_size: int = 0
    """Rows of a reduced head (`d2t`), 0 for the full vocabulary."""
    markov_rank: int = 0
    """DSpark: width of the Markov tables; 0 in other variants. Read from the tensors."""
    markov_head_type: str = "vanilla"
    """DSpark: `vanilla`, `gated` or `rnn`. Read from the tensors; key `dflash.markov_head_type` where it is not vanilla."""
    domino: Domino | None = None

    def __post_init__(self) -> None:
        """Refuse a contradiction by the name of its field."""
        check(self)

    @property
    def feature_size(self) -> int:
        """Width of fc's input: captured layers times the target's hidden size."""
        return len(self.target_layer_ids) * self.target_hidden_size

    @property
    def causal(self) -> bool | None:
        """The one causality flag upstream has, None where the layers differ."""
        return self.causal_layers[0] if len(set(self.causal_layers)) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, tuples as lists."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    def digest(self) -> str:
        """sha256 of the canonical JSON of the fields: equal specs, equal digests."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def to_upstream_layers(target_layer_ids: Sequence[int]) -> tuple[int, ...]:
    """Upstream's `dflash.target_layers`: "input of layer t", one more than "output of layer i"."""
    return tuple(i + 1 for i in target_layer_ids)


def from_upstream_layers(target_layers: Sequence[int]) -> tuple[int, ...]:
    """The inverse of `to_upstream_layers`; also for speculators' aux ids, which count the same way."""
    return tuple(t - 1 for t in target_layers)


FIELD_NAMES = tuple(f.name for f in fields(DraftSpec))
"""The field names in declaration order, for tables and reports."""
