"""A draft measured: every prompt with the draft and without it, every token compared, all of it in a record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..convert.gguf import GgufFile, read_gguf
from ..convert.spec import DraftSpec
from . import identity
from .engine import Engine, Generation
from .prompts import Prompt
from .record import (
    Conditions,
    Difference,
    Limits,
    PromptRun,
    Record,
    Subject,
    Timings,
    prompts_sha256,
    tokens_sha256,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt's two generations."""

    prompt: Prompt
    ids: list[int]
    speculative: Generation
    plain: Generation


def run_pairs(
    engine: Engine, prompts: Iterable[tuple[Prompt, list[int]]], limits: Limits
) -> list[Pair]:
    """Both generations of each prompt, up to the target's end tokens or `limits.max_new`."""
    eos = engine.target_spec.eos_token_ids
    result = []
    for prompt, ids in prompts:
        drafted = engine.generate(ids, limits.max_new, n_max=limits.n_max, eos=eos)
        result.append(
            Pair(prompt, ids, drafted, engine.generate(ids, limits.max_new, n_max=0, eos=eos))
        )
    return result


def prompt_run(pair: Pair) -> PromptRun:
    """What the record keeps of one prompt."""
    g = pair.speculative
    return PromptRun(
        id=pair.prompt.id,
        domain=pair.prompt.domain,
        prompt_sha256=tokens_sha256(pair.ids),
        prompt_tokens=len(pair.ids),
        new_tokens=tuple(g.tokens),
        rounds=tuple((d, a) for d, a in g.rounds if d),
        stop=g.stop,
    )


def first_difference(pairs: Sequence[Pair]) -> Difference | None:
    """The first token that the draft changed, None if it changed none."""
    for pair in pairs:
        ours, plain = pair.speculative.tokens, pair.plain.tokens
        if ours != plain:
            i = next(
                (i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b),
                min(len(ours), len(plain)),
            )
            return Difference(
                id=pair.prompt.id,
                index=i,
                plain=plain[i] if i < len(plain) else None,
                speculative=ours[i] if i < len(ours) else None,
                margin=pair.plain.margins[i] if i < len(plain) else None,
            )
    return None


def timings(pairs: Sequence[Pair]) -> Timings:
    """Seconds of all prompts together."""
    return Timings(
        prefill_s=sum(p.speculative.prefill_s for p in pairs),
        draft_s=sum(p.speculative.draft_s for p in pairs),
        verify_s=sum(p.speculative.verify_s for p in pairs),
        total_s=sum(p.speculative.total_s for p in pairs),
        plain_prefill_s=sum(p.plain.prefill_s for p in pairs),
        plain_total_s=sum(p.plain.total_s for p in pairs),
        new_tokens=sum(len(p.speculative.tokens) for p in pairs),
    )


def hidden_rows_after(spec: DraftSpec, capacity: int, longest: int, swa: str) -> int:
    """`capacity` where a ring of that size hides rows which the draft's masks would show in a context of `longest`.

    A draft whose every layer slides loses nothing from capacity W - 1 on (W where the window is anchored).
    """
    if capacity == 0 or longest <= capacity:
        return 0
    reach = spec.sliding_window - (swa == "per_row")
    return 0 if all(spec.sliding_layers) and capacity >= reach else capacity


def record_of(
    engine: Engine, pairs: Sequence[Pair], limits: Limits, draft: Path, target: Path
) -> Record:
    """The record of `pairs`, with the identity of everything that made them; `engine` has a draft."""
    assert engine.spec is not None
    runs = tuple(prompt_run(p) for p in pairs)
    difference = first_difference(pairs)
    return Record(
        conditions=conditions_of(engine, engine.spec, runs, limits, read_gguf(target)),
        subject=subject_of(engine, engine.spec, draft),
        runs=runs,
        lossless=difference is None,
        first_difference=difference,
        bad_drafts=sum(p.speculative.bad_drafts for p in pairs),
        draft_kv_bytes=engine.draft_kv_bytes,
        timings=timings(pairs),
    )


def conditions_of(
    engine: Engine, spec: DraftSpec, runs: tuple[PromptRun, ...], limits: Limits, target: GgufFile
) -> Conditions:
    """What another record must share with this one."""
    options = engine.options
    longest = max((r.prompt_tokens + len(r.new_tokens) for r in runs), default=0)
    capacity = ring_rows(engine)
    return Conditions(
        target_sha256=identity.target_sha256(target),
        prompts_sha256=prompts_sha256(runs),
        variant=spec.variant,
        block_size=spec.block_size,
        n_max=limits.n_max,
        max_new=limits.max_new,
        context_length=limits.context_length,
        causal=options.causal,
        swa=options.swa,
        hidden_rows_after=hidden_rows_after(spec, capacity, longest, options.swa),
    )


def subject_of(engine: Engine, spec: DraftSpec, draft: Path) -> Subject:
    """What is judged, and how it ran."""
    options = engine.options
    return Subject(
        draft_name=draft.name,
        draft_sha256=identity.file_sha256(draft),
        draft_values_sha256=identity.draft_values_sha256(read_gguf(draft)),
        draft_spec=spec.to_json(),
        backend="cpu",
        version=metadata.version("dflash-gguf"),
        kv=options.kv,
        ring=ring_rows(engine),
        kv_type=options.kv_type,
        isa=str(engine.describe()["isa"]),
        threads=options.threads,
    )


def ring_rows(engine: Engine) -> int:
    """Rows of the draft's ring in effect, 0 for a full cache."""
    return 0 if engine.options.kv == "full" else int(engine.describe()["ring"])
