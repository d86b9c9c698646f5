"""A draft measured without its target: along texts that the target wrote once.

Greedy speculation is lossless, so the text does not depend on the draft. It is recorded once, with the states that
drafts read; then any draft for this target, or this draft with other weights, says at any position what it would
have drafted. With an anchor at every position each text gives the rounds of the real loop, exactly, and about three
times as many samples beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..convert.errors import UsageError
from .engine import Engine
from .prompts import Prompt
from .record import Limits, Round

MAX_RECORDING = 8 << 30
"""Bytes of states that `record_texts` keeps at most: positions * captured layers * hidden size * 4."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A text of the target, and what a draft reads of it."""

    id: str
    domain: str
    tokens: list[int]
    """The prompt, then what the target wrote."""
    prompt: int
    """Tokens of the prompt."""
    budget: int
    """New tokens that were allowed; the text may have ended earlier."""
    features: NDArray[np.float32]
    """(len(tokens) - 1, captured layers * hidden size): the states of every token but the last."""

    @property
    def anchors(self) -> range:
        """New tokens, by index, that a draft can follow: all but the last."""
        return range(len(self.tokens) - self.prompt - 1)


@dataclass(frozen=True, slots=True)
class Replay:
    """What a draft said along one recording, anchor by anchor."""

    recording: Recording
    anchors: NDArray[np.int32]
    """(A,): indices of new tokens, ascending."""
    drafted: NDArray[np.int32]
    """(A,): tokens the loop would have drafted here; 0 where no token is left, or the draft is not finite."""
    accepted: NDArray[np.int32]
    """(A,): how many of them the text has."""
    chosen: NDArray[np.float32]
    """(A, block_size - 1): how probable the text's next token was among what the draft could choose (all tokens, or
    the selector's candidates), given the text's tokens before it. NaN where nothing was drafted or the text ended."""
    log_probability: NDArray[np.float32]
    """The same shape: its natural logarithm among all tokens, by the head alone, so that it is always finite."""

    @property
    def expected(self) -> NDArray[np.float64]:
        """(A,): tokens that would be accepted on average, were the draft to draw each from its own distribution."""
        known = np.nan_to_num(self.chosen.astype(np.float64), nan=0.0)
        expected: NDArray[np.float64] = np.cumprod(known, axis=1).sum(1)
        return expected

    def rounds(self, start: int = 0) -> list[Round]:
        """The loop's rounds from the new token `start` on. Raises UsageError where a round's anchor was left out."""
        places = {int(anchor): i for i, anchor in enumerate(self.anchors)}
        found, at = [], start
        while at in self.recording.anchors:
            if at not in places:
                raise UsageError(
                    "the replay left out an anchor that the loop visits", found=at, expected="all anchors"
                )  # fmt: skip
            i = places[at]
            if self.drafted[i]:
                found.append((int(self.drafted[i]), int(self.accepted[i])))
            at += int(self.accepted[i]) + 1
        return found


def record_texts(
    engine: Engine, prompts: Iterable[tuple[Prompt, list[int]]], limits: Limits
) -> tuple[Recording, ...]:
    """The target's greedy texts of `prompts`, at most `limits.max_new` tokens each, and the states that drafts read.

    `engine` has a draft, which is not run: it says which layers are captured. Raises UsageError where the states could
    take more than `MAX_RECORDING` bytes; that is checked first.
    """
    assert engine.spec is not None
    prompts = list(prompts)
    row = 4 * len(engine.spec.target_layer_ids) * engine.spec.target_hidden_size
    budgets = [min(limits.max_new, limits.context_length - len(ids)) for _, ids in prompts]
    most = sum(row * (len(ids) + n) for (_, ids), n in zip(prompts, budgets, strict=True))
    if most > MAX_RECORDING:
        raise UsageError(
            "the recorded states would not fit", found=f"{most} bytes", expected=f"at most {MAX_RECORDING}",
            fix="record fewer prompts, or fewer new tokens",
        )  # fmt: skip
    recordings = []
    for (prompt, ids), budget in zip(prompts, budgets, strict=True):
        new = engine.generate(ids, budget, n_max=0, eos=engine.target_spec.eos_token_ids).tokens
        tokens = [*ids, *new]
        features = engine.features(tokens[:-1])
        recordings.append(Recording(prompt.id, prompt.domain, tokens, len(ids), budget, features))
    return tuple(recordings)


def replay(
    engine: Engine, recording: Recording, n_max: int, anchors: Sequence[int] | None = None
) -> Replay:
    """The draft of `engine` along `recording`, at most `n_max` tokens a round, at `anchors` (default: all).

    Raises UsageError for anchors that are not ascending indices of new tokens, the last one excluded, and for states
    that are not those this draft reads.
    """
    where = list(recording.anchors if anchors is None else anchors)
    rounds, chosen, log_probability = engine.native.replay(
        recording.tokens, recording.prompt, recording.budget, recording.features, where, n_max
    )
    pairs = np.array(rounds, np.int32).reshape(-1, 2)
    return Replay(
        recording, np.array(where, np.int32), pairs[:, 0], pairs[:, 1], chosen, log_probability
    )


def replay_all(engine: Engine, recordings: Iterable[Recording], n_max: int) -> tuple[Replay, ...]:
    """Every recording at every anchor."""
    return tuple(replay(engine, recording, n_max) for recording in recordings)


# --- figures: each is a ratio of sums over prompts --------------------------------------------------------------------

Figure = Callable[[Replay], tuple[float, float]]
"""A prompt's share of a figure: (sum, count)."""


def loop_length(r: Replay) -> tuple[float, float]:
    """Mean accepted length of the real loop: tokens of its rounds, and rounds."""
    rounds = r.rounds()
    return float(sum(a + 1 for _, a in rounds)), float(len(rounds))


def accepted_length(r: Replay) -> tuple[float, float]:
    """Mean accepted length with a round at every anchor, easy and hard positions alike."""
    run = r.drafted > 0
    return float((r.accepted[run] + 1).sum()), float(run.sum())


def expected_length(r: Replay) -> tuple[float, float]:
    """The same, were each token drawn from the draft's distribution: it moves with every weight."""
    run = r.drafted > 0
    return float((r.expected[run] + 1).sum()), float(run.sum())


def mean_log_probability(r: Replay) -> tuple[float, float]:
    """Natural logarithm of the probability that the head alone gives the text, a drafted token."""
    known = np.isfinite(r.log_probability)
    return float(r.log_probability[known].sum(dtype=np.float64)), float(known.sum())


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its standard error over prompts."""

    value: float
    error: float


def estimate(replays: Sequence[Replay], figure: Figure) -> Estimate:
    """The `figure` of a draft; the error takes prompts as the independent draws. NaN without a round."""
    y, n = np.array([figure(r) for r in replays], np.float64).T
    if not n.sum():
        return Estimate(math.nan, math.nan)
    value = y.sum() / n.sum()
    return Estimate(float(value), spread((y - value * n) / n.sum()))


def loss(base: Sequence[Replay], other: Sequence[Replay], figure: Figure) -> Estimate:
    """How much of a length `other` loses of `base`, as a share, on the same recordings; the error is that of the pairs.

    Raises UsageError where the recordings are not the same.
    """
    if [r.recording.id for r in base] != [r.recording.id for r in other]:
        raise UsageError("two replays of other recordings cannot be paired")
    shares, values = [], []
    for replays in (base, other):
        y, n = np.array([figure(r) for r in replays], np.float64).T
        if not n.sum():
            return Estimate(math.nan, math.nan)
        values.append(y.sum() / n.sum())
        shares.append((y - values[-1] * n) / y.sum())
    ratio = values[1] / values[0]
    return Estimate(float(1 - ratio), float(ratio) * spread(shares[1] - shares[0]))


def spread(shares: NDArray[np.float64]) -> float:
    """Standard error of a sum of independent shares whose mean is zero."""
    k = len(shares)
    return math.sqrt(k / (k - 1) * float(shares @ shares)) if k > 1 else math.nan
