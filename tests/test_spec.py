"""DraftSpec checks itself, and there is one layer convention."""

from __future__ import annotations

from typing import Any

import pytest
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.spec import (
    Conv,
    RopeScaling,
    Selector,
    from_upstream_layers,
    to_upstream_layers,
)
from tiny import tiny_spec, tiny_spec_v2

BAD: list[tuple[str, dict[str, Any]]] = [
    ("hidden_size", {"hidden_size": 0}), ("hidden_size", {"hidden_size": 2**31}), ("head_dim", {"head_dim": -1}),
    ("num_hidden_layers", {"num_hidden_layers": 513}), ("num_attention_heads", {"num_attention_heads": 3}),
    ("rope_dimension_count", {"rope_dimension_count": 18}), ("rope_dimension_count", {"rope_dimension_count": 3}),
    ("rms_norm_eps", {"rms_norm_eps": float("nan")}), ("rms_norm_eps", {"rms_norm_eps": -1e-6}),
    ("rope_theta", {"rope_theta": 0.0}), ("rope_theta", {"rope_theta": float("inf")}),
    ("logit_scale", {"logit_scale": 0.0}), ("final_logit_softcapping", {"final_logit_softcapping": -1.0}),
    ("hidden_act", {"hidden_act": "relu"}), ("block_size", {"block_size": 1}), ("block_size", {"block_size": 1025}),
    ("mask_token_id", {"mask_token_id": 300}), ("mask_token_id", {"mask_token_id": -1}),
    ("target_layer_ids", {"target_layer_ids": ()}), ("target_layer_ids", {"target_layer_ids": (0, 4)}),
    ("target_layer_ids", {"target_layer_ids": (-1, 2)}), ("target_layer_ids", {"target_layer_ids": (2, 2)}),
    ("sliding_layers", {"sliding_layers": (True,)}), ("causal_layers", {"causal_layers": (True,) * 3}),
    ("sliding_window", {"sliding_window": 0}), ("sliding_window", {"sliding_layers": (False, False)}),
    ("variant", {"variant": "dflash3"}), ("conv", {"variant": "dflash2"}), ("conv", {"conv": Conv(2, 16)}),
    ("rope_scaling", {"rope_scaling": RopeScaling("warp", 2.0)}),
    ("rope_scaling", {"rope_scaling": RopeScaling("yarn", float("nan"))}),
    ("rope_scaling", {"rope_scaling": RopeScaling("yarn", 1e300)}), ("rope_scaling", {"rope_scaling": RopeScaling("yarn", 1e-60)}),
    ("rope_theta", {"rope_theta": 1e300}), ("rope_theta", {"rope_theta": 1 + 1e-12}),
    ("rms_norm_eps", {"rms_norm_eps": 1e-60}), ("rms_norm_eps", {"rms_norm_eps": 1 - 1e-12}),
    ("embedding_scale", {"embedding_scale": 1e300}), ("embedding_scale", {"embedding_scale": 1e-60}),
    ("logit_scale", {"logit_scale": 1e300}), ("logit_scale", {"logit_scale": 1e-60}),
    ("attention_value_scale", {"attention_value_scale": 1e300}),
    ("final_logit_softcapping", {"final_logit_softcapping": 1e300}), ("final_logit_softcapping", {"final_logit_softcapping": 1e-60}),
    ("draft_vocab_size", {"draft_vocab_size": 301}), ("num_target_layers", {"num_target_layers": -1}),
]  # fmt: skip

BAD_V2: list[tuple[str, dict[str, Any]]] = [
    ("selector", {"selector": None}), ("conv", {"conv": Conv(5, 16)}), ("conv", {"conv": Conv(2, 48)}),
    ("conv", {"conv": Conv(2, 0)}), ("selector", {"selector": Selector(0, 4)}),
    ("selector", {"selector": Selector(8, 8)}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "overrides"), BAD)
def test_contradiction_is_refused_by_field(field: str, overrides: dict[str, Any]) -> None:
    """Each rule refuses with the name of its field."""
    with pytest.raises(InputError) as error:
        tiny_spec(**overrides)

    assert f"draft: {field}" == error.value.where


@pytest.mark.parametrize(("field", "overrides"), BAD_V2)
def test_v2_contradiction_is_refused_by_field(field: str, overrides: dict[str, Any]) -> None:
    """The rules of DFlash 2 refuse with the name of their field."""
    with pytest.raises(InputError) as error:
        tiny_spec_v2(**overrides)

    assert f"draft: {field}" == error.value.where


def test_last_target_layer_is_legal() -> None:
    """A draft may capture layer 0 and the last layer; one past it is refused above."""
    assert tiny_spec(target_layer_ids=(0, 3)).target_layer_ids == (0, 3)


def test_upstream_counts_layers_from_one() -> None:
    """`target_layers` is the input of the next layer: one more, and back again."""
    assert to_upstream_layers((0, 3)) == (1, 4)
    assert from_upstream_layers((1, 4)) == (0, 3)


def test_digest_depends_on_every_field_and_nothing_else() -> None:
    """Equal specs have equal digests; a changed field changes it."""
    assert tiny_spec().digest() == tiny_spec().digest()
    assert tiny_spec().digest() != tiny_spec(causal_layers=(False, False)).digest()


def test_causal_is_a_flag_only_where_layers_agree() -> None:
    """Upstream's one flag exists only for a uniform draft."""
    assert None is tiny_spec().causal
    assert False is tiny_spec_v2().causal
