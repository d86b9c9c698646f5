"""The instrument of a search: the draft, run along texts that its target wrote.

This is the one module that imports from its right (docs/decisions.md): the search knows nothing of engines, the runtime
nothing of searches, and the command that offers both has to join them somewhere.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..convert.errors import InputError, NotComparableError, UsageError
from ..convert.gguf import read_gguf
from ..convert.gguf_dialects import spelling
from ..runtime.candidates import Candidates
from ..runtime.engine import Engine, EngineOptions
from ..runtime.files import find
from ..runtime.prompts import read_prompts
from ..runtime.record import Limits
from ..runtime.replay import (
    Recording,
    Replay,
    estimate,
    expected_length,
    loop_length,
    loss,
    record_texts,
    replay,
)
from ..runtime.tokenizer import target_ids
from .found import scheme_of
from .schemes import KEEP, Scheme
from .search import Assignment, Goal, Group, Loss, size_of
from .tradeoffs import Importance, groups_of

MAX_NEW = 128
"""New tokens a prompt."""
PROBED = 8
"""Probes look at every eighth position of a text, solutions at all."""
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}  # fmt: skip

Replays = tuple[Replay, ...]


def share(text: str, option: str) -> float:
    """`1%` as 0.01."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if not found or float(found[1]) > 100:
        raise UsageError("not a percentage", found=text, where=option, expected="such as 1%")
    return float(found[1]) / 100


def size(text: str, whole: int) -> int:
    """`40%` of `whole`, or `800KB`, as bytes."""
    if text.strip().endswith("%"):
        return int(share(text, "--max-size") * whole)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not found or found[2].upper() not in UNITS:
        raise UsageError(
            "not a size", found=text, where="--max-size", expected="such as 40%, 800KB or 1.5GiB"
        )
    nbytes = float(found[1]) * UNITS[found[2].upper()]
    if not nbytes < 2**63:
        raise UsageError(
            "not a size", found=text[:40], where="--max-size", expected="below 2^63 bytes"
        )
    return int(nbytes)


@dataclass(frozen=True, slots=True)
class Request:
    """What is searched, and with what it is judged."""

    draft: Path
    target: Path
    prompts: str
    importance: Importance
    max_size: str | None
    max_loss: str | None
    threads: int

    def goal(self, fixed: int, groups: Sequence[Group]) -> Goal:
        """The limit, where `fixed` bytes of the file are no group's. Raises UsageError for a size that nothing has."""
        if self.max_loss is not None:
            return Goal(max_loss=share(self.max_loss, "--max-loss"))
        assert self.max_size is not None
        smallest = fixed + sum(g.choices[0].nbytes for g in groups)
        limit = size(self.max_size, fixed + sum(g.choices[-1].nbytes for g in groups))
        if limit < smallest:
            raise UsageError(
                "no types make the file that small", found=f"{limit} bytes", where="--max-size",
                expected=f"at least {smallest} bytes", fix=f"--max-size {smallest}",
            )  # fmt: skip
        return Goal(max_bytes=limit - fixed)


@dataclass
class Replayed:
    """The draft along recorded texts, at every `every`-th position: an instrument of the search."""

    engine: Engine
    candidates: Candidates
    groups: Sequence[Group]
    recordings: Sequence[Recording]
    n_max: int
    every: int
    seconds: dict[Assignment, float] = field(default_factory=dict)
    """What each measurement took."""
    lengths: dict[Assignment, float] = field(default_factory=dict)
    """The loop's mean accepted length, where all positions were looked at."""

    def measure(self, assignment: Assignment) -> Replays:
        """Every text with these types."""
        start = time.perf_counter()
        self.engine.replace_tensors(self.candidates.of(types_of(self.groups, assignment)))
        found = tuple(
            replay(self.engine, r, self.n_max, [a for a in r.anchors if (a + i) % self.every == 0])
            for i, r in enumerate(self.recordings)
        )
        if self.every == 1:
            self.lengths[assignment] = estimate(found, loop_length).value
        self.seconds[assignment] = time.perf_counter() - start
        return found

    def loss(self, base: Replays, other: Replays) -> Loss:
        """Of the expected accepted length, paired by text; where all positions were looked at, no less than the loop's."""
        found = loss(base, other, expected_length)
        if not math.isfinite(found.value + found.error):
            raise NotComparableError("the draft was never run", expected="prompts that the target answers at length")  # fmt: skip
        counted = loss(base, other, loop_length) if self.every == 1 else found
        larger = counted if counted.value > found.value else found
        return Loss(larger.value, larger.error)


@dataclass(frozen=True)
class Plan:
    """Everything a search needs, ready to run."""

    groups: Sequence[Group]
    goal: Goal
    fixed: int
    probe: Replayed
    judge: Replayed


def types_of(groups: Sequence[Group], assignment: Assignment) -> dict[str, str]:
    """The type of every matrix that does not keep its own."""
    chosen = ((g, g.choices[i].type) for g, i in zip(groups, assignment, strict=True))
    return {name: kind for g, kind in chosen if kind != KEEP for name in g.tensors}


def prepare(request: Request, fixed: Callable[[Scheme], int]) -> Plan:
    """Read, try every type on every matrix, and let the target write its texts; `fixed` sizes a scheme's file.

    Raises UsageError for a limit that cannot be meant and a draft that has to be converted first.
    """
    file = read_gguf(request.draft)
    if spelling(file) != "gguf":
        raise UsageError(
            "a search runs the draft, so it has to be canonical", found=spelling(file), where=request.draft,
            expected="a canonical GGUF", fix="dflash-convert it first",
        )  # fmt: skip
    groups = groups_of(file, request.importance)
    smallest = tuple(0 for _ in groups)
    rest = fixed(scheme_of(groups, smallest)) - size_of(groups, smallest)
    goal = request.goal(rest, groups)
    engine = Engine(request.target, request.draft, EngineOptions(threads=request.threads))
    assert engine.spec is not None
    target, n_max = engine.target_spec, engine.spec.block_size - 1
    prompts = read_prompts(find(request.prompts, "prompts", ".jsonl"))
    if len(prompts) < 2:
        raise InputError(
            "one prompt has no standard error",
            where=request.prompts,
            expected="at least two prompts",
        )
    ids = target_ids(request.target, prompts, target.vocab_size, target.context_length)
    limits = Limits(n_max, MAX_NEW, target.context_length)
    recordings = record_texts(engine, zip(prompts, ids, strict=True), limits)
    candidates = Candidates(file, request.importance)
    probe, judge = (
        Replayed(engine, candidates, groups, recordings, n_max, every) for every in (PROBED, 1)
    )
    return Plan(groups, goal, rest, probe, judge)
