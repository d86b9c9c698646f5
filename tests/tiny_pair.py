"""A small random target and drafts in z-lab's layout: real checkpoints for tests, written in milliseconds.

Random weights draft next to nothing right: use the trained pair (examples/pair) where acceptance matters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from dflash_gguf.runtime.identity import canonical_name
from dflash_gguf.runtime.reference import gguf_name
from safetensors.torch import load_file, save_file

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


def store(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, dtype: str) -> None:
    """Add a tensor as `f32` or `bf16`; vectors and conv bases always as F32, like the converter."""
    if dtype == "f32" or tensor.ndim == 1 or name.endswith("_base"):
        writer.add_tensor(name, tensor.float().numpy())
        return
    raw = tensor.bfloat16().contiguous().view(torch.uint16).numpy()
    writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def geometry(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The keys that targets and drafts share."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])


def write_target_gguf(path: Path, folder: Path, dtype: str = "bf16") -> Path:
    """The target in `folder` as GGUF, without a tokenizer."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "qwen3")
    geometry(writer, config)
    writer.add_vocab_size(config["vocab_size"])
    if config["eos_token_id"] is not None:
        writer.add_eos_token_id(config["eos_token_id"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        store(writer, gguf_name(name), tensor, dtype)
    finish(writer)
    return path


def write_draft_gguf(path: Path, folder: Path, dtype: str = "bf16") -> Path:
    """The draft in `folder` as a canonical GGUF, without a tokenizer."""
    config = json.loads((folder / "config.json").read_text())
    d = config | config["dflash_config"]
    layers = [t == "sliding_attention" for t in d["layer_types"]]
    causal = layers if d.get("is_causal") is None else [d["is_causal"]] * len(layers)
    writer = gguf.GGUFWriter(path, "dflash")
    geometry(writer, config)
    for key, value in {"block_size": d["block_size"], "mask_token_id": d["mask_token_id"], "vocab_size": d["vocab_size"]}.items():  # fmt: skip
        writer.add_uint32(f"dflash.{key}", value)
    writer.add_uint32("dflash.format_version", 1)
    writer.add_string("dflash.variant", "dflash2" if "selector_rank" in d else "dflash1")
    writer.add_array("dflash.target_layer_ids", d["target_layer_ids"])
    writer.add_array("dflash.target_layers", [i + 1 for i in d["target_layer_ids"]])
    writer.add_array("dflash.attention.causal_pattern", causal)
    if any(layers):
        writer.add_uint32("dflash.attention.sliding_window", d["sliding_window"])
        writer.add_array("dflash.attention.sliding_window_pattern", layers)
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        if key in d:
            writer.add_uint32(f"dflash.{key}", d[key])
    for key, ours in (
        ("output_multiplier", "logit_scale"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ):
        if key in d:
            writer.add_float32(f"dflash.{ours}", d[key])
    for name, tensor in load_file(folder / "model.safetensors").items():
        store(writer, canonical_name(name), tensor, dtype)
    finish(writer)
    return path
