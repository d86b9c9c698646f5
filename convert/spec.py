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
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .errors import InputError

VARIANTS = ("dflash1", "dflash2", "dspark", "domino")
"""What `dflash.variant` may say."""

MAX_LAYERS = 512
MAX_BLOCK = 1024


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
    """DSpark: row 0 already predicts; key `dflash.sample_from_anchor`."""
    draft_vocab_size: int = 0
    """Rows of a reduced head (`d2t`), 0 for the full vocabulary."""

    def __post_init__(self) -> None:
        """Refuse a contradiction by the name of its field."""
        check_geometry(self)
        check_layers(self)
        check_variant(self)

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


def require(ok: bool, what: str, field: str, found: object, expected: object) -> None:
    """Raise InputError naming the DraftSpec field unless `ok`."""
    if not ok:
        raise InputError(
            what, found=f"{field} = {found}", where=f"draft: {field}", expected=expected
        )


def check_geometry(s: DraftSpec) -> None:
    """Every size positive and consistent with its neighbours."""
    for name in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "context_length", "rope_dimension_count", "target_hidden_size",
    ):  # fmt: skip
        value = getattr(s, name)
        require(0 < value < 2**31, f"{name} is not a size", name, value, "1 to 2^31 - 1")
    require(
        s.num_hidden_layers <= MAX_LAYERS,
        "too many draft layers",
        "num_hidden_layers",
        s.num_hidden_layers,
        f"at most {MAX_LAYERS}",
    )
    require(
        s.num_attention_heads % s.num_key_value_heads == 0, "query heads do not divide among the KV heads",
        "num_attention_heads", s.num_attention_heads, f"a multiple of num_key_value_heads = {s.num_key_value_heads}",
    )  # fmt: skip
    require(
        s.rope_dimension_count <= s.head_dim and s.rope_dimension_count % 2 == 0, "rotated dims do not fit the head",
        "rope_dimension_count", s.rope_dimension_count, f"even and at most head_dim = {s.head_dim}",
    )  # fmt: skip
    require(
        math.isfinite(s.rms_norm_eps) and 0 < s.rms_norm_eps < 1,
        "RMS epsilon is not usable",
        "rms_norm_eps",
        s.rms_norm_eps,
        "between 0 and 1",
    )
    require(
        math.isfinite(s.rope_theta) and s.rope_theta > 1,
        "RoPE base is not usable",
        "rope_theta",
        s.rope_theta,
        "finite and above 1",
    )
    for name in ("embedding_scale", "logit_scale", "attention_value_scale"):
        value = getattr(s, name)
        require(
            math.isfinite(value) and value != 0,
            f"{name} is not usable",
            name,
            value,
            "finite and not 0",
        )
    require(
        math.isfinite(s.final_logit_softcapping) and s.final_logit_softcapping >= 0, "soft cap is not usable",
        "final_logit_softcapping", s.final_logit_softcapping, "finite, 0 for none",
    )  # fmt: skip
    require(
        s.hidden_act in ("silu", "gelu", "gelu_pytorch_tanh"),
        "activation is not known",
        "hidden_act",
        s.hidden_act,
        "silu, gelu or gelu_pytorch_tanh",
    )


def check_layers(s: DraftSpec) -> None:
    """Block, mask token, captured layers and the per-layer patterns fit the model."""
    require(
        2 <= s.block_size <= MAX_BLOCK,
        "block size is not usable",
        "block_size",
        s.block_size,
        f"2 to {MAX_BLOCK}",
    )
    require(
        0 <= s.mask_token_id < s.vocab_size,
        "mask token is outside the vocabulary",
        "mask_token_id",
        s.mask_token_id,
        f"0 to {s.vocab_size - 1}",
    )
    ids = s.target_layer_ids
    require(
        0 < len(ids) <= MAX_LAYERS,
        "no captured target layers",
        "target_layer_ids",
        list(ids),
        "at least one id",
    )
    last = s.num_target_layers - 1 if s.num_target_layers else 2**31 - 1
    bad = [i for i in ids if not 0 <= i <= last]
    require(
        not bad,
        "target layer id out of range",
        "target_layer_ids",
        bad,
        f"0 to {last} (the target has {s.num_target_layers or '?'} layers)",
    )
    require(
        len(set(ids)) == len(ids),
        "a target layer is captured twice",
        "target_layer_ids",
        list(ids),
        "distinct ids",
    )
    for name in ("sliding_layers", "causal_layers"):
        value = getattr(s, name)
        require(
            len(value) == s.num_hidden_layers,
            f"{name} has the wrong length",
            name,
            len(value),
            f"{s.num_hidden_layers}, one a layer",
        )
    require(
        (s.sliding_window > 0) == any(s.sliding_layers), "sliding layers and window contradict each other",
        "sliding_window", f"{s.sliding_window} with pattern {list(s.sliding_layers)}", "a window exactly where a layer slides",
    )  # fmt: skip


def check_variant(s: DraftSpec) -> None:
    """The parts of DFlash 2 come together, and only there."""
    require(s.variant in VARIANTS, "variant is not known", "variant", s.variant, " ".join(VARIANTS))
    is_v2 = s.variant == "dflash2"
    require(
        (s.conv is not None) == is_v2,
        "convolution and variant contradict each other",
        "conv",
        s.conv,
        f"{'present' if is_v2 else 'absent'} in {s.variant}",
    )
    require(
        (s.selector is not None) == is_v2,
        "selector and variant contradict each other",
        "selector",
        s.selector,
        f"{'present' if is_v2 else 'absent'} in {s.variant}",
    )
    if s.conv:
        require(
            1 <= s.conv.kernel_size <= s.block_size,
            "convolution is longer than the block",
            "conv.kernel_size",
            s.conv.kernel_size,
            f"1 to {s.block_size}",
        )
        require(
            s.conv.group_size > 0 and s.hidden_size % s.conv.group_size == 0, "convolution groups do not divide the hidden size",
            "conv.group_size", s.conv.group_size, f"a divisor of hidden_size = {s.hidden_size}",
        )  # fmt: skip
    if s.selector:
        k = s.selector.top_k
        require(
            0 < s.selector.rank < 2**20,
            "selector rank is not usable",
            "selector.rank",
            s.selector.rank,
            "1 to 2^20 - 1",
        )
        require(
            k > 0 and k * (k + 1) <= s.hidden_size and k <= s.vocab_size, "too many selector candidates",
            "selector.top_k", k, f"top_k * (top_k + 1) <= hidden_size = {s.hidden_size} (llama.cpp packs its table in one row)",
        )  # fmt: skip


FIELD_NAMES = tuple(f.name for f in fields(DraftSpec))
"""The field names in declaration order, for tables and reports."""
