"""The pair's target: a small dense Qwen3 in PyTorch, with the parameter names of Hugging Face.

Knows the forward pass, the captured states and greedy generation; nothing of training or files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Geometry:
    """The sizes that a target and its drafts share."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 10
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: int = 1_000_000
    max_position_embeddings: int = 2048


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """The normed x, of the same shape and type."""
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


def rope_tables(positions: Tensor, g: Geometry) -> tuple[Tensor, Tensor]:
    """(cos, sin), each positions.shape + (1, head_dim / 2), float32, for one shared head axis."""
    exponent = torch.arange(0, g.head_dim, 2, dtype=torch.float32) / g.head_dim
    angle = positions[..., None].float() * (1.0 / g.rope_theta**exponent)
    return angle.cos().unsqueeze(-2), angle.sin().unsqueeze(-2)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """X (..., heads, head_dim) turned by its position; element i pairs with i + head_dim / 2."""
    cos, sin = (t.to(x.dtype) for t in tables)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    """The projections and head norms of one attention; who attends to what is the caller's affair."""

    def __init__(self, g: Geometry):
        super().__init__()
        self.g = g
        wide, narrow = g.num_attention_heads * g.head_dim, g.num_key_value_heads * g.head_dim
        self.q_proj = nn.Linear(g.hidden_size, wide, bias=False)
        self.k_proj = nn.Linear(g.hidden_size, narrow, bias=False)
        self.v_proj = nn.Linear(g.hidden_size, narrow, bias=False)
        self.o_proj = nn.Linear(wide, g.hidden_size, bias=False)
        self.q_norm = RMSNorm(g.head_dim, g.rms_norm_eps)
        self.k_norm = RMSNorm(g.head_dim, g.rms_norm_eps)

    def queries(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """(batch, heads, rows, head_dim) from x (batch, rows, hidden)."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.g.head_dim)))
        return rotate(q, tables).transpose(1, 2)

    def keys_values(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Two tensors (batch, kv heads, rows, head_dim) from x (batch, rows, hidden)."""
        k = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.g.head_dim)))
        v = self.v_proj(x).unflatten(-1, (-1, self.g.head_dim))
        return rotate(k, tables).transpose(1, 2), v.transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The attention's output (batch, rows, hidden); mask is True where a key may be seen."""
        share = self.g.num_attention_heads // self.g.num_key_value_heads
        if q.shape[2] == 1:  # one row: the query heads of a KV head are rows that see the same keys
            out = functional.scaled_dot_product_attention(
                q.unflatten(1, (-1, share)).squeeze(3), k, v
            )
            return self.o_proj(out.flatten(1)[:, None])
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, g: Geometry):
        super().__init__()
        self.gate_proj = nn.Linear(g.hidden_size, g.intermediate_size, bias=False)
        self.up_proj = nn.Linear(g.hidden_size, g.intermediate_size, bias=False)
        self.down_proj = nn.Linear(g.intermediate_size, g.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The MLP's output, of the shape of x."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Cache:
    """Keys and values of the first `length` positions; lowering `length` forgets the later ones."""

    def __init__(self, g: Geometry, batch: int, capacity: int):
        shape = (g.num_hidden_layers, 2, batch, g.num_key_value_heads, capacity, g.head_dim)
        self.rows, self.length = torch.zeros(shape), 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new keys and values of one layer; all of that layer's, old ones first."""
        end = self.length + k.shape[2]
        self.rows[layer, 0, :, :, self.length : end] = k
        self.rows[layer, 1, :, :, self.length : end] = v
        return self.rows[layer, 0, :, :, :end], self.rows[layer, 1, :, :, :end]


class TargetLayer(nn.Module):
    """One Qwen3 layer: attention and MLP, each normed before and added after."""

    def __init__(self, g: Geometry):
        super().__init__()
        self.input_layernorm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        self.self_attn = Attention(g)
        self.post_attention_layernorm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        self.mlp = MLP(g)

    def forward(self, h: Tensor, tables: tuple, index: int, cache: Cache | None) -> Tensor:
        """The residual stream after this layer, from h (batch, rows, hidden) before it."""
        x = self.input_layernorm(h)
        q = self.self_attn.queries(x, tables)
        k, v = self.self_attn.keys_values(x, tables)
        mask = None
        if cache is not None:
            k, v = cache.extend(index, k, v)
            rows, total = q.shape[2], k.shape[2]
            mask = torch.ones(rows, total, dtype=torch.bool).tril(total - rows)
        h = h + self.self_attn.attend(q, k, v, mask, causal=mask is None)
        return h + self.mlp(self.post_attention_layernorm(h))


class Target(nn.Module):
    """A Qwen3ForCausalLM; parameters are named as Hugging Face names them."""

    def __init__(self, g: Geometry):
        super().__init__()
        self.g = g
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(g.vocab_size, g.hidden_size)
        self.model.layers = nn.ModuleList(TargetLayer(g) for _ in range(g.num_hidden_layers))
        self.model.norm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        self.lm_head = nn.Linear(g.hidden_size, g.vocab_size, bias=False)

    def forward(
        self, ids: Tensor, cache: Cache | None = None, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """(logits, states) for ids (batch, rows), which follow what `cache` holds and join it.

        states is (batch, rows, len(taps), hidden): the residual stream after each tapped layer.
        """
        first = cache.length if cache else 0
        tables = rope_tables(torch.arange(first, first + ids.shape[1])[None], self.g)
        h = self.model.embed_tokens(ids)
        after = []
        for i, layer in enumerate(self.model.layers):
            h = layer(h, tables, i, cache)
            after.append(h)
        if cache:
            cache.length += ids.shape[1]
        states = torch.stack([after[i] for i in taps], dim=2) if taps else h[:, :, :0]
        return self.lm_head(self.model.norm(h)), states


@torch.no_grad()
def generate(target: Target, prompt: list[int], count: int) -> list[int]:
    """`count` greedy tokens behind `prompt`; does not stop at an end of text."""
    cache = Cache(target.g, 1, len(prompt) + count)
    rows, out = torch.tensor([prompt]), list[int]()
    while len(out) < count:
        out.append(int(target(rows, cache)[0][0, -1].argmax()))
        rows = torch.tensor([[out[-1]]])
    return out
