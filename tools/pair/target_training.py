"""Trains the target on the generated corpus: next-token loss on packed sequences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from . import corpus
from .learn import Optimiser, fit, round_weights, start_values
from .target import Geometry, Target
from .tokenizer import EOS_ID

SEQUENCE, BATCH = 512, 8


def packed(tokenizer: Tokenizer, seed: int) -> Iterator[list[int]]:
    """Rows of SEQUENCE + 1 tokens; each begins with a document and is filled up with further ones."""
    row: list[int] = []
    for _, text in corpus.mixed(seed):
        row += [*tokenizer.encode(text).ids, EOS_ID]
        if len(row) > SEQUENCE:
            yield row[: SEQUENCE + 1]
            row = []


def train_target(tokenizer: Tokenizer, seed: int, runs: tuple[int, ...], out: Path) -> Target:
    """A target trained in `runs` of so many steps, BATCH sequences a step, rounded to BF16 at the end.

    Every run has its own texts and starts the schedule anew (a warm restart).
    """
    target = Target(Geometry())
    start_values(target, seed, spread=0.05)
    for run, steps in enumerate(runs):
        train_run(target, packed(tokenizer, seed + 100 * run), steps, out)
    round_weights(target)
    return target


def train_run(target: Target, rows: Iterator[list[int]], steps: int, out: Path) -> None:
    """One run: from the full rate to almost nothing."""

    def loss_at(step: int) -> Tensor:
        ids = torch.tensor([next(rows) for _ in range(BATCH)])
        with torch.autocast("cpu", torch.bfloat16):
            logits, _ = target(ids[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    fit("target", target, Optimiser(target, 4e-3, 4e-3), loss_at, steps, out)
