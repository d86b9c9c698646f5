"""A canonical draft GGUF with rows that K-quants divide: small, real, and of any number of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny
from dflash_gguf.convert.canonical import TargetFacts, canonical_fields
from dflash_gguf.convert.fields import Field
from dflash_gguf.convert.ggml import BF16, F32
from dflash_gguf.convert.gguf_writer import GgufLayout, GgufOutput
from dflash_gguf.convert.spec import Conv, Selector

HIDDEN, FF, HEADS, HEAD_DIM, RANK = 256, 512, 8, 32, 32


def spec_of(layers: int = 2, kv_heads: int = 2, ff: int = FF, rank: int = RANK) -> Any:
    """A DFlash 2 spec with hidden size 256."""
    return tiny.tiny_spec(
        variant="dflash2", hidden_size=HIDDEN, target_hidden_size=HIDDEN, intermediate_size=ff, num_hidden_layers=layers,
        num_attention_heads=HEADS, num_key_value_heads=kv_heads, head_dim=HEAD_DIM, rope_dimension_count=HEAD_DIM,
        conv=Conv(2, 16), selector=Selector(rank, 8), sliding_layers=(True,) * layers, causal_layers=(False,) * layers,
    )  # fmt: skip


def shapes_of(spec: Any) -> dict[str, tuple[int, ...]]:
    """Canonical names and GGUF shapes of every tensor."""
    H, ff, V = spec.hidden_size, spec.intermediate_size, spec.vocab_size
    q, kv, hd, R = (
        spec.num_attention_heads * spec.head_dim,
        spec.num_key_value_heads * spec.head_dim,
        spec.head_dim,
        spec.selector.rank,
    )
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (spec.feature_size, H), "enc.output_norm.weight": (H,), "output_norm.weight": (H,),
        "selector_predecessor.weight": (R, V), "selector_successor.weight": (R, V), "selector_hidden.weight": (H, R),
    }  # fmt: skip
    for i in range(spec.num_hidden_layers):
        block = {
            "attn_norm": (H,), "ffn_norm": (H,), "attn_q": (H, q), "attn_k": (H, kv), "attn_v": (H, kv), "attn_output": (q, H),
            "attn_q_norm": (hd,), "attn_k_norm": (hd,), "ffn_gate": (H, ff), "ffn_up": (H, ff), "ffn_down": (ff, H),
            "attn_conv_proj": (H, 4 * H // 16), "ffn_conv_proj": (H, 4 * H // 16),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in block.items()}
        shapes |= {f"blk.{i}.{kind}_conv_base": (H, 2, 2) for kind in ("attn", "ffn")}
    return shapes


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the converter stores the tensor in 16 bits."""
    return len(shape) == 2 and name.endswith(".weight")


def weights(spec: Any, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Values by name in PyTorch shape: F32, or BF16 bits for matrices."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes_of(spec).items():
        x = rng.standard_t(5, shape[::-1]).astype(np.float32) * 0.05
        tensors[name] = tiny.bf16(x) if is_matrix(name, shape) else x
    return tensors


def write_draft(
    path: Path,
    spec: Any = None,
    tensors: dict[str, np.ndarray[Any, Any]] | None = None,
    **extra: Field,
) -> Path:
    """The canonical GGUF of `tensors` at `path`; `extra` adds metadata."""
    spec = spec or spec_of()
    tensors = tensors or weights(spec)
    table = [
        (name, BF16 if a.dtype == np.uint16 else F32, a.shape[::-1]) for name, a in tensors.items()
    ]
    with GgufOutput(path, fields_of(spec) | extra, table) as writer:
        for name, array in tensors.items():
            writer.write(name, array.tobytes())
    return path


def write_sparse(path: Path, spec: Any) -> Path:
    """The canonical GGUF of a draft whose weights are all zero: a large file that takes no room."""
    table = [
        (name, BF16 if is_matrix(name, shape) else F32, shape)
        for name, shape in shapes_of(spec).items()
    ]
    layout = GgufLayout(fields_of(spec), table)
    with path.open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.size)
    return path


def fields_of(spec: Any) -> dict[str, Field]:
    """The metadata of a canonical draft with the tiny target's tokenizer."""
    tokenizer = {k: v for k, v in tiny.target_fields().items() if k.startswith("tokenizer.")}
    facts = TargetFacts("qwen3", tiny.TARGET_LAYERS, HIDDEN, tiny.VOCAB, "", "Tiny")
    return dict(canonical_fields(spec, facts, tokenizer, weights=1000, type_id=BF16))
