r"""Tokens per second with and without a draft, ours and llama.cpp's, on the same pair, prompts and cores.

    python bench/decode.py --target Pair-Target-BF16.gguf --draft dflash-Pair-BF16.gguf --prompts SET.jsonl \
        [--max-new 128] [--threads 2] [--repeat 5] [--limit 2] [--llama-server PATH] [--json decode.json]

One run, alternating: each round runs every prompt through the four cases in turn. A rate is new tokens after the
first, divided by the seconds after the prefill, summed over a domain; a row shows the median of the rounds and their
range. Both sides are greedy and get the same token ids. Then the parts: one draft, and one target pass over n rows
for n = 1 to 16 (a prefill of 128 tokens in batches of n, the same for both sides; neither computes logits for more
than its last row). The peer is llama.cpp as built into xllamacpp, or the llama-server binary that is given.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
from dflash_gguf.runtime.engine import Engine, EngineOptions
from dflash_gguf.runtime.prompts import Prompt, read_prompts
from dflash_gguf.runtime.tokenizer import target_ids

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from llama_client import LlamaServer

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
PREFILL = 240
"""Tokens of a verify measurement: a multiple of most row counts."""

Case = Callable[[list[int], int], tuple[int, float, int, int]]
"""Prompt ids and budget in; new tokens after the first, their seconds, drafted, accepted out."""


@dataclass(frozen=True)
class Job:
    """A prompt with its ids."""

    prompt: Prompt
    ids: list[int]


def ours(engine: Engine, n_max: int) -> Case:
    """Our engine as a case."""

    def case(ids: list[int], max_new: int) -> tuple[int, float, int, int]:
        g = engine.generate(ids, max_new, n_max=n_max)
        return (
            len(g.tokens) - 1,
            g.total_s - g.prefill_s,
            sum(d for d, _ in g.rounds),
            sum(a for _, a in g.rounds),
        )

    return case


def theirs(server: LlamaServer) -> Case:
    """llama.cpp as a case."""

    def case(ids: list[int], max_new: int) -> tuple[int, float, int, int]:
        c = server.complete(ids, max_new, ignore_eos=True)
        return len(c.tokens) - 1, c.decode_s, c.drafted, c.accepted

    return case


def decode(
    cases: dict[str, Case], jobs: list[Job], max_new: int, repeat: int
) -> list[dict[str, Any]]:
    """One row a domain and case: tokens per second over the rounds, and the acceptance."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for number in range(repeat):
        sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0, 0])
        for job in jobs:
            for name, case in cases.items():
                result = case(job.ids, max_new)
                for domain in (job.prompt.domain, "all"):
                    sums[domain, name] = [
                        a + b for a, b in zip(sums[domain, name], result, strict=True)
                    ]
        for key, (tokens, seconds, drafted, accepted) in sums.items():
            rates[key].append(tokens / seconds)
            counts[key] = int(drafted), int(accepted)
        measure.note(f"round {number + 1}/{repeat} of {len(jobs)} prompts done")
    return [
        {
            "domain": domain,
            "case": name,
            "tokens_per_second": measure.spread(values),
            "drafted": counts[domain, name][0],
            "accepted": counts[domain, name][1],
        }
        for (domain, name), values in rates.items()
    ]


def verify_ours(target: Path, threads: int, ids: list[int], repeat: int) -> dict[int, float]:
    """Milliseconds of one target pass over n rows, best of `repeat` prefills."""
    result = {}
    for n in ROWS:
        engine = Engine(target, options=EngineOptions(threads=threads, micro_batch=n))
        best = min(engine.generate(ids, 1).prefill_s for _ in range(repeat))
        result[n] = 1000 * best / -(-len(ids) // n)
    return result


def verify_theirs(
    start: Callable[..., LlamaServer], ids: list[int], repeat: int
) -> dict[int, float]:
    """The same in llama.cpp."""
    result = {}
    for n in ROWS:
        with start(batch=n) as server:
            best = min(server.complete(ids, 1).prompt_s for _ in range(repeat))
        result[n] = 1000 * best / -(-len(ids) // n)
    return result


def draft_cost(
    engine: Engine, server: LlamaServer, job: Job, max_new: int
) -> dict[str, float | None]:
    """Milliseconds of one draft; llama.cpp's from its own statistics, without the injection of the context."""
    g = engine.generate(job.ids, max_new)
    server.complete(job.ids, max_new)
    return {
        "ours": 1000 * g.draft_s / max(1, len(g.rounds)),
        "llama.cpp": server.draft_ms(),
    }


def print_decode(rows: list[dict[str, Any]], cases: list[str]) -> None:
    """One line a domain: tokens per second of each case, and ours over theirs."""
    print(
        f"{'tokens per second':<14}"
        + "".join(f"{c:>26}" for c in cases)
        + f"{'ours/theirs plain, draft':>28}"
    )
    table = {(r["domain"], r["case"]): r for r in rows}
    for domain in sorted({r["domain"] for r in rows}, key=lambda d: (d == "all", d)):
        cells, median = "", {}
        for name in cases:
            r = table[domain, name]
            rate = r["tokens_per_second"]
            median[name] = rate["median"]
            share = f" a={r['accepted'] / r['drafted']:.3f}" if r["drafted"] else ""
            cells += f"{rate['median']:9.1f} [{rate['min']:.0f}, {rate['max']:.0f}]{share}".rjust(
                26
            )
        plain, draft = median[cases[0]] / median[cases[2]], median[cases[1]] / median[cases[3]]
        print(f"{domain:<14}{cells}{plain:20.2f}x {draft:6.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--limit", type=int, default=2, help="prompts a domain")
    parser.add_argument(
        "--llama-server", type=Path, help="a llama-server binary in place of xllamacpp"
    )
    parser.add_argument(
        "--no-parts", action="store_true", help="leave out the draft and verify costs"
    )
    parser.add_argument(
        "--wait",
        choices=["spin", "sleep"],
        default="spin",
        help="what llama.cpp's threads do between operations",
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    engine = Engine(args.target, args.draft, EngineOptions(threads=args.threads))
    assert engine.spec is not None
    block = engine.spec.block_size
    jobs = choose(args, engine)

    def start(draft: Path | None = None, batch: int = 0) -> LlamaServer:
        return LlamaServer(
            args.target, draft, n_max=block - 1, threads=args.threads, spin=args.wait == "spin", batch=batch,
            binary=args.llama_server,
        )  # fmt: skip

    with ExitStack() as stack:
        plain = stack.enter_context(start())
        drafting = stack.enter_context(start(args.draft))
        cases = {
            "ours": ours(engine, 0),
            "ours + draft": ours(engine, block - 1),
            "llama.cpp": theirs(plain),
            "llama.cpp + draft": theirs(drafting),
        }
        rows = decode(cases, jobs, args.max_new, args.repeat)
        cost = None if args.no_parts else draft_cost(engine, drafting, jobs[0], args.max_new)
    print(
        f"{args.draft.name}, {args.threads} threads, {len(jobs)} prompts, {args.max_new} new tokens, {args.repeat} rounds"
    )
    print_decode(rows, list(cases))
    result: dict[str, Any] = {
        "bench": "decode",
        "threads": args.threads,
        "wait": args.wait,
        "rows": rows,
    }
    if cost is not None:
        ids = (jobs[0].ids * PREFILL)[:PREFILL]
        verify = {
            "ours": verify_ours(args.target, args.threads, ids, args.repeat),
            "llama.cpp": verify_theirs(start, ids, args.repeat),
        }
        result |= {"draft_ms": cost, "verify_ms": verify}
        print(
            "one draft, ms: "
            + ", ".join(f"{k} {v:.3f}" if v else f"{k} not measured" for k, v in cost.items())
        )
        print(f"{'target pass over n rows':<26}" + "".join(f"{n:>8}" for n in ROWS))
        for name, times in verify.items():
            print(f"{name + ', ms':<26}" + "".join(f"{times[n]:8.3f}" for n in ROWS))
            print(f"{'  x one row':<26}" + "".join(f"{times[n] / times[1]:8.2f}" for n in ROWS))
    measure.save(args.json, result)


def choose(args: argparse.Namespace, engine: Engine) -> list[Job]:
    """The first `--limit` prompts of each domain, with their ids."""
    spec = engine.target_spec
    prompts = read_prompts(args.prompts)
    taken: dict[str, int] = defaultdict(int)
    chosen = []
    for prompt in prompts:
        taken[prompt.domain] += 1
        if taken[prompt.domain] <= args.limit:
            chosen.append(prompt)
    ids = target_ids(args.target, chosen, spec.vocab_size, spec.context_length)
    return [Job(p, i) for p, i in zip(chosen, ids, strict=True)]


if __name__ == "__main__":
    main()
