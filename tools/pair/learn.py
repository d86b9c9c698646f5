"""What training the target and training a draft share: start values, optimisers, schedule, log.

Large matrices are turned by Muon, everything else (embeddings, heads, norms, small tables) by AdamW.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

WARMUP_STEPS, DECAY_SHARE = 20, 0.35


def start_values(model: nn.Module, seed: int, spread: float) -> None:
    """Normal values of deviation `spread`; projections into the residual stream start narrower."""
    random = torch.Generator().manual_seed(seed)
    depth = 2 * sum(1 for name, _ in model.named_parameters() if name.endswith("o_proj.weight"))
    for name, value in model.named_parameters():
        if value.ndim > 1:
            narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
            deviation = spread / math.sqrt(depth) if narrow else spread
            nn.init.normal_(value, 0.0, deviation, generator=random)


@torch.no_grad()
def round_weights(model: nn.Module) -> None:
    """Round every weight to BF16 and hold it in F32: what the file will say."""
    for value in model.parameters():
        value.copy_(value.bfloat16().float())


def pace(step: int, steps: int) -> float:
    """The share of the full learning rate at `step`: a short rise, a plateau, a fall to 2 percent."""
    falling = (steps - step) / (steps * DECAY_SHARE)
    return min(1.0, (step + 1) / WARMUP_STEPS, max(0.02, falling))


class Optimiser:
    """Muon and AdamW together, under one schedule."""

    def __init__(self, model: nn.Module, matrix_rate: float, other_rate: float):
        matrices, others = [], []
        for name, value in model.named_parameters():
            large = name.endswith("_proj.weight") or name == "fc.weight"
            (matrices if large else others).append(value)
        self.parts = [
            torch.optim.Muon(
                matrices, lr=matrix_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.rates = [matrix_rate, other_rate]

    def step(self, share: float) -> None:
        """Apply the gathered gradients at `share` of the full rate, then clear them."""
        for part, rate in zip(self.parts, self.rates, strict=True):
            part.param_groups[0]["lr"] = rate * share
            part.step()
            part.zero_grad(set_to_none=True)


def fit(
    name: str,
    model: nn.Module,
    optimiser: Optimiser,
    loss_at: Callable[[int], Tensor],
    steps: int,
    out: Path,
) -> None:
    """Train `model` for `steps` steps; loss_at(step) gives the loss.

    Every hundred steps the weights go to out/NAME.pt, so that nothing is lost.
    """
    begun, mean = time.monotonic(), 0.0
    for step in range(steps):
        loss = loss_at(step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step(pace(step, steps))
        mean = loss.item() if step == 0 else 0.95 * mean + 0.05 * loss.item()
        if step % 10 == 0 or step == steps - 1:
            spent = time.monotonic() - begun
            print(f"{name} {step} of {steps} loss {mean:.4f} {spent:.0f} s", flush=True)
        if step % 100 == 99 or step == steps - 1:
            torch.save(model.state_dict(), out / f"{name}.part")
            (out / f"{name}.part").replace(out / f"{name}.pt")
