"""The pair's drafts in PyTorch: DFlash v1 and DFlash 2, with the parameter names that z-lab publishes.

One forward serves training (many blocks of one sequence at once) and drafting (one block): who sees whom
is said by positions and by masks built here. Embeddings and head are the target's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .target import MLP, Attention, Geometry, RMSNorm, Target, rope_tables


@dataclass(frozen=True)
class DraftShape:
    """What one draft is, beside the geometry that it shares with its target."""

    variant: str
    """`dflash1` or `dflash2`."""
    layer_types: tuple[str, ...]
    target_layer_ids: tuple[int, ...]
    """0-based target layers; the state is taken after the layer."""
    is_causal: bool | None
    """None: sliding layers are causal inside the block, full layers are not."""
    block_size: int = 8
    sliding_window: int = 64
    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 32
    selector_top_k: int = 8

    def causal(self, layer: int) -> bool:
        """Whether rows of a block see only themselves and earlier rows in `layer`."""
        if self.is_causal is not None:
            return self.is_causal
        return self.layer_types[layer] == "sliding_attention"


SLIDING, FULL = "sliding_attention", "full_attention"
SHAPES = {
    "draft-v1": DraftShape("dflash1", (SLIDING, SLIDING, FULL), (1, 4, 6, 8), None),
    "draft-v2": DraftShape("dflash2", (SLIDING, SLIDING), (2, 5, 8), False),
}
TAPS = tuple(sorted({i for shape in SHAPES.values() for i in shape.target_layer_ids}))


class Convolution(nn.Module):
    """The grouped dynamic causal convolution of DFlash 2, inside a block (spec-runtime 2.1)."""

    def __init__(self, g: Geometry, shape: DraftShape):
        super().__init__()
        self.taps, self.group = shape.conv_kernel_size, shape.conv_group_size
        self.groups = g.hidden_size // self.group
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, g.hidden_size))
        self.kernel_projection = nn.Linear(g.hidden_size, 2 * self.taps * self.groups, bias=False)

    def kernels(self, x: Tensor) -> Tensor:
        """(2, taps, *rows, hidden): for both sides, from the sub-layer's normed input x."""
        dynamic = self.kernel_projection(x).unflatten(-1, (2, self.taps, self.groups))
        dynamic = dynamic.movedim((-3, -2), (0, 1)).repeat_interleave(self.group, dim=-1)
        static = self.base_kernel.to(dynamic.dtype)
        return dynamic + static.view(2, self.taps, *[1] * (x.ndim - 1), -1)

    def forward(self, u: Tensor, kernel: Tensor) -> Tensor:
        """U (blocks, rows, hidden) convolved along the rows with one side's kernel."""
        out = kernel[0] * u
        for tap in range(1, self.taps):
            out = out + kernel[tap] * functional.pad(u, (0, 0, tap, 0))[:, : u.shape[1]]
        return out


class DraftLayer(nn.Module):
    """A draft layer: queries from the block, keys from context states and block."""

    def __init__(self, g: Geometry, shape: DraftShape):
        super().__init__()
        self.input_layernorm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        self.self_attn = Attention(g)
        self.post_attention_layernorm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        self.mlp = MLP(g)
        self.block_size = shape.block_size
        if shape.variant == "dflash2":
            self.attention_conv, self.mlp_conv = Convolution(g, shape), Convolution(g, shape)

    def around(self, name: str, x: Tensor, inner) -> Tensor:
        """inner(x), between the two sides of the convolution `name` where the draft has one."""
        conv = getattr(self, name, None)
        if conv is None:
            return inner(x)
        kernels = conv.kernels(self.blocks(x))
        x = conv(self.blocks(x), kernels[0]).view_as(x)
        y = inner(x)
        return conv(self.blocks(y), kernels[1]).view_as(y)

    def blocks(self, x: Tensor) -> Tensor:
        """(batch, blocks * block_size, hidden) as (batch * blocks, block_size, hidden)."""
        return x.reshape(-1, self.block_size, x.shape[-1])

    def forward(self, h: Tensor, context: Tensor, tables: tuple, mask: Tensor) -> Tensor:
        """H (batch, rows, hidden); tables: RoPE of (context, block); mask (batch, 1, rows, keys)."""

        def attend(x: Tensor) -> Tensor:
            q = self.self_attn.queries(x, tables[1])
            k_block, v_block = self.self_attn.keys_values(x, tables[1])
            k_past, v_past = self.self_attn.keys_values(context, tables[0])
            k, v = torch.cat([k_past, k_block], 2), torch.cat([v_past, v_block], 2)
            return self.self_attn.attend(q, k, v, mask, causal=False)

        h = h + self.around("attention_conv", self.input_layernorm(h), attend)
        return h + self.around("mlp_conv", self.post_attention_layernorm(h), self.mlp)


class Selector(nn.Module):
    """The candidate selector of DFlash 2: how well a token follows its predecessor, given the row."""

    def __init__(self, g: Geometry, shape: DraftShape):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(g.vocab_size, shape.selector_rank))
        self.successor_codebook = nn.Parameter(torch.zeros(g.vocab_size, shape.selector_rank))
        self.hidden_projection = nn.Linear(g.hidden_size, shape.selector_rank, bias=False)

    def forward(self, z: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """Pair scores (..., k) of candidates (..., k) after tokens `before` (...), rows z (..., H)."""
        gate = self.hidden_projection(z) * self.predecessor_codebook[before]
        return (self.successor_codebook[candidates] * gate.unsqueeze(-2)).sum(-1)


class Draft(nn.Module):
    """A DFlash draft; `shape.variant` says which of the two."""

    def __init__(self, g: Geometry, shape: DraftShape):
        super().__init__()
        self.g, self.shape = g, shape
        self.fc = nn.Linear(len(shape.target_layer_ids) * g.hidden_size, g.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(g, shape) for _ in shape.layer_types)
        self.norm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        if shape.variant == "dflash2":
            self.candidate_selector = Selector(g, shape)

    def masks(self, anchors: Tensor, context: int, layer: int) -> Tensor:
        """(batch, 1, rows, keys) bool for blocks at `anchors` (batch, blocks) over a context."""
        size, blocks = self.shape.block_size, anchors.shape[1]
        row = torch.arange(size).repeat(blocks)
        anchor = anchors.repeat_interleave(size, dim=1)[:, :, None]
        past = torch.arange(context)
        sees_past = past < anchor
        if self.shape.layer_types[layer] == SLIDING:
            sees_past = sees_past & (anchor + row[:, None] - past < self.shape.sliding_window)
        block = torch.arange(blocks).repeat_interleave(size)
        sees_block = block[:, None] == block
        if self.shape.causal(layer):
            sees_block = sees_block & (row <= row[:, None])
        return torch.cat([sees_past, sees_block.expand(len(anchors), -1, -1)], -1)[:, None]

    def forward(self, target: Target, states: Tensor, anchors: Tensor, tokens: Tensor) -> Tensor:
        """The final-normed rows z (batch, blocks, block_size, hidden).

        states (batch, context, taps * hidden) of positions 0..context-1; anchors (batch, blocks) are
        the positions of the blocks' first tokens, tokens (batch, blocks) those tokens.
        """
        size = self.shape.block_size
        ids = torch.full((*tokens.shape, size), self.g.vocab_size - 1)
        ids[..., 0] = tokens
        positions = (anchors[..., None] + torch.arange(size)).flatten(1)
        tables = (
            rope_tables(torch.arange(states.shape[1])[None], self.g),
            rope_tables(positions, self.g),
        )
        context = self.hidden_norm(self.fc(states))
        h = target.model.embed_tokens(ids).flatten(1, 2)
        kinds = self.shape.layer_types
        masks = {k: self.masks(anchors, states.shape[1], kinds.index(k)) for k in set(kinds)}
        for layer, kind in zip(self.layers, kinds, strict=True):
            h = layer(h, context, tables, masks[kind])
        return self.norm(h).unflatten(1, (-1, size))

    @torch.no_grad()
    def propose(self, target: Target, states: Tensor, anchor: int) -> list[int]:
        """The block_size - 1 greedy draft tokens behind `anchor`; states (1, c, taps * hidden)."""
        where, token = torch.tensor([[states.shape[1]]]), torch.tensor([[anchor]])
        z = self(target, states, where, token)[0, 0, 1:]
        logits = target.lm_head(z)
        if self.shape.variant == "dflash1":
            return logits.argmax(-1).tolist()
        chosen, before = [], torch.tensor(anchor)
        unary, candidates = logits.sort(dim=-1, descending=True, stable=True)
        for row in range(len(z)):
            some = candidates[row, : self.shape.selector_top_k]
            score = unary[row, : len(some)] + self.candidate_selector(z[row], before, some)
            before = some[score.argmax()]
            chosen.append(int(before))
        return chosen
