"""A small random target and drafts in z-lab's layout: real checkpoints for tests, written in milliseconds.

Random weights draft next to nothing right: use the trained pair (examples/pair) where acceptance matters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

torch.set_num_threads(1)  # tensors this small only wait for each other

H, LAYERS, NH, NKV, HD, FF, V = 64, 4, 4, 2, 16, 96, 100
TARGET: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": H, "num_hidden_layers": LAYERS,
    "num_attention_heads": NH, "num_key_value_heads": NKV, "head_dim": HD, "intermediate_size": FF, "vocab_size": V,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "eos_token_id": V - 2, "hidden_act": "silu",
}  # fmt: skip
DRAFT = {k: v for k, v in TARGET.items() if k != "eos_token_id"} | {
    "num_hidden_layers": 2,
    "num_target_layers": LAYERS,
}
V1: dict[str, Any] = DRAFT | {
    "architectures": ["DFlashDraftModel"], "block_size": 4, "sliding_window": 8, "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention"],
    "dflash_config": {"mask_token_id": V - 1, "target_layer_ids": [0, 2]},
}  # fmt: skip
V2: dict[str, Any] = {k: v for k, v in DRAFT.items() if k != "rope_theta"} | {
    "architectures": ["DFlash2DraftModel"], "sliding_window": 8, "use_sliding_window": True, "is_causal": False,
    "layer_types": ["sliding_attention"] * 2, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "dflash_config": {
        "block_size": 4, "mask_token_id": V - 1, "target_layer_ids": [0, 2], "conv_kernel_size": 2,
        "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4,
    },
}  # fmt: skip


def block(name: str, ff: int = FF) -> dict[str, tuple[int, ...]]:
    """Shapes of one transformer layer called `name`."""
    attention = {
        "q_proj": (NH * HD, H),
        "k_proj": (NKV * HD, H),
        "v_proj": (NKV * HD, H),
        "o_proj": (H, NH * HD),
    }
    return {
        **{f"{name}.self_attn.{n}.weight": s for n, s in attention.items()},
        **{f"{name}.self_attn.{n}_norm.weight": (HD,) for n in "qk"},
        **{f"{name}.{n}_layernorm.weight": (H,) for n in ("input", "post_attention")},
        **{f"{name}.mlp.{n}_proj.weight": (ff, H) for n in ("gate", "up")},
        f"{name}.mlp.down_proj.weight": (H, ff),
    }


def draft_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor shapes of a draft with this config."""
    d = config["dflash_config"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (H, H * len(d["target_layer_ids"]))}
    shapes |= {"hidden_norm.weight": (H,), "norm.weight": (H,)}
    for i in range(config["num_hidden_layers"]):
        shapes |= block(f"layers.{i}")
        if "conv_kernel_size" in d:
            k, groups = d["conv_kernel_size"], H // d["conv_group_size"]
            for name in ("attention_conv", "mlp_conv"):
                shapes[f"layers.{i}.{name}.base_kernel"] = (2, k, H)
                shapes[f"layers.{i}.{name}.kernel_projection.weight"] = (2 * k * groups, H)
    if "selector_rank" in d:
        rank = d["selector_rank"]
        shapes |= {
            f"candidate_selector.{n}_codebook": (V, rank) for n in ("predecessor", "successor")
        }
        shapes["candidate_selector.hidden_projection.weight"] = (rank, H)
    return shapes


def write(
    folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]], seed: int
) -> dict[str, torch.Tensor]:
    """A checkpoint of seeded random BF16 tensors; norms near 1. Gives the tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        t = torch.randn(shape, generator=rng)
        t = (
            1 + 0.2 * t
            if "norm" in name and t.ndim == 1
            else t * (2.0 if "embed" in name else shape[-1] ** -0.5)
        )
        tensors[name] = t.bfloat16()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def write_target(folder: Path, seed: int = 1, **changes: Any) -> dict[str, torch.Tensor]:
    """The random target; `changes` to its config."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, H), "lm_head.weight": (V, H), "model.norm.weight": (H,)}  # fmt: skip
    for i in range(LAYERS):
        shapes |= block(f"model.layers.{i}")
    return write(folder, TARGET | changes, shapes, seed)


def write_draft(folder: Path, config: dict[str, Any], seed: int = 2) -> dict[str, torch.Tensor]:
    """A random draft with `config` (V1 or V2, or a change of them)."""
    return write(folder, config, draft_shapes(config), seed)
