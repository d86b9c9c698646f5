"""Writes a DFlash 2 checkpoint of the published 27B geometry, filled with seeded random BF16, and the target folder it fits.

    python tools/make_checkpoint.py OUT            # 81 tensors, 3,848,817,896 bytes, in OUT/draft
    python tools/make_checkpoint.py OUT --small    # the same layout in 24 MB, to try a benchmark on

OUT/draft is what z-lab publishes (config.json, model.safetensors); OUT/target has a config.json and a byte-level BPE
tokenizer of the target's vocabulary, and no weights. The weights accept nothing: they are for measuring time and
memory. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import numpy as np

CHUNK = 1 << 22
"""Weights generated at a time."""

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pre-tokenizer of the Qwen3.5 family."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of a DFlash 2 draft and of its target, in config.json's words."""

    hidden: int = 5120
    layers: int = 5
    ff: int = 17408
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 248320
    rank: int = 256
    top_k: int = 16
    kernel: int = 2
    group: int = 16
    block: int = 8
    mask: int = 248070
    base_vocab: int = 248044
    """Ordinary tokens of the tokenizer; added tokens follow, then unused rows."""
    target_layers: int = 64
    target_layer_ids: tuple[int, ...] = (5, 19, 33, 47, 61)


SMALL = Geometry(
    hidden=512, layers=2, ff=1536, heads=8, kv_heads=2, head_dim=64, vocab=8192, mask=8070, base_vocab=8044
)  # fmt: skip


def shapes(g: Geometry) -> dict[str, tuple[int, ...]]:
    """Tensor names and PyTorch shapes of the checkpoint, in file order."""
    H, q, kv = g.hidden, g.heads * g.head_dim, g.kv_heads * g.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (H,), "post_attention_layernorm.weight": (H,),
        "self_attn.q_proj.weight": (q, H), "self_attn.k_proj.weight": (kv, H), "self_attn.v_proj.weight": (kv, H),
        "self_attn.o_proj.weight": (H, q), "self_attn.q_norm.weight": (g.head_dim,), "self_attn.k_norm.weight": (g.head_dim,),
        "mlp.gate_proj.weight": (g.ff, H), "mlp.up_proj.weight": (g.ff, H), "mlp.down_proj.weight": (H, g.ff),
    }  # fmt: skip
    for conv in ("attention_conv", "mlp_conv"):
        layer[f"{conv}.base_kernel"] = (2, g.kernel, H)
        layer[f"{conv}.kernel_projection.weight"] = (2 * g.kernel * H // g.group, H)
    top: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, len(g.target_layer_ids) * H), "hidden_norm.weight": (H,), "norm.weight": (H,),
        "candidate_selector.predecessor_codebook": (g.vocab, g.rank),
        "candidate_selector.successor_codebook": (g.vocab, g.rank),
        "candidate_selector.hidden_projection.weight": (g.rank, H),
    }  # fmt: skip
    layers = {f"layers.{i}.{name}": s for i in range(g.layers) for name, s in layer.items()}
    return dict(sorted((top | layers).items()))


def bf16(x: np.ndarray) -> np.ndarray:
    """`x` float32 as BF16 bits, rounded to nearest even; (n,) uint16."""
    bits = x.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def weights(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The tensor's values as BF16 in chunks: norms about 1, conv taps about (1, 0), matrices wide-tailed about 0.

    A matrix has a width of its own a row and one value in a thousand eight times as wide, as trained weights have.
    """
    count, cols = int(np.prod(shape)), shape[-1]
    if name.endswith("norm.weight"):
        yield bf16(1 + 0.1 * rng.standard_normal(count, dtype=np.float32))
        return
    if name.endswith("base_kernel"):
        taps = np.zeros(shape, np.float32)
        taps[:, 0] = 1
        yield bf16((taps + 0.05 * rng.standard_normal(shape, dtype=np.float32)).ravel())
        return
    rows = max(1, CHUNK // cols)
    for start in range(0, shape[0], rows):
        n = min(rows, shape[0] - start)
        x = rng.standard_normal((n, cols), dtype=np.float32)
        x *= 0.02 * np.exp(0.25 * rng.standard_normal((n, 1), dtype=np.float32))
        flat = x.reshape(-1)
        flat[rng.integers(0, flat.size, flat.size // 1000)] *= 8
        yield bf16(flat)


def write_safetensors(path: Path, g: Geometry, seed: int) -> int:
    """The checkpoint at `path`; its size in bytes."""
    table, offset = {}, 0
    for name, shape in shapes(g).items():
        end = offset + 2 * int(np.prod(shape))
        table[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 32)  # gives the published file's size to the byte
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for number, (name, shape) in enumerate(shapes(g).items()):
            for chunk in weights(name, shape, np.random.default_rng([seed, number])):
                file.write(chunk.data)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def draft_config(g: Geometry) -> dict[str, object]:
    """The draft's config.json, key for key what the published one has (nested generation)."""
    return {
        "architectures": ["DFlash2DraftModel"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
        "dflash_config": {
            "block_size": g.block, "conv_group_size": g.group, "conv_kernel_size": g.kernel, "mask_token_id": g.mask,
            "selector_rank": g.rank, "selector_top_k": g.top_k, "target_layer_ids": list(g.target_layer_ids),
        },
        "dtype": "bfloat16", "eos_token_id": g.base_vocab, "head_dim": g.head_dim, "hidden_act": "silu",
        "hidden_size": g.hidden, "initializer_range": 0.02, "intermediate_size": g.ff, "is_causal": False,
        "layer_types": ["sliding_attention"] * g.layers, "max_position_embeddings": 262144,
        "max_window_layers": g.layers, "model_type": "qwen3", "num_attention_heads": g.heads,
        "num_hidden_layers": g.layers, "num_key_value_heads": g.kv_heads, "num_target_layers": g.target_layers,
        "pad_token_id": g.base_vocab, "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"}, "sliding_window": 2048,
        "tie_word_embeddings": False, "transformers_version": "5.15.0", "use_cache": True, "use_sliding_window": True,
        "vocab_size": g.vocab,
    }  # fmt: skip


def target_config(g: Geometry) -> dict[str, object]:
    """A config.json of the target's sizes, as a dense Qwen3."""
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": g.hidden, "intermediate_size": g.ff,
        "num_hidden_layers": g.target_layers, "num_attention_heads": g.heads, "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_dim, "vocab_size": g.vocab, "max_position_embeddings": 262144, "rms_norm_eps": 1e-06,
        "rope_theta": 10000000, "eos_token_id": g.base_vocab, "hidden_act": "silu", "tie_word_embeddings": False,
    }  # fmt: skip


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in a byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(b if b in shown else next(hidden)) for b in range(256)]


def merge_pairs() -> Iterator[tuple[str, str]]:
    """Merges without end in sight: letter pairs, then pairs of pairs."""
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    pairs = ["".join(p) for p in product(letters, repeat=2)]
    yield from product(letters, repeat=2)  # type: ignore[misc]
    yield from product(pairs, repeat=2)  # type: ignore[misc]


def tokenizer(g: Geometry) -> dict[str, object]:
    """A tokenizer.json with `base_vocab` tokens and 33 added ones, one of them the mask token."""
    merges = list(islice(merge_pairs(), g.base_vocab - 256))
    tokens = byte_alphabet() + [a + b for a, b in merges]
    added = [
        {"id": g.base_vocab + i, "content": f"<|special_{i}|>", "special": True, "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False} for i in range(33)
    ]  # fmt: skip
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    split = {
        "type": "Split",
        "pattern": {"Regex": QWEN_PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [list(m) for m in merges],
        },
    }  # fmt: skip


def make(out: Path, g: Geometry, seed: int) -> int:
    """Both folders under `out`; the bytes of the checkpoint."""
    for name in ("draft", "target"):
        (out / name).mkdir(parents=True, exist_ok=True)
    files = {
        "draft/config.json": draft_config(g),
        "target/config.json": target_config(g),
        "target/tokenizer.json": tokenizer(g),
        "target/tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|special_0|>",
            "pad_token": "<|special_0|>", "add_bos_token": False, "model_max_length": 262144,
        },
    }  # fmt: skip
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    return write_safetensors(out / "draft/model.safetensors", g, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--small", action="store_true", help="the same layout, about 24 MB")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    geometry = SMALL if args.small else Geometry()
    size = make(args.out, geometry, args.seed)
    print(f"{args.out}/draft: {len(shapes(geometry))} tensors, {size:,} bytes")


if __name__ == "__main__":
    main()
