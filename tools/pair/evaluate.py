"""Greedy speculative decoding in PyTorch, and what it accepts: the figures of the model card.

Always runs all rows of a block. Definitions: design.md 4.4 (a round drafts d tokens, accepts the
leading run a; mean length = 1 + sum a / rounds).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer

from .draft import Draft
from .target import Cache, Target
from .tokenizer import EOS_ID


@dataclass
class Tally:
    """Sums over rounds; `hist[i]` counts the rounds that accepted more than i tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    hist: list[int] = field(default_factory=lambda: [0] * 7)

    def add(self, drafted: int, accepted: int) -> None:
        """Count one round."""
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        for i in range(accepted):
            self.hist[i] += 1

    @property
    def mean_length(self) -> float:
        """Tokens a round, the bonus token included."""
        return 1 + self.accepted / self.rounds


@torch.no_grad()
def speculate(
    target: Target, draft: Draft, prompt: list[int], count: int, tally: Tally
) -> list[int]:
    """Up to `count` new tokens behind `prompt`; every round is counted in `tally`."""
    taps = draft.shape.target_layer_ids
    cache = Cache(target.g, 1, len(prompt) + count + draft.shape.block_size)
    logits, states = target(torch.tensor([prompt]), cache, taps)
    out = [int(logits[0, -1].argmax())]
    while out[-1] != EOS_ID and len(out) < count:
        room = min(draft.shape.block_size - 1, count - len(out) - 1)
        proposed = draft.propose(target, states.flatten(2), out[-1])[:room]
        if EOS_ID in proposed:
            proposed = proposed[: proposed.index(EOS_ID) + 1]
        committed = cache.length
        logits, new = target(torch.tensor([[out[-1], *proposed]]), cache, taps)
        truth = logits[0].argmax(-1).tolist()
        agreed = 0
        while agreed < len(proposed) and proposed[agreed] == truth[agreed]:
            agreed += 1
        if proposed:
            tally.add(len(proposed), agreed)
        fresh = truth[: agreed + 1]
        if EOS_ID in fresh:
            fresh = fresh[: fresh.index(EOS_ID) + 1]
        out += fresh
        cache.length = committed + agreed + 1
        states = torch.cat([states, new[:, : agreed + 1]], dim=1)
    return out


def table(
    target: Target, draft: Draft, tokenizer: Tokenizer, prompts: list[dict], count: int = 128
) -> dict[str, Tally]:
    """One Tally a domain over `prompts` (fields domain and prompt), `count` new tokens each."""
    tallies: dict[str, Tally] = {}
    for prompt in prompts:
        ids = tokenizer.encode(prompt["prompt"], add_special_tokens=False).ids
        speculate(target, draft, ids, count, tallies.setdefault(prompt["domain"], Tally()))
    return tallies


def rows(name: str, tallies: dict[str, Tally]) -> list[str]:
    """Markdown table rows: draft, domain, rounds, mean length, rate, rate at each position."""
    lines = []
    for domain, t in tallies.items():
        rate = t.accepted / t.drafted
        places = " ".join(f"{n / t.rounds:.2f}" for n in t.hist)
        lines.append(
            f"| {name} | {domain} | {t.rounds} | {t.mean_length:.3f} | {rate:.3f} | {places} |"
        )
    return lines
