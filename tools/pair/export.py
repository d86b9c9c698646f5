"""Writes the trained pair in the published layouts: Hugging Face target, z-lab v1 and v2 drafts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

from .draft import Draft, DraftShape
from .target import Geometry
from .tokenizer import EOS_ID, MASK_ID, SPECIALS

INITIALIZER_RANGE = 0.06


def write_json(path: Path, value: object) -> None:
    """`value` as sorted, indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_weights(path: Path, model: nn.Module) -> None:
    """Every parameter as a BF16 tensor under its own name."""
    weights = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(dict(sorted(weights.items())), path, metadata={"format": "pt"})
    path.chmod(0o644)


def common_config(g: Geometry) -> dict[str, Any]:
    """The keys that target and drafts spell the same way."""
    config = {k: v for k, v in asdict(g).items() if k != "rope_theta"}
    return config | {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "hidden_act": "silu",
        "initializer_range": INITIALIZER_RANGE,
        "model_type": "qwen3",
        "pad_token_id": EOS_ID,
        "tie_word_embeddings": False,
        "use_cache": True,
    }


def target_config(g: Geometry) -> dict[str, Any]:
    """config.json of the target."""
    return common_config(g) | {
        "architectures": ["Qwen3ForCausalLM"],
        "max_window_layers": g.num_hidden_layers,
        "rope_scaling": None,
        "rope_theta": g.rope_theta,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
    }


def draft_config(g: Geometry, shape: DraftShape) -> dict[str, Any]:
    """config.json of a draft: v1 in the flat generation of keys, v2 in the nested one."""
    inner: dict[str, Any] = {
        "mask_token_id": MASK_ID,
        "target_layer_ids": list(shape.target_layer_ids),
    }
    config = common_config(g) | {
        "dflash_config": inner,
        "layer_types": list(shape.layer_types),
        "max_window_layers": len(shape.layer_types),
        "num_hidden_layers": len(shape.layer_types),
        "num_target_layers": g.num_hidden_layers,
        "sliding_window": shape.sliding_window,
        "use_sliding_window": True,
    }
    if shape.variant == "dflash1":
        return config | {
            "architectures": ["DFlashDraftModel"],
            "block_size": shape.block_size,
            "rope_scaling": None,
            "rope_theta": g.rope_theta,
            "torch_dtype": "bfloat16",
        }
    extra = ("block_size", "conv_group_size", "conv_kernel_size", "selector_rank", "selector_top_k")
    inner |= {key: getattr(shape, key) for key in extra}
    return config | {
        "architectures": ["DFlash2DraftModel"],
        "dtype": "bfloat16",
        "is_causal": shape.is_causal,
        "rope_parameters": {"rope_theta": g.rope_theta, "rope_type": "default"},
    }


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json: the special tokens and their roles."""
    ids = range(MASK_ID + 1 - len(SPECIALS), MASK_ID + 1)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(i): {"content": text, "special": True} | flags
        for i, text in zip(ids, SPECIALS, strict=True)
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIALS[0],
        "mask_token": SPECIALS[3],
        "model_max_length": Geometry().max_position_embeddings,
        "pad_token": SPECIALS[0],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def write_target(folder: Path, target: nn.Module, tokenizer: Tokenizer) -> None:
    """The target's folder: config, weights, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", target_config(Geometry()))
    write_json(folder / "tokenizer_config.json", tokenizer_config())
    tokenizer.save(str(folder / "tokenizer.json"))
    write_weights(folder / "model.safetensors", target)


def write_draft(folder: Path, draft: Draft) -> None:
    """A draft's folder: config and weights; embeddings, head and tokenizer are the target's."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", draft_config(draft.g, draft.shape))
    write_weights(folder / "model.safetensors", draft)
