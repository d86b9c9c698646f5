"""Trains the drafts: texts that the target wrote itself, the states it had, many blocks a sequence.

The label of a row is the token at its own position. Loss weights fall along the block, because a late
row counts only when all earlier rows were right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from . import corpus
from .draft import SHAPES, TAPS, Draft, DraftShape
from .learn import Optimiser, fit, round_weights, start_values
from .target import Cache, Geometry, Target
from .tokenizer import EOS_ID

LENGTH, TOGETHER = 448, 96
BATCH, ANCHORS, DECAY = 8, 64, 4.0
OWN, AS_IT_STANDS = ("counting", "json"), ("prose",) * 23 + ("code",)
PROMPTS = (32, 64, 128, 224)


@dataclass(frozen=True)
class Texts:
    """Token ids (n, LENGTH) and BF16 states (n, LENGTH, len(TAPS), hidden) of the target's texts."""

    ids: Tensor
    states: Tensor


def openings(tokenizer: Tokenizer, stream: Iterator[tuple[str, str]], length: int) -> Tensor:
    """TOGETHER rows of `length` tokens; each begins with a document and is filled with further ones."""
    rows = []
    for _ in range(TOGETHER):
        row: list[int] = []
        while len(row) < length:
            row += [*tokenizer.encode(next(stream)[1]).ids, EOS_ID]
        rows.append(row[:length])
    return torch.tensor(rows)


@torch.no_grad()
def write_batch(target: Target, tokenizer: Tokenizer, seed: int, number: int) -> Texts:
    """TOGETHER texts: an even batch is written by the target itself, greedily, from corpus openings.

    An odd batch is corpus as it stands, nearly all of it prose: of prose a draft learns what may come,
    not what this target always says, and of code it sees little, which keeps both domains hard.
    """
    own = number % 2 == 0
    stream = corpus.mixed(seed + number, OWN if own else AS_IT_STANDS)
    length = PROMPTS[number // 2 % len(PROMPTS)] if own else LENGTH
    written = [openings(tokenizer, stream, length)]
    states = torch.empty(TOGETHER, LENGTH, len(TAPS), target.g.hidden_size, dtype=torch.bfloat16)
    cache = Cache(target.g, TOGETHER, LENGTH)
    while cache.length < LENGTH:
        first = cache.length
        logits, seen = target(written[-1], cache, TAPS)
        states[:, first : cache.length] = seen
        written.append(logits[:, -1:].argmax(-1))
    print(f"texts of batch {number} written", flush=True)
    return Texts(torch.cat(written[:-1], dim=1), states)


def write_texts(target: Target, tokenizer: Tokenizer, seed: int, batches: int) -> Texts:
    """The texts of batches 0..batches-1."""
    made = [write_batch(target, tokenizer, seed, number) for number in range(batches)]
    return Texts(torch.cat([t.ids for t in made]), torch.cat([t.states for t in made]))


def start(draft: Draft, seed: int) -> None:
    """Wide start values, convolutions that begin as identities, codebooks wide enough to move."""
    start_values(draft, seed, spread=0.06)
    with torch.no_grad():
        for name, value in draft.named_parameters():
            if name.endswith("base_kernel"):
                value.zero_()[:, 0] = 1.0
            elif name.endswith("kernel_projection.weight"):
                value *= 0.25
            elif name.endswith("codebook"):
                value *= 5.0


def block_losses(draft: Draft, target: Target, z: Tensor, labels: Tensor) -> Tensor:
    """Losses (batch, blocks, block_size - 1) of rows z against labels (batch, blocks, block_size)."""
    truth = labels[..., 1:]
    logits = target.lm_head(z[..., 1:, :]).float()
    loss = functional.cross_entropy(logits.flatten(0, 2), truth.flatten(), reduction="none")
    if draft.shape.variant == "dflash2":
        candidates = logits.detach().topk(draft.shape.selector_top_k).indices
        missing = (candidates != truth[..., None]).all(-1)
        candidates[..., -1] = torch.where(missing, truth, candidates[..., -1])
        pair = draft.candidate_selector(z[..., 1:, :], labels[..., :-1], candidates)
        score = logits.gather(-1, candidates) + pair.float()
        right = (candidates == truth[..., None]).int().argmax(-1)
        loss = loss + functional.cross_entropy(
            score.flatten(0, 2), right.flatten(), reduction="none"
        )
    return loss.view(truth.shape)


def train_draft(name: str, target: Target, texts: Texts, seed: int, steps: int, out: Path) -> Draft:
    """The draft SHAPES[name], trained against a frozen target for `steps` steps, rounded to BF16."""
    shape: DraftShape = SHAPES[name]
    draft, rng = Draft(Geometry(), shape), Random(f"{seed}/{name}")
    start(draft, seed + len(name))
    taps = [TAPS.index(i) for i in shape.target_layer_ids]
    weights = torch.exp(-torch.arange(shape.block_size - 1) / DECAY)
    order: list[int] = []

    def loss_at(step: int) -> Tensor:
        if len(order) < BATCH:
            order.extend(rng.sample(range(len(texts.ids)), len(texts.ids)))
        rows = torch.tensor([order.pop() for _ in range(BATCH)])
        free = range(16, LENGTH - shape.block_size)
        anchors = torch.tensor([sorted(rng.sample(free, ANCHORS)) for _ in range(BATCH)])
        reach = anchors[..., None] + torch.arange(shape.block_size)
        labels = texts.ids[rows][:, None].expand(-1, ANCHORS, -1).gather(-1, reach)
        with torch.autocast("cpu", torch.bfloat16):
            states = texts.states[rows][:, :, taps].flatten(2)
            z = draft(target, states, anchors, labels[..., 0])
            losses = block_losses(draft, target, z, labels)
        return (losses * weights).mean() / weights.mean()

    fit(name, draft, Optimiser(draft, 4e-3, 3e-3), loss_at, steps, out)
    round_weights(draft)
    return draft
