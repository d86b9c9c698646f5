"""The quantised GGUF and its manifest, written together or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..convert.conversion import manifest_path
from ..convert.gguf_writer import GgufWriter
from ..convert.output import OutputSet
from .imatrix import Imatrix
from .quantization import QuantPlan, match_importance
from .report import manifest
from .source import Source
from .stream import Progress, Result, quantize_tensors


def write_quantized(
    source: Source,
    plan: QuantPlan,
    output: Path,
    *,
    threads: int,
    imatrix: Imatrix | None = None,
    options: Mapping[str, Any] | None = None,
    beside: Mapping[Path, str] | None = None,
    overwrite: bool = False,
    progress: Progress = lambda _: None,
) -> list[Result]:
    """Write `output`, `NAME.manifest.json` and the texts `beside` it; what came of each tensor, in file order.

    Raises UsageError for an output that must not be written, EnvironmentFault where it cannot be, InputError where a
    weight or the importance cannot be used.
    """
    importance = match_importance(plan, imatrix.importance(), imatrix.where) if imatrix else None
    inputs = [*source.paths, *(imatrix.paths if imatrix else ())]
    texts = beside or {}
    paths = [output, manifest_path(output), *texts]
    with OutputSet(paths, overwrite=overwrite, inputs=inputs) as (
        gguf_file,
        manifest_file,
        *others,
    ):
        for file, text in zip(others, texts.values(), strict=True):
            file.write(text.encode())
        writer = GgufWriter(gguf_file, plan.layout)
        results = quantize_tensors(
            plan, writer.write, threads=threads, importance=importance, progress=progress
        )
        writer.finish()
        notes = dict(options or {}) | ({"imatrix": describe(imatrix)} if imatrix else {})
        body = manifest(output.name, source, plan, results, notes)
        manifest_file.write((json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())
    return results


def describe(imatrix: Imatrix) -> dict[str, Any]:
    """Names, hashes and extent of an importance matrix."""
    return {
        "files": [
            {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in imatrix.paths
        ],
        "entries": len(imatrix.sums),
        "chunks": imatrix.chunk_count,
    }
