"""What a quantisation did, as a table, as JSON, and as the manifest beside the output. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from ..convert.conversion import tool_version
from ..convert.ggml import type_name
from .metrics import ErrorSums, bits_per_weight
from .quantization import QuantPlan, QuantTensor
from .source import Source
from .stream import Result

MANIFEST_SCHEMA = 1


def tensor_json(plan: QuantPlan, tensor: QuantTensor) -> dict[str, Any]:
    """What the plan says of a tensor."""
    d = tensor.decision
    body: dict[str, Any] = {
        "name": d.name, "type": type_name(d.type), "shape": list(d.shape), "offset": plan.layout.infos[d.name].offset,
        "bytes": tensor.nbytes, "bits_per_weight": round(bits_per_weight(tensor.nbytes, d.weights), 4),
        "source": tensor.span.name, "source_type": type_name(tensor.span.type), "why": d.why,
    }  # fmt: skip
    return body | ({"instead_of": d.wanted.upper()} if d.wanted else {})


def plan_json(plan: QuantPlan) -> dict[str, Any]:
    """The plan as `--dry-run --json` prints it."""
    return {
        "scheme": plan.scheme.name,
        "total": plan.totals(),
        "tensors": [tensor_json(plan, t) for t in plan.tensors],
    }


def errors_json(errors: ErrorSums | None) -> dict[str, Any]:
    """Relative RMSE and cosine; exact where the bytes were copied."""
    e = errors or ErrorSums(1.0, 1.0, 1.0, 0.0)
    return {"relative_rmse": float(f"{e.relative_rmse:.6g}"), "cosine": round(e.cosine, 9)}


def result_json(plan: QuantPlan, result: Result) -> dict[str, Any]:
    """What came of a tensor: its plan, its error and its hashes."""
    return (
        tensor_json(plan, result.tensor)
        | errors_json(result.errors)
        | ({"importance": True} if result.weighted else {})
        | {"sha256": result.sha256, "source_sha256": result.source_sha256}
    )


def total_errors(results: Sequence[Result]) -> ErrorSums | None:
    """The error of all tensors that were quantised, taken as one; None where there was none."""
    sums = [r.errors for r in results if r.errors is not None]
    return reduce(add, sums) if sums else None


def outcome_json(plan: QuantPlan, results: Sequence[Result]) -> dict[str, Any]:
    """Everything a run says of its output."""
    return {
        "scheme": plan.scheme.name,
        "total": plan.totals() | errors_json(total_errors(results)),
        "tensors": [result_json(plan, r) for r in results],
    }


def manifest(
    name: str,
    source: Source,
    plan: QuantPlan,
    results: Sequence[Result],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Where every byte of the output `name` came from; names and hashes, never paths or dates."""
    layout = plan.layout
    return {
        "schema": MANIFEST_SCHEMA,
        "tool": {"name": "dflash-gguf", "version": tool_version()},
        "output": {
            "name": name,
            "bytes": layout.size,
            "header_sha256": hashlib.sha256(layout.header).hexdigest(),
        },
        "source": {"files": list(source.files)},
        "options": dict(options),
        "spec_sha256": source.spec.digest(),
    } | outcome_json(plan, results)


def table(plan: QuantPlan, results: Sequence[Result] = ()) -> str:
    """One line a tensor, then the totals; with errors once they are known."""
    errors = {r.tensor.name: r.errors for r in results}
    head = f"{'tensor':<32} {'shape':<14} {'from':<6} {'type':<7} {'bits':>6} {'bytes':>12}"
    lines = [head + (f" {'rel.rmse':>9} {'cosine':>9}" if results else "") + "  why"]
    for t in plan.tensors:
        d = t.decision
        line = (
            f"{d.name:<32} {'x'.join(map(str, d.shape)):<14} {type_name(t.span.type):<6} {type_name(d.type):<7}"
            f" {bits_per_weight(t.nbytes, d.weights):>6.3f} {t.nbytes:>12}"
        )
        if results:
            e = errors_json(errors[d.name])
            line += f" {e['relative_rmse']:>9.5f} {e['cosine']:>9.6f}"
        lines.append(f"{line}  {d.why}" + (f" (instead of {d.wanted})" if d.wanted else ""))
    return "\n".join([*lines, *total_lines(plan, results)])


def total_lines(plan: QuantPlan, results: Sequence[Result]) -> list[str]:
    """The totals in words."""
    total = plan.totals()
    share = 100 * total["bytes"] / max(total["source_bytes"], 1)
    line = f"{plan.scheme.name}: {total['bytes']} bytes, {total['bits_per_weight']:.3f} bits per weight, {share:.1f}% of the source"
    e = total_errors(results)
    if e is not None:
        line += f", relative RMSE {e.relative_rmse:.5f}, cosine {e.cosine:.6f}"
    lost = total["fallback_tensors"]
    note = f"{lost} tensors ({100 * total['fallback_bytes_share']:.1f}% of the bytes) have rows that do not divide; see 'instead of'"
    return [line, *([note] if lost else [])]
