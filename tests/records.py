"""Small records for the tests of record and gate: real ones, built by the same constructors the commands use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dflash_gguf.runtime.record import (
    Conditions,
    PromptRun,
    Record,
    Round,
    Subject,
    prompts_sha256,
    tokens_sha256,
)

HAND_LOG: tuple[Round, ...] = ((3, 3), (3, 1), (3, 0))
"""Three rounds of three with 3, 1, 0 accepted (bugs.md 41)."""


def make_run(name: str, rounds: Sequence[Round], domain: str = "code", **changes: Any) -> PromptRun:
    """A run whose tokens are as many as its rounds give."""
    new = tuple(range(1 + sum(a + 1 for _, a in rounds)))
    run = PromptRun(name, domain, tokens_sha256([len(name), 7]), 2, new, tuple(rounds), "length")
    return replace(run, **changes)


def make_record(runs: Sequence[PromptRun], block_size: int = 8, subject: dict[str, Any] | None = None, **conditions: Any) -> Record:  # fmt: skip
    """A record of `runs`; `subject` and `conditions` change its other fields."""
    base = Conditions(
        target_sha256="a" * 64, prompts_sha256=prompts_sha256(runs), variant="dflash1", block_size=block_size,
        n_max=block_size - 1, max_new=1 << 20, context_length=1 << 20,
    )  # fmt: skip
    draft = Subject("draft.gguf", "b" * 64, "", {"rope_theta": 1e6}, "cpu", "0.1.0")
    return Record(replace(base, **conditions), replace(draft, **(subject or {})), tuple(runs))


def drawn_runs(
    chance: float, prompts: int = 24, rounds: int = 40, spread: float = 0.1, seed: int = 1
) -> list[PromptRun]:
    """Runs whose drafts of 7 are accepted token by token with about `chance`, prompts differing by `spread`."""
    rng = np.random.default_rng(seed)
    result = []
    for i in range(prompts):
        p = float(np.clip(chance + spread * rng.standard_normal(), 0.01, 0.99))
        kept = np.minimum(rng.geometric(1 - p, size=rounds) - 1, 7)
        result.append(
            make_run(f"p{i}", [(7, int(a)) for a in kept], domain="code" if i % 2 else "prose")
        )
    return result
