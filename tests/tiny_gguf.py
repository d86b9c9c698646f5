"""Tiny random target and draft GGUFs for the engine's tests: real files, written with the `gguf` package.

Deterministic. The weights are given back as float32 arrays under their GGUF names, in PyTorch order (rows first), as
the file's types hold them, so that a reference can compute with the same values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from dflash_gguf.quantize import quantize_rows
from gguf import GGMLQuantizationType as Type

Arrays = dict[str, np.ndarray]
Change = Callable[[Arrays], None]
TARGET_SEED, DRAFT_SEED = 1, 2


@dataclass(frozen=True)
class Sizes:
    """Geometry shared by target and draft."""

    hidden: int = 64
    ff: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 100
    layers: int = 4
    context: int = 256
    theta: float = 10000.0
    eps: float = 1e-6


@dataclass(frozen=True)
class DraftShape:
    """What a draft adds; v2 where it has a convolution."""

    sizes: Sizes = Sizes(layers=2)
    block: int = 4
    ids: tuple[int, ...] = (0, 2)
    window: int = 6
    sliding: tuple[bool, ...] = (True, False)
    causal: tuple[bool, ...] = (True, False)
    v2: bool = False
    kernel: int = 2
    group: int = 16
    rank: int = 8
    top_k: int = 4
    extra: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def mask(self) -> int:
        """The mask token: the last of the vocabulary."""
        return self.sizes.vocab - 1


V1 = DraftShape()
V2 = DraftShape(v2=True, sliding=(True, True), causal=(False, False))


def layer_shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    """One transformer layer without its prefix."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    return {
        "attn_norm.weight": (s.hidden,), "ffn_norm.weight": (s.hidden,), "attn_q_norm.weight": (s.head_dim,),
        "attn_k_norm.weight": (s.head_dim,), "attn_q.weight": (q, s.hidden), "attn_k.weight": (kv, s.hidden),
        "attn_v.weight": (kv, s.hidden), "attn_output.weight": (s.hidden, q), "ffn_gate.weight": (s.ff, s.hidden),
        "ffn_up.weight": (s.ff, s.hidden), "ffn_down.weight": (s.hidden, s.ff),
    }  # fmt: skip


def target_shapes(s: Sizes, tied: bool) -> dict[str, tuple[int, ...]]:
    """All tensors of the target."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (s.vocab, s.hidden),
        "output_norm.weight": (s.hidden,),
    }
    if not tied:
        shapes["output.weight"] = (s.vocab, s.hidden)
    for i in range(s.layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer_shapes(s).items()}
    return shapes


def draft_shapes(d: DraftShape) -> dict[str, tuple[int, ...]]:
    """All tensors of the draft, under upstream's names."""
    s = d.sizes
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (s.hidden, len(d.ids) * s.hidden), "enc.output_norm.weight": (s.hidden,), "output_norm.weight": (s.hidden,),
    }  # fmt: skip
    for i in range(s.layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer_shapes(s).items()}
        for part in ("attn", "ffn") if d.v2 else ():
            shapes[f"blk.{i}.{part}_conv_base"] = (2, d.kernel, s.hidden)
            shapes[f"blk.{i}.{part}_conv_proj.weight"] = (
                2 * d.kernel * (s.hidden // d.group),
                s.hidden,
            )
    if d.v2:
        shapes |= {"selector_hidden.weight": (d.rank, s.hidden)}
        shapes |= {f"selector_{n}.weight": (s.vocab, d.rank) for n in ("predecessor", "successor")}
    return shapes


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Arrays:
    """Norms near 1, embeddings of size 1, the rest so that activations keep their size."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in shapes.items():
        x = rng.standard_normal(shape)
        if "norm" in name:
            x = 1 + 0.2 * x
        elif "token_embd" not in name and "conv_base" not in name:
            x = x * shape[-1] ** -0.5
        out[name] = x.astype(np.float32)
    return out


def stored(name: str, x: np.ndarray, wanted: Type) -> tuple[np.ndarray, Type]:
    """Bytes and type as the file gets them: `wanted` for matrices that have whole blocks, F32 for the rest."""
    block = gguf.GGML_QUANT_SIZES[wanted][0]
    if x.ndim != 2 or x.shape[-1] % block:
        return x, Type.F32
    if wanted in (Type.F32, Type.F16, Type.BF16):
        return gguf.quants.quantize(x, wanted), wanted
    return quantize_rows(x, wanted.name.lower()), wanted


def write_gguf(
    path: Path, arch: str, kv: Mapping[str, Any], weights: Arrays, wanted: Type = Type.F32
) -> Arrays:
    """Write the file; gives the weights back as the file holds them."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in kv.items():
        add_value(writer, f"{arch}.{key}", value)
    kept = {}
    for name, x in weights.items():
        data, kind = stored(name, x, wanted)
        writer.add_tensor(name, data, raw_dtype=kind)
        kept[name] = gguf.quants.dequantize(data, kind).reshape(x.shape).astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """One metadata value by its Python type."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def geometry(s: Sizes) -> dict[str, Any]:
    """The keys that both architectures have."""
    return {
        "block_count": s.layers, "embedding_length": s.hidden, "feed_forward_length": s.ff, "vocab_size": s.vocab,
        "context_length": s.context, "attention.head_count": s.heads, "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim, "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": s.eps, "rope.freq_base": s.theta,
    }  # fmt: skip


def write_target(
    path: Path, s: Sizes = Sizes(), *, seed: int = TARGET_SEED, tied: bool = False, wanted: Type = Type.F32,
    change: Change = lambda weights: None,
) -> Arrays:  # fmt: skip
    """A random Qwen3 target; `change` may edit the weights before they are written."""
    weights = random_weights(target_shapes(s, tied), seed)
    change(weights)
    return write_gguf(path, "qwen3", geometry(s), weights, wanted)


def write_draft(
    path: Path, d: DraftShape = V1, *, seed: int = DRAFT_SEED, wanted: Type = Type.F32, change: Change = lambda weights: None,
) -> Arrays:  # fmt: skip
    """A random draft; `change` may edit the weights before they are written."""
    weights = random_weights(draft_shapes(d), seed)
    change(weights)
    kv: dict[str, Any] = geometry(d.sizes) | {
        "block_size": d.block, "mask_token_id": d.mask, "target_layer_ids": d.ids,
        "target_layers": [i + 1 for i in d.ids], "attention.causal_pattern": d.causal,
    }  # fmt: skip
    if any(d.sliding):
        kv |= {"attention.sliding_window": d.window, "attention.sliding_window_pattern": d.sliding}
    if d.v2:
        kv |= {
            "conv_kernel_size": d.kernel,
            "conv_group_size": d.group,
            "selector_rank": d.rank,
            "selector_top_k": d.top_k,
        }
    return write_gguf(path, "dflash", kv | dict(d.extra), weights, wanted)


def weights_of(model: Sizes | DraftShape) -> Arrays:
    """The random weights of `once(folder, model)`."""
    if isinstance(model, Sizes):
        return random_weights(target_shapes(model, False), TARGET_SEED)
    return random_weights(draft_shapes(model), DRAFT_SEED)


def once(folder: Path, model: Sizes | DraftShape) -> Path:
    """The random model's file in `folder`, written at the first call: an open engine reads its file in place."""
    path = folder / f"{hashlib.sha256(repr(model).encode()).hexdigest()[:16]}.gguf"
    if not path.exists():
        write_target(path, model) if isinstance(model, Sizes) else write_draft(path, model)
    return path
