"""Target and draft in F32 PyTorch, straight from the safetensors: the models of the reference.

Written from spec-runtime 1, 2, 5 and 11.1 alone: it shares no line with the engine, the converter or the training,
so that a fault in one of them shows. Explicit masks, one operation a line, plain caches. Qwen3 targets, DFlash v1 and
DFlash 2 drafts. How they draft for each other is in oracle.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..convert.errors import InputError

Weights = dict[str, Tensor]


def read_folder(folder: Path) -> tuple[dict[str, Any], Weights]:
    """config.json and all tensors of a Hugging Face folder, as F32."""
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise InputError(
            "not a checkpoint folder", where=folder, expected="config.json and *.safetensors"
        )
    weights = {name: t.float() for file in files for name, t in load_file(file).items()}
    return json.loads((folder / "config.json").read_text()), weights


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """`x` (heads, n, head_dim) rotated by its `positions` (n), NEOX pairs (i, i + half)."""
    half = x.shape[-1] // 2
    inverse = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None] * inverse
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Softmax attention: q (nh, n, hd), k and v (nkv, t, hd), visible (n, t) bool; gives (n, nh * hd)."""
    groups = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    scores = (q @ k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return (weights @ v).transpose(0, 1).flatten(1)


def first_argmax(x: Tensor) -> int:
    """Index of the largest value, the lowest index among equals."""
    return int((x == x.max()).nonzero()[0])


def heads(x: Tensor, head_dim: int) -> Tensor:
    """(n, heads * head_dim) as (heads, n, head_dim)."""
    return x.unflatten(-1, (-1, head_dim)).transpose(0, 1)


# --- target ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Text:
    """What the target makes of a prompt: greedy continuation, states of every layer, margins."""

    prompt: list[int]
    new: list[int]
    states: Tensor
    """(layers, positions, H): residual stream after each layer, for all tokens but the last."""
    margins: list[float]
    """Top-1 minus top-2 logit of each new token."""
    stop: str
    budget: int
    """New tokens at most: what was asked for, or what the context has room for."""

    def features(self, layer_ids: Sequence[int]) -> Tensor:
        """(positions, len(layer_ids) * H): the states after `layer_ids`, side by side in that order."""
        return torch.cat([self.states[i] for i in layer_ids], -1)


class Target:
    """A dense Qwen3 model (spec-runtime 11.1)."""

    def __init__(self, folder: Path) -> None:
        config, self.weights = read_folder(folder)
        if config.get("model_type") != "qwen3":
            raise InputError(
                "the oracle knows no such target", found=config.get("model_type"), expected="qwen3"
            )
        self.layers = int(config["num_hidden_layers"])
        self.head_dim = int(config["head_dim"])
        self.eps = float(config["rms_norm_eps"])
        self.theta = float((config.get("rope_parameters") or config)["rope_theta"])
        self.context_length = int(config["max_position_embeddings"])
        eos = config.get("eos_token_id")
        self.eos = tuple(eos if isinstance(eos, list) else [] if eos is None else [eos])
        self.embed = self.weights["model.embed_tokens.weight"]
        self.head = self.weights.get("lm_head.weight", self.embed)
        self.blocks = [self.block(f"model.layers.{i}.") for i in range(self.layers)]

    def block(self, prefix: str) -> Weights:
        """The weights of one layer, its prefix taken off."""
        return {
            name.removeprefix(prefix): weight
            for name, weight in self.weights.items()
            if name.startswith(prefix)
        }

    def layer(
        self, i: int, h: Tensor, positions: Tensor, cache: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Layer `i` on rows `h` (n, H) at `positions`; appends their K and V to `cache`."""
        w = self.blocks[i]
        x = rms(h, w["input_layernorm.weight"], self.eps)
        q, k, v = (heads(x @ w[f"self_attn.{n}_proj.weight"].T, self.head_dim) for n in "qkv")
        q = rope(rms(q, w["self_attn.q_norm.weight"], self.eps), positions, self.theta)
        k = rope(rms(k, w["self_attn.k_norm.weight"], self.eps), positions, self.theta)
        if len(cache) > i:
            k, v = torch.cat([cache[i][0], k], 1), torch.cat([cache[i][1], v], 1)
            cache[i] = (k, v)
        else:
            cache.append((k, v))
        visible = torch.arange(k.shape[1])[None, :] <= positions[:, None]
        h = h + attend(q, k, v, visible) @ w["self_attn.o_proj.weight"].T
        y = rms(h, w["post_attention_layernorm.weight"], self.eps)
        gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
        return h + (torch.nn.functional.silu(gate) * up) @ w["mlp.down_proj.weight"].T

    def forward(
        self, tokens: Sequence[int], cache: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """States after each layer (layers, n, H) and logits (n, V) of `tokens` behind those in `cache`."""
        start = cache[0][0].shape[1] if cache else 0
        positions = torch.arange(start, start + len(tokens))
        h = self.embed[list(tokens)]
        states = []
        for i in range(self.layers):
            h = self.layer(i, h, positions, cache)
            states.append(h)
        return torch.stack(states), rms(
            h, self.weights["model.norm.weight"], self.eps
        ) @ self.head.T

    def read(self, prompt: Sequence[int], new: Sequence[int], budget: int, stop: str) -> Text:
        """The text that `decode` gave before, its states and margins computed in one pass."""
        states, logits = self.forward([*prompt, *new[:-1]], [])
        top = logits[len(prompt) - 1 :].topk(2).values
        return Text(list(prompt), list(new), states, (top[:, 0] - top[:, 1]).tolist(), stop, budget)

    def decode(self, prompt: Sequence[int], max_new: int) -> Text:
        """The greedy continuation of `prompt`: at most `max_new` tokens, up to and including an end-of-text token."""
        budget = min(max_new, self.context_length - len(prompt))
        cache: list[tuple[Tensor, Tensor]] = []
        states, logits = self.forward(prompt, cache)
        text = Text(
            list(prompt), [], states, [], "length" if budget == max_new else "context", budget
        )
        parts = [states]
        while True:
            top = logits[-1].topk(2).values
            text.new.append(first_argmax(logits[-1]))
            text.margins.append(float(top[0] - top[1]))
            if text.new[-1] in self.eos:
                text.stop = "eos"
            if text.stop == "eos" or len(text.new) == budget:
                text.states = torch.cat(parts, 1)
                return text
            states, logits = self.forward(text.new[-1:], cache)
            parts.append(states)


# --- draft -------------------------------------------------------------------------------------------------------


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
