"""The draft in F32 PyTorch, straight from the safetensors: DFlash v1 and DFlash 2, as the reference runs them.

Written from spec-runtime 1 and 2 alone: it shares no line with the engine, the converter or the training. How it
drafts along a text of the target is in oracle.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .oracle_target import Target, Weights, attend, first_argmax, heads, read_folder, rms, rope


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The fields of a draft's config.json that change results (models.md 2 and 3)."""

    layers: int
    head_dim: int
    eps: float
    theta: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    window: int
    sliding: tuple[bool, ...]
    causal: tuple[bool, ...]
    top_k: int = 0
    """Candidates of the selector, 0 without one."""
    group_size: int = 0
    """Channels of a convolution group, 0 without convolutions."""
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0

    @classmethod
    def read(cls, config: dict[str, Any]) -> DraftConfig:
        """From a z-lab config, flat or nested; `dflash_config` wins."""
        c = config | config.get("dflash_config", {})
        sliding = tuple(t == "sliding_attention" for t in c["layer_types"])
        declared = c.get("is_causal")
        return cls(
            layers=int(c["num_hidden_layers"]),
            head_dim=int(c["head_dim"]),
            eps=float(c["rms_norm_eps"]),
            theta=float((c.get("rope_parameters") or c)["rope_theta"]),
            block_size=int(c["block_size"]),
            mask_token_id=int(c["mask_token_id"]),
            target_layer_ids=tuple(c["target_layer_ids"]),
            window=int(c["sliding_window"]) if any(sliding) else 0,
            sliding=sliding,
            causal=sliding if declared is None else (bool(declared),) * len(sliding),
            top_k=int(c.get("selector_top_k", 0)),
            group_size=int(c.get("conv_group_size", 0)),
            embedding_scale=float(c.get("input_embedding_scale", 1.0)),
            logit_scale=float(c.get("output_multiplier", 1.0)),
            softcap=float(c.get("final_logit_softcapping") or 0.0),
        )


@dataclass(slots=True)
class Proposal:
    """One drafted block."""

    tokens: list[int]
    """Drafts for the positions after the anchor, block_size - 1 of them."""
    hidden: Tensor
    """(block_size, H) after the final norm."""
    logits: Tensor
    """(block_size, V)."""
    scores: list[Tensor]
    """(V) a draft: what was maximised; over all tokens, candidates or not."""
    candidates: list[Tensor]
    """Ids a draft that could be chosen, best logit first."""


class Draft:
    """A DFlash draft with the context of one sequence (spec-runtime 1 and 2). Small methods: tests seed faults there."""

    def __init__(self, config: DraftConfig, weights: Weights, target: Target) -> None:
        self.config, self.weights, self.target = config, weights, target
        self.reset()

    @classmethod
    def read(cls, folder: Path, target: Target) -> Draft:
        """The draft in `folder`, borrowing `target`'s embeddings and head."""
        config, weights = read_folder(folder)
        return cls(DraftConfig.read(config), weights, target)

    def reset(self) -> None:
        """Forget the context."""
        shape = (0, 0, self.config.head_dim)
        self.context = [(torch.empty(shape), torch.empty(shape)) for _ in range(self.config.layers)]
        self.committed = 0

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMS norm by the weight called `name`."""
        return rms(x, self.weights[f"{name}.weight"], self.config.eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """The projection called `name`."""
        return x @ self.weights[f"{name}.weight"].T

    def fuse(self, features: Tensor) -> Tensor:
        """What layers see as context: g (n, H) of features (n, nT * H): 1.2."""
        return self.norm(self.linear(features, "fc"), "hidden_norm")

    def context_input(self, layer: int, g: Tensor) -> Tensor:
        """What the context's K and V are projected from: g itself, without the layer's norm."""
        return g

    def extend(self, features: Tensor) -> None:
        """Append committed positions with their features (n, nT * H) to every layer's context."""
        g = self.fuse(features)
        positions = torch.arange(self.committed, self.committed + len(g))
        for i, (keys, values) in enumerate(self.context):
            k, v = self.keys_values(i, self.context_input(i, g), positions)
            self.context[i] = (
                (k, v)
                if not self.committed
                else (torch.cat([keys, k], 1), torch.cat([values, v], 1))
            )
        self.committed += len(g)

    def keys_values(self, layer: int, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """K (normed, rotated) and V of rows `x`, each (nkv, n, hd)."""
        name = f"layers.{layer}.self_attn"
        k = self.norm(
            heads(self.linear(x, f"{name}.k_proj"), self.config.head_dim), f"{name}.k_norm"
        )
        return rope(k, positions, self.config.theta), heads(
            self.linear(x, f"{name}.v_proj"), self.config.head_dim
        )

    def visible(self, layer: int) -> Tensor:
        """(q, c + q) bool: which positions each row of the block at c, c+1, ... may see (1.4)."""
        c, q = self.committed, self.config.block_size
        row, column = torch.arange(c, c + q)[:, None], torch.arange(c + q)[None, :]
        seen = torch.ones(q, c + q, dtype=torch.bool)
        if self.config.sliding[layer]:
            seen &= (row - column).abs() < self.config.window
        if self.config.causal[layer]:
            seen &= column <= row
        return seen

    def attention(self, layer: int, x: Tensor) -> Tensor:
        """Attention of the block's rows `x` (q, H) over context and block, before the residual."""
        name = f"layers.{layer}.self_attn"
        positions = torch.arange(self.committed, self.committed + len(x))
        q = self.norm(
            heads(self.linear(x, f"{name}.q_proj"), self.config.head_dim), f"{name}.q_norm"
        )
        k, v = self.keys_values(layer, x, positions)
        keys, values = self.context[layer]
        if self.committed:
            k, v = torch.cat([keys, k], 1), torch.cat([values, v], 1)
        out = attend(rope(q, positions, self.config.theta), k, v, self.visible(layer))
        return self.linear(out, f"{name}.o_proj")

    def shifted(self, u: Tensor, tap: int) -> Tensor:
        """Row t of the result is row t - tap of `u`, zero before the block."""
        return torch.cat([torch.zeros_like(u[:tap]), u[: len(u) - tap]])

    def spread(self, coefficients: Tensor) -> Tensor:
        """(q, G) coefficients as (q, H): one for each run of group_size channels."""
        return coefficients.repeat_interleave(self.config.group_size, 1)

    def convolve(self, name: str, side: int, u: Tensor, x: Tensor) -> Tensor:
        """Side 0 or 1 of the grouped dynamic convolution of rows `u`, coefficients from `x` (2.1)."""
        if not self.config.group_size:
            return u
        base = self.weights[f"{name}.base_kernel"]  # (2, K, H)
        dynamic = self.linear(x, f"{name}.kernel_projection").unflatten(1, (2, base.shape[1], -1))
        return torch.stack(
            [self.tap(base[side, t], dynamic[:, side, t], u, t) for t in range(base.shape[1])]
        ).sum(0)

    def tap(self, base: Tensor, dynamic: Tensor, u: Tensor, tap: int) -> Tensor:
        """One tap's share: coefficients of the output row on the row `tap` before it."""
        return (base + self.spread(dynamic)) * self.shifted(u, tap)

    def layer(self, i: int, h: Tensor) -> Tensor:
        """Draft layer `i` on the block's rows (1.3)."""
        x = self.norm(h, f"layers.{i}.input_layernorm")
        conv = f"layers.{i}.attention_conv"
        h = h + self.convolve(conv, 1, self.attention(i, self.convolve(conv, 0, x, x)), x)
        y = self.norm(h, f"layers.{i}.post_attention_layernorm")
        conv, mlp = f"layers.{i}.mlp_conv", f"layers.{i}.mlp"
        u = self.convolve(conv, 0, y, y)
        m = torch.nn.functional.silu(self.linear(u, f"{mlp}.gate_proj")) * self.linear(
            u, f"{mlp}.up_proj"
        )
        return h + self.convolve(conv, 1, self.linear(m, f"{mlp}.down_proj"), y)

    def logits(self, z: Tensor) -> Tensor:
        """Logits of final-normed rows: the target's head, multiplier, soft cap."""
        logits = (z @ self.target.head.T) * self.config.logit_scale
        return (
            self.config.softcap * torch.tanh(logits / self.config.softcap)
            if self.config.softcap
            else logits
        )

    def rows(self) -> range:
        """The block's rows that are read, in the order of the drafts."""
        return range(1, self.config.block_size)

    def propose(self, anchor: int) -> Proposal:
        """Draft the block behind `anchor`, which stands at position `committed`."""
        h = self.target.embed[[anchor] + [self.config.mask_token_id] * (self.config.block_size - 1)]
        h = h * self.config.embedding_scale
        for i in range(self.config.layers):
            h = self.layer(i, h)
        z = self.norm(h, "norm")
        proposal = Proposal([], z, self.logits(z), [], [])
        for row in self.rows():
            self.choose(proposal, row, proposal.tokens[-1] if proposal.tokens else anchor)
        return proposal

    def order(self, logits: Tensor) -> Tensor:
        """Token ids by logit descending, id ascending among equals."""
        return torch.sort(logits, descending=True, stable=True).indices

    def gate(self, z: Tensor) -> Tensor:
        """The selector's gate (R) of one row's hidden."""
        return self.linear(z, "candidate_selector.hidden_projection")

    def choose(self, proposal: Proposal, row: int, predecessor: int) -> None:
        """Append the token of `row` to the proposal: its best logit, or the selector's choice (2.2, 2.3)."""
        logits = proposal.logits[row]
        candidates, scores = self.order(logits), logits
        if self.config.top_k:
            w = {
                n: self.weights[f"candidate_selector.{n}_codebook"]
                for n in ("predecessor", "successor")
            }
            candidates = candidates[: self.config.top_k]
            scores = logits + w["successor"] @ (
                w["predecessor"][predecessor] * self.gate(proposal.hidden[row])
            )
        proposal.tokens.append(int(candidates[first_argmax(scores[candidates])]))
        proposal.scores.append(scores)
        proposal.candidates.append(candidates)
