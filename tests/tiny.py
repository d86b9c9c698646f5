"""Tiny but real checkpoints, written as files: a target (folder and GGUF) and drafts in z-lab's layouts.

Target: 4 layers, hidden 64, byte-level BPE with 300 rows. Drafts: 2 layers, hidden 64, block 4, window 8.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.ggml import BF16, F32
from dflash_gguf.convert.gguf_writer import GgufOutput
from dflash_gguf.convert.spec import Conv, DraftSpec, Selector

H, FF, HEADS, KV_HEADS, HEAD_DIM, VOCAB, TARGET_LAYERS = 64, 96, 4, 2, 16, 300, 4
MASK = 299

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tiny_spec(**overrides: Any) -> DraftSpec:
    """The spec of `write_draft(folder)`, fields replaced by `overrides`."""
    values: dict[str, Any] = {
        "variant": "dflash1", "hidden_size": H, "intermediate_size": FF, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
        "context_length": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e7, "rope_dimension_count": HEAD_DIM,
        "block_size": 4, "mask_token_id": MASK, "target_layer_ids": (0, 2), "target_hidden_size": H,
        "sliding_window": 8, "sliding_layers": (True, False), "causal_layers": (True, False),
        "num_target_layers": TARGET_LAYERS,
    }  # fmt: skip
    return DraftSpec(**(values | overrides))


def tiny_spec_v2(**overrides: Any) -> DraftSpec:
    """The spec of `write_draft(folder, v2=True)`."""
    v2: dict[str, Any] = {
        "variant": "dflash2", "conv": Conv(2, 16), "selector": Selector(8, 4),
        "sliding_layers": (True, True), "causal_layers": (False, False),
    }  # fmt: skip
    return tiny_spec(**(v2 | overrides))


def bf16(values: np.ndarray) -> np.ndarray:
    """Float32 cut to BF16, as uint16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def random_bf16(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """BF16 weights of a plausible size."""
    return bf16(rng.normal(0, 0.05, shape))


def draft_shapes(v2: bool = False, layers: int = 2, taps: int = 2) -> dict[str, tuple[int, ...]]:
    """Names and PyTorch shapes in z-lab's layout."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, taps * H), "hidden_norm.weight": (H,), "norm.weight": (H,)
    }  # fmt: skip
    for i in range(layers):
        p = f"layers.{i}."
        shapes |= {
            p + "input_layernorm.weight": (H,), p + "post_attention_layernorm.weight": (H,),
            p + "self_attn.q_proj.weight": (q, H), p + "self_attn.k_proj.weight": (kv, H),
            p + "self_attn.v_proj.weight": (kv, H), p + "self_attn.o_proj.weight": (H, q),
            p + "self_attn.q_norm.weight": (HEAD_DIM,), p + "self_attn.k_norm.weight": (HEAD_DIM,),
            p + "mlp.gate_proj.weight": (FF, H), p + "mlp.up_proj.weight": (FF, H), p + "mlp.down_proj.weight": (H, FF),
        }  # fmt: skip
        if v2:
            for conv in ("attention_conv", "mlp_conv"):
                shapes[f"{p}{conv}.base_kernel"] = (2, 2, H)
                shapes[f"{p}{conv}.kernel_projection.weight"] = (2 * 2 * (H // 16), H)
    if v2:
        shapes |= {
            "candidate_selector.predecessor_codebook": (VOCAB, 8),
            "candidate_selector.successor_codebook": (VOCAB, 8),
            "candidate_selector.hidden_projection.weight": (8, H),
        }  # fmt: skip
    return shapes


def draft_config(v2: bool = False) -> dict[str, Any]:
    """config.json as z-lab writes it: v1 flat, v2 nested."""
    common: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if v2 else "DFlashDraftModel"], "model_type": "qwen3", "attention_bias": False,
        "hidden_act": "silu", "hidden_size": H, "intermediate_size": FF, "num_hidden_layers": 2, "head_dim": HEAD_DIM,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512, "num_target_layers": TARGET_LAYERS, "tie_word_embeddings": False,
        "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2,
    }  # fmt: skip
    if not v2:
        return common | {
            "layer_types": ["sliding_attention", "full_attention"], "block_size": 4, "rope_theta": 10000000,
            "rope_scaling": None, "torch_dtype": "bfloat16",
            "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2]},
        }  # fmt: skip
    return common | {
        "layer_types": ["sliding_attention"] * 2, "is_causal": False, "dtype": "bfloat16",
        "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
        "dflash_config": {
            "block_size": 4, "conv_group_size": 16, "conv_kernel_size": 2, "mask_token_id": MASK, "selector_rank": 8,
            "selector_top_k": 4, "target_layer_ids": [0, 2],
        },
    }  # fmt: skip


def write_safetensors(
    path: Path, tensors: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str] | None = None
) -> None:
    """A safetensors file of name to (dtype, array)."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    offset = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _, array in tensors.values():
            file.write(array.tobytes())


def draft_tensors(
    v2: bool = False, seed: int = 0, shapes: dict[str, tuple[int, ...]] | None = None
) -> dict[str, tuple[str, np.ndarray]]:
    """Random BF16 tensors of a draft, by name."""
    rng = np.random.default_rng(seed)
    return {
        name: ("BF16", random_bf16(rng, shape))
        for name, shape in (shapes or draft_shapes(v2)).items()
    }


def write_draft(
    folder: Path,
    v2: bool = False,
    *,
    config: dict[str, Any] | None = None,
    tensors: dict[str, tuple[str, np.ndarray]] | None = None,
    shards: int = 1,
) -> Path:
    """A draft checkpoint in `folder`: config.json and one or several safetensors files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or draft_config(v2), indent=2))
    tensors = tensors or draft_tensors(v2)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    names = sorted(tensors)
    index: dict[str, Any] = {
        "metadata": {"total_size": sum(a.nbytes for _, a in tensors.values())},
        "weight_map": {},
    }
    for k in range(shards):
        file = f"model-{k + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[k::shards]}
        write_safetensors(folder / file, part)
        index["weight_map"] |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def draft_with(folder: Path, name: str, values: list[float], dtype: str = "BF16") -> Path:
    """A draft whose tensor starts with these values."""
    tensors = draft_tensors()
    array = (tensors[name][1].astype(np.uint32) << 16).view(np.float32)
    array.reshape(-1)[: len(values)] = values
    tensors[name] = (dtype, bf16(array) if dtype == "BF16" else array)
    return write_draft(folder, tensors=tensors)


def byte_alphabet() -> list[str]:
    """The 256 printable characters that byte-level BPE writes bytes as, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(rest)) for b in range(256)]


def tokenizer_json() -> dict[str, Any]:
    """A byte-level BPE of 258 tokens, two of them special, with Qwen2's pre-tokenizer."""
    alphabet = byte_alphabet()
    vocab = {c: i for i, c in enumerate(alphabet)} | {"he": 256}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": {"type": "NFC"}, "post_processor": None,
        "added_tokens": [
            {"id": 257, "content": "<|end|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False},
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": [["h", "e"]],
        },
    }  # fmt: skip


def target_config() -> dict[str, Any]:
    """config.json of a Qwen3 target."""
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": H, "intermediate_size": 128,
        "num_hidden_layers": TARGET_LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000, "tie_word_embeddings": True, "eos_token_id": 257, "hidden_act": "silu",
    }  # fmt: skip


def write_target(folder: Path) -> Path:
    """A target folder without weights: config.json, tokenizer.json, tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(target_config()))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    tokenizer_config = {
        "eos_token": "<|end|>",
        "add_bos_token": False,
        "chat_template": "{{ messages }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder


def target_fields() -> dict[str, f.Field]:
    """Metadata of the same target as a GGUF."""
    alphabet = byte_alphabet()
    tokens = [*alphabet, "he", "<|end|>", *(f"[PAD{i}]" for i in range(258, VOCAB))]
    types = [1] * 257 + [3] + [5] * (VOCAB - 258)
    return {
        "general.architecture": f.text("qwen3"), "general.name": f.text("Tiny"), "qwen3.block_count": f.u32(TARGET_LAYERS),
        "qwen3.context_length": f.u32(512), "qwen3.embedding_length": f.u32(H), "qwen3.feed_forward_length": f.u32(128),
        "qwen3.attention.head_count": f.u32(HEADS), "qwen3.attention.head_count_kv": f.u32(KV_HEADS),
        "qwen3.attention.key_length": f.u32(HEAD_DIM), "qwen3.attention.value_length": f.u32(HEAD_DIM),
        "qwen3.attention.layer_norm_rms_epsilon": f.f32(1e-6), "qwen3.rope.freq_base": f.f32(1e6),
        "tokenizer.ggml.model": f.text("gpt2"), "tokenizer.ggml.pre": f.text("qwen2"),
        "tokenizer.ggml.tokens": f.texts(tokens), "tokenizer.ggml.token_type": f.i32s(types),
        "tokenizer.ggml.merges": f.texts(["h e"]), "tokenizer.ggml.eos_token_id": f.u32(257),
        "tokenizer.ggml.add_bos_token": f.boolean(False), "tokenizer.chat_template": f.text("{{ messages }}"),
    }  # fmt: skip


def write_target_gguf(path: Path) -> Path:
    """The target as a GGUF with its embedding only."""
    rng = np.random.default_rng(1)
    tensors = [("token_embd.weight", BF16, (H, VOCAB)), ("output_norm.weight", F32, (H,))]
    with GgufOutput(path, target_fields(), tensors) as writer:
        writer.write("token_embd.weight", random_bf16(rng, (VOCAB, H)).tobytes())
        writer.write("output_norm.weight", np.ones(H, np.float32).tobytes())
    return path
