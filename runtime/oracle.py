"""The reference: an independent greedy speculative loop over the models of oracle_target.py and oracle_draft.py.

It uses that speculation is lossless: the target decodes once, and the draft then guesses along that text. So it
has no verify batch, no rollback and no ring that could share a fault with the engine's. Every decision is recorded
with the margin by which it fell. `python -m dflash_gguf.runtime.oracle --help` writes references.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .oracle_draft import Draft, Proposal
from .oracle_target import Text
from .record import Round


def decision_margin(p: Proposal, logits: Tensor, i: int, truth: int) -> float:
    """How far draft `i` of `p` is from the other outcome: from losing where it is `truth`, else from becoming it.

    A token wins if it is a candidate and has the best score; its distance is the larger of its distances to both.
    `logits` (V) are those of the draft's row.
    """
    chosen, candidates, scores = p.tokens[i], p.candidates[i], p.scores[i]
    behind = (scores[chosen] - scores).clamp(min=0)
    leave = math.inf
    if len(candidates) < len(scores):
        outside = torch.ones(len(scores), dtype=torch.bool)
        outside[candidates] = False
        entry = (logits[candidates[-1]] - logits) * outside
        behind = torch.maximum(behind, entry)
        leave = float(logits[chosen] - logits[outside].max())
    if chosen != truth:
        return min(float(behind[truth]), leave)
    behind[chosen] = math.inf
    return min(float(behind.min()), leave)


def speculate(draft: Draft, text: Text, n_max: int) -> tuple[list[Round], list[float]]:
    """Rounds of `draft` along `text`, and the closest decision of the prefill and of each round.

    A round that may draft nothing (one token left) is no round. Drafts behind an end-of-text token are not
    accepted: the text ends there.
    """
    draft.reset()
    features = text.features(draft.config.target_layer_ids)
    rounds: list[Round] = []
    margins = [text.margins[0]]
    done = 1  # new tokens known; the last of them is the anchor
    while done < len(text.new):
        m = min(draft.config.block_size - 1, n_max, text.budget - done - 1)
        if m < 1:
            break
        draft.extend(features[draft.committed : len(text.prompt) + done - 1])
        p = draft.propose(text.new[done - 1])
        truth = text.new[done : done + m]
        a = next((i for i, t in enumerate(truth) if p.tokens[i] != t), len(truth))
        near = text.margins[done : done + a + 1]
        near += [
            decision_margin(p, p.logits[draft.rows()[i]], i, truth[i])
            for i in range(min(a + 1, len(truth)))
        ]
        rounds.append((m, a))
        margins.append(min(near))
        done += a + 1
    return rounds, margins


if __name__ == "__main__":
    from .reference import main

    main()
