"""Target and drafts written down once more, in numpy: every mask an array, every sum left to numpy.

It follows spec-runtime 1, 2 and 11.1 and takes the context as a list of (position, feature), so that a test can hand
it any window, right or wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tiny_gguf import Arrays, DraftShape, Sizes


def rms(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rope(x: np.ndarray, positions: Sequence[int], theta: float) -> np.ndarray:
    """`x` (n, heads, hd)."""
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate(
        [x[..., :half] * cos - x[..., half:] * sin, x[..., :half] * sin + x[..., half:] * cos], -1
    )


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """q (n, nh, hd); k, v (t, nkv, hd); mask (n, t) true where visible."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.where(mask[None], np.einsum("nhd,thd->hnt", q, k) / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hnt,thd->nhd", weights / weights.sum(-1, keepdims=True), v)
    return out.reshape(len(q), -1)


class Layer:
    """One layer's weights as float64 and its two projections."""

    def __init__(self, weights: Arrays, index: int, s: Sizes) -> None:
        self.w = {
            n.removeprefix(f"blk.{index}."): x.astype(np.float64)
            for n, x in weights.items()
            if n.startswith(f"blk.{index}.")
        }
        self.s = s

    def __getitem__(self, name: str) -> np.ndarray:
        return self.w[f"{name}.weight"]

    def heads(self, x: np.ndarray, name: str) -> np.ndarray:
        return (x @ self[name].T).reshape(len(x), -1, self.s.head_dim)

    def queries(self, x: np.ndarray, positions: Sequence[int]) -> np.ndarray:
        return rope(
            rms(self.heads(x, "attn_q"), self["attn_q_norm"], self.s.eps), positions, self.s.theta
        )

    def keys(self, x: np.ndarray, positions: Sequence[int]) -> np.ndarray:
        return rope(
            rms(self.heads(x, "attn_k"), self["attn_k_norm"], self.s.eps), positions, self.s.theta
        )

    def mlp(self, y: np.ndarray) -> np.ndarray:
        return (silu(y @ self["ffn_gate"].T) * (y @ self["ffn_up"].T)) @ self["ffn_down"].T


def target_pass(weights: Arrays, s: Sizes, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, V) and the states after each layer (layers, n, H) of a whole text."""
    positions = range(len(tokens))
    h = weights["token_embd.weight"].astype(np.float64)[list(tokens)]
    mask = np.tril(np.ones((len(tokens), len(tokens)), bool))
    states = []
    for i in range(s.layers):
        layer = Layer(weights, i, s)
        x = rms(h, layer["attn_norm"], s.eps)
        o = attend(
            layer.queries(x, positions), layer.keys(x, positions), layer.heads(x, "attn_v"), mask
        )
        h = h + o @ layer["attn_output"].T
        h = h + layer.mlp(rms(h, layer["ffn_norm"], s.eps))
        states.append(h)
    head = weights.get("output.weight", weights["token_embd.weight"]).astype(np.float64)
    return rms(h, weights["output_norm.weight"], s.eps) @ head.T, np.stack(states)


def block_mask(
    d: DraftShape, layer: int, context: Sequence[int], start: int, anchored: bool = False
) -> np.ndarray:
    """(q, len(context) + q) of what each row sees (spec-runtime 1.4), a comparison an entry."""
    q, W = d.block, d.window
    mask = np.zeros((q, len(context) + q), bool)
    for i in range(q):
        for column, p in enumerate(context):
            mask[i, column] = not d.sliding[layer] or (
                p >= start - W if anchored else start + i - p < W
            )
        for j in range(q):
            near = not d.sliding[layer] or anchored or abs(i - j) < W
            mask[i, len(context) + j] = near and (j <= i or not d.causal[layer])
    return mask


def convolve(
    base: np.ndarray, dyn: np.ndarray, u: np.ndarray, side: int, d: DraftShape
) -> np.ndarray:
    """One side of the grouped dynamic convolution; base (2, K, H), dyn (q, 2*K*G)."""
    groups = d.sizes.hidden // d.group
    out = np.zeros_like(u)
    for t in range(len(u)):
        for tap in range(min(t, d.kernel - 1) + 1):
            at = (side * d.kernel + tap) * groups
            out[t] += (base[side, tap] + np.repeat(dyn[t, at : at + groups], d.group)) * u[t - tap]
    return out


def draft_block(
    weights: Arrays, d: DraftShape, table: np.ndarray, features: np.ndarray, context: Sequence[int], start: int,
    anchor: int, anchored: bool = False,
) -> np.ndarray:  # fmt: skip
    """Final-normed states (q, H) of the block at `start`, seeing `features` rows at positions `context`."""
    s = d.sizes
    g = rms(
        features.astype(np.float64) @ weights["fc.weight"].T,
        weights["enc.output_norm.weight"],
        s.eps,
    )
    block = range(start, start + d.block)
    h = table.astype(np.float64)[[anchor] + [d.mask] * (d.block - 1)] * d.extra.get(
        "embedding_scale", 1.0
    )
    for i in range(s.layers):
        layer = Layer(weights, i, s)

        def around(part: str, x: np.ndarray, inner, layer=layer):  # type: ignore[no-untyped-def]
            if not d.v2:
                return inner(x)
            base, dyn = layer.w[f"{part}_conv_base"], x @ layer[f"{part}_conv_proj"].T
            return convolve(base, dyn, inner(convolve(base, dyn, x, 0, d)), 1, d)

        def attention(x: np.ndarray, layer=layer, i=i) -> np.ndarray:  # type: ignore[no-untyped-def]
            k = np.concatenate([layer.keys(g, context), layer.keys(x, block)])
            v = np.concatenate([layer.heads(g, "attn_v"), layer.heads(x, "attn_v")])
            o = attend(layer.queries(x, block), k, v, block_mask(d, i, context, start, anchored))
            return o @ layer["attn_output"].T * d.extra.get("attention.value_scale", 1.0)

        h = h + around("attn", rms(h, layer["attn_norm"], s.eps), attention)
        h = h + around("ffn", rms(h, layer["ffn_norm"], s.eps), layer.mlp)
    return rms(h, weights["output_norm.weight"], s.eps)


def draft_logits(z: np.ndarray, head: np.ndarray, d: DraftShape) -> np.ndarray:
    """Logits (q, V) after multiplier and soft cap."""
    logits = z @ head.astype(np.float64).T * d.extra.get("logit_scale", 1.0)
    cap = d.extra.get("final_logit_softcapping", 0.0)
    return cap * np.tanh(logits / cap) if cap else logits


def draft_tokens(
    weights: Arrays, d: DraftShape, z: np.ndarray, logits: np.ndarray, anchor: int
) -> list[int]:
    """The block's proposal: each row's argmax, or the selector's walk."""
    if not d.v2:
        return [int(np.argmax(row)) for row in logits[1:]]
    tokens = [anchor]
    for i in range(1, d.block):
        candidates = np.argsort(-logits[i], kind="stable")[: d.top_k]
        gate = weights["selector_hidden.weight"] @ z[i]
        before = weights["selector_predecessor.weight"][tokens[-1]] * gate
        scores = logits[i][candidates] + weights["selector_successor.weight"][candidates] @ before
        tokens.append(int(candidates[np.argmax(scores)]))
    return tokens[1:]
