"""The target in F32 PyTorch, straight from the safetensors, and the operations that both models of the reference share.

Written from spec-runtime 5 and 11.1 alone: it shares no line with the engine, the converter or the training, so that
a fault in one of them shows. Explicit masks, one operation a line, plain caches. Dense Qwen3.
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
