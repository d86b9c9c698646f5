"""A record and its verdict for the reader: a table, or one JSON object. Pure: gives text, prints nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..convert.errors import one_line
from ..quantize.imatrix import Imatrix
from .gate import Verdict
from .record import Record, Tally, Timings

UNITS = ("B", "KiB", "MiB", "GiB")


def rate(value: float | None, digits: int = 3) -> str:
    """A figure, or that there is none."""
    return "not measured" if value is None else f"{value:.{digits}f}"


def size(count: float) -> str:
    """Bytes in the largest unit that keeps them above one."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.4g} {UNITS[unit]}"


def speeds(record: Record) -> dict[str, float | None]:
    """Tokens per second: drafted, verified (rows of the target), in all, and without a draft.

    Prefill is left out of all of them. None where there is no time to divide by.
    """
    t, total = record.timings, record.total
    if t is None:
        return {}
    decoded = t.new_tokens - len(
        record.runs
    )  # the first token of each prompt comes from its prefill
    return {
        "draft": per_second(total.drafted, t.draft_s),
        "verify": per_second(total.drafted + total.rounds, t.verify_s),
        "total": per_second(decoded, t.total_s - t.prefill_s),
        "plain": per_second(decoded, t.plain_total_s - t.plain_prefill_s),
    }


def speed_up(record: Record) -> float | None:
    """Decoding time without the draft over decoding time with it; None where not measured."""
    s = speeds(record)
    ours, plain = s.get("total"), s.get("plain")
    return ours / plain if ours and plain else None


def per_second(count: int, seconds: float) -> float | None:
    """Count / seconds, None without time."""
    return count / seconds if seconds > 0 else None


def imatrix_json(matrix: Imatrix) -> dict[str, Any]:
    """What an importance matrix was made from."""
    return {
        "tensors": len(matrix.sums),
        "blocks": matrix.chunk_count,
        "rows": {name: int(count[0]) for name, count in matrix.counts.items()},
    }


def as_json(
    record: Record, verdict: Verdict, reference: str, matrix: Imatrix | None = None
) -> dict[str, Any]:
    """What `--json` prints below the head that all commands have; `matrix` is what was collected."""
    first, t = record.first_difference, record.timings
    return {
        "verdict": verdict.word,
        "reasons": list(verdict.reasons),
        "notes": list(verdict.notes),
        **record.total.to_json(),
        "domains": {name: tally.to_json() for name, tally in record.domains.items()},
        "prompts": len(record.runs),
        "lossless": record.lossless,
        "first_difference": asdict(first) if first else None,
        "bad_drafts": record.bad_drafts,
        "draft_kv_bytes": record.draft_kv_bytes,
        "tokens_per_second": speeds(record),
        "speed_up": speed_up(record),
        "seconds": asdict(t) if t else None,
        "reference": reference,
        "comparison": verdict.figures,
        "conditions": asdict(record.conditions),
        "subject": asdict(record.subject),
        "imatrix": imatrix_json(matrix) if matrix else None,
    }


def row(name: str, tally: Tally, positions: int) -> list[str]:
    """One line of the table."""
    marginal = [rate(p, 2) for p in tally.per_position]
    cells = [name, str(tally.rounds), rate(tally.acceptance_rate), rate(tally.mean_accepted_length)]
    return cells + marginal + [""] * (positions - len(marginal))


def table(record: Record) -> str:
    """Rate, mean accepted length and rate by position, for each domain and in all."""
    positions = len(record.total.kept)
    head = ["domain", "rounds", "rate", "length", *(f"@{i + 1}" for i in range(positions))]
    rows = [head, *(row(one_line(n, 24), t, positions) for n, t in record.domains.items())]
    rows.append(row("all", record.total, positions))
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    lines = []
    for cells in rows:
        first, *rest = (
            c.rjust(w) if i else c.ljust(w)
            for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def speed_lines(record: Record, t: Timings) -> list[str]:
    """Throughput in words."""
    s = speeds(record)
    return [
        f"tokens/s     draft {rate(s['draft'], 1)} · verify {rate(s['verify'], 1)} · total {rate(s['total'], 1)} · "
        f"without a draft {rate(s['plain'], 1)}",
        f"speed-up     {rate(speed_up(record), 2)} over no draft ({t.new_tokens} new tokens)",
    ]


def as_text(record: Record, verdict: Verdict, reference: str, matrix: Imatrix | None = None) -> str:
    """What a terminal shows; `matrix` is what was collected."""
    s = record.subject
    cache = f"ring of {s.ring} rows" if s.kv == "ring" else "full cache"
    first = record.first_difference
    lossless = {True: "yes, every token", False: f"no: {first}", None: "not compared"}[
        record.lossless
    ]
    lines = [
        f"draft        {one_line(s.draft_name)} ({record.conditions.variant}, block {record.conditions.block_size})",
        f"draft KV     {size(record.draft_kv_bytes)} ({cache}, {s.kv_type.upper()})",
        f"lossless     {lossless}",
    ]
    if record.timings:
        lines += speed_lines(record, record.timings)
    if matrix:
        lines.append(f"imatrix      {len(matrix.sums)} tensors, {matrix.chunk_count} blocks")
    lines += [
        "",
        table(record),
        "",
        f"reference    {reference or 'none'}",
        f"verdict      {verdict.word}",
    ]
    lines += [f"             {one_line(r, 300)}" for r in verdict.reasons]
    lines += [f"note         {one_line(n, 300)}" for n in verdict.notes]
    return "\n".join(lines)
