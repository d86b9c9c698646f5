"""Writes the pair's target folder as the GGUF that llama.cpp loads (architecture qwen3).

    python tools/target_gguf.py examples/pair/target examples/pair/Pair-Target-BF16.gguf

Matrices stay BF16, norms become F32. The same folder gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors import safe_open

TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of the Hugging Face tensor `name`; KeyError when it is not a Qwen3 tensor."""
    if name in TOP:
        return TOP[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{int(layer)}.{LAYER[rest.removesuffix('.weight')]}.weight"


def add_geometry(out: gguf.GGUFWriter, config: dict) -> None:
    """The keys of architecture qwen3."""
    out.add_name("Pair Target")
    out.add_size_label("6.4M")
    out.add_license("mit")
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)
    out.add_vocab_size(config["vocab_size"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_freq_base(float(config["rope_theta"]))
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])


def add_tokenizer(out: gguf.GGUFWriter, folder: Path) -> None:
    """Tokens, kinds, merges and special ids from tokenizer.json and tokenizer_config.json."""
    data = json.loads((folder / "tokenizer.json").read_text())
    roles = json.loads((folder / "tokenizer_config.json").read_text())
    ids = dict(data["model"]["vocab"])
    special = {t["content"]: t["id"] for t in data["added_tokens"]}
    tokens = sorted(ids | special, key=(ids | special).__getitem__)
    if [(ids | special)[t] for t in tokens] != list(range(len(tokens))):
        raise ValueError("token ids have gaps")
    kinds = [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges(merges)
    out.add_eos_token_id(special[roles["eos_token"]])
    out.add_bos_token_id(special[roles["eos_token"]])
    out.add_pad_token_id(special[roles["pad_token"]])
    out.add_mask_token_id(special[roles["mask_token"]])
    out.add_add_bos_token(False)


def add_tensors(out: gguf.GGUFWriter, path: Path) -> None:
    """All tensors of model.safetensors, matrices as BF16 bytes, vectors as F32."""
    with safe_open(path, framework="pt") as source:
        for name in sorted(source.keys()):
            value = source.get_tensor(name)
            if value.ndim == 1:
                out.add_tensor(gguf_name(name), value.float().numpy())
                continue
            rows = value.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
            kind = gguf.GGMLQuantizationType.BF16
            out.add_tensor(gguf_name(name), np.ascontiguousarray(rows), raw_dtype=kind)


def write(folder: Path, path: Path) -> None:
    """Write the GGUF of the target in `folder` to `path`, through a temporary sibling."""
    config = json.loads((folder / "config.json").read_text())
    part = path.with_name(path.name + ".part")
    out = gguf.GGUFWriter(part, "qwen3")
    add_geometry(out, config)
    add_tokenizer(out, folder)
    add_tensors(out, folder / "model.safetensors")
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    part.replace(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("gguf", type=Path)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.gguf)
