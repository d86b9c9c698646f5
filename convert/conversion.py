"""From a draft and its target to the canonical GGUF and its manifest: plan, then do."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .canonical import TargetFacts, canonical_fields
from .draft import Draft, facts_of_target
from .errors import UsageError
from .floats import Losses
from .ggml import type_name
from .gguf_writer import GgufWriter
from .output import OutputSet
from .pairing import mismatches
from .plan import ConvertPlan, main_type, plan_tensors, weight_count
from .spec import DraftSpec
from .spelling import DIALECTS, spell_fields
from .supplied import supplied
from .target import Target
from .transfer import Digest, Progress, transfer

MANIFEST_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a conversion wrote."""

    output: Path
    manifest: Path
    size: int
    plan: ConvertPlan
    digests: Sequence[Digest]

    @property
    def notes(self) -> list[str]:
        """What the output lost on the way, in words."""
        lossy = [d for d in self.digests if d.losses != Losses()]
        flushed = sum(d.losses.flushed for d in lossy)
        rough = sum(d.losses.subnormals for d in lossy)
        return [
            f"{flushed} values became zero and {rough} lost digits as subnormals, in {len(lossy)} tensors, "
            f"first in {lossy[0].name}; the manifest counts them by tensor"
        ] if lossy else []  # fmt: skip


def plan_conversion(
    draft: Draft,
    target: Target | None,
    outtype: str = "source",
    dialect: str = "canonical",
    revision: str = "",
) -> ConvertPlan:
    """The plan of the GGUF of `draft` in a dialect.

    Raises InputError where the target does not fit, UsageError where there is no tokenizer to put in.
    """
    if target is not None:
        faults = mismatches(draft, target)
        if faults:
            raise faults[0]
    facts = facts_of_target(target) if target else draft.facts
    tokenizer = target.tokenizer_fields if target else draft.tokenizer
    column = DIALECTS[dialect]
    draft = supplied(draft, target, column)
    if "tokenizer.ggml.tokens" not in tokenizer and column != "lucebox":
        raise UsageError(
            "the draft has no tokenizer, and no runtime of this dialect loads it without", where=draft.path,
            expected="--target TARGET", fix="name the target's GGUF or its Hugging Face folder with --target",
        )  # fmt: skip
    spec = completed(draft.spec, facts)
    tensors = plan_tensors(
        draft.matches, draft.spans, outtype, spec.vocab_size, column, draft.dialect
    )
    fields = canonical_fields(
        spec, facts, tokenizer, weights=weight_count(tensors), type_id=main_type((t.type, prod(t.shape)) for t in tensors),
        confidence=any(m.rule.gguf == "conf_proj.weight" for m in draft.matches), revision=revision,
    )  # fmt: skip
    gated = any(m.rule.gguf.endswith("attn_gate.weight") for m in draft.matches)
    fields = spell_fields(fields, column, spec, facts.architecture, gated=gated)
    return ConvertPlan(spec, fields, tensors)


def completed(spec: DraftSpec, facts: TargetFacts) -> DraftSpec:
    """The spec with what only the target knows: its depth, and Gemma's factor on embeddings that are borrowed from it."""
    scale = spec.embedding_scale
    if scale == 1.0 and facts.architecture.startswith("gemma"):
        scale = float(str(np.float32(math.sqrt(spec.target_hidden_size))))
    return replace(
        spec,
        num_target_layers=spec.num_target_layers or facts.num_hidden_layers,
        embedding_scale=scale,
    )


def manifest_path(output: Path) -> Path:
    """The sidecar of a GGUF."""
    return output.with_suffix(".manifest.json")


def run_plan(
    plan: ConvertPlan,
    draft: Draft,
    target: Target | None,
    output: Path,
    *,
    options: Mapping[str, Any],
    overwrite: bool = False,
    progress: Progress = lambda _: None,
) -> Outcome:
    """Write the GGUF and its manifest; both appear, or neither.

    Raises UsageError for an output that must not be written, EnvironmentFault where it cannot be, InputError where a
    source value does not fit or is not finite.
    """
    sidecar = manifest_path(output)
    inputs = [*draft.paths, *([target.path] if target else [])]
    files = OutputSet([output, sidecar], overwrite=overwrite, inputs=inputs)
    layout = plan.layout
    with files as (gguf_file, manifest_file):
        writer = GgufWriter(gguf_file, layout)
        digests = transfer(plan.tensors, writer, progress)
        writer.finish()
        manifest = build_manifest(plan, draft, target, output.name, digests, options)
        manifest_file.write((json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode(), 0)
    return Outcome(output, sidecar, layout.size, plan, digests)


def build_manifest(
    plan: ConvertPlan,
    draft: Draft,
    target: Target | None,
    name: str,
    digests: Sequence[Digest],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Where every byte of the output came from; names, never paths."""
    layout = plan.layout
    revision = plan.fields.get("general.source.revision")
    return {
        "schema": MANIFEST_SCHEMA,
        "tool": {"name": "dflash-gguf", "version": tool_version()},
        "output": {
            "name": name, "bytes": layout.size, "header_sha256": hashlib.sha256(layout.header).hexdigest(),
        },
        "source": {"dialect": draft.dialect, "revision": revision.value if revision else None, "files": list(draft.files)},
        "target": asdict(facts_of_target(target)) if target else asdict(draft.facts),
        "options": dict(options),
        "spec": plan.spec.to_json(),
        "spec_sha256": plan.spec.digest(),
        "tensors": [
            {
                "name": t.name, "type": type_name(t.type), "shape": list(t.shape), "offset": layout.infos[t.name].offset,
                "bytes": t.nbytes, "sha256": d.sha256, "source": t.source.name, "source_file": Path(t.source.file).name,
                "source_type": type_name(t.source.type), "source_sha256": d.source_sha256,
            } | ({"instead_of": t.wanted} if t.wanted else {}) | losses_json(d.losses)
            for t, d in zip(plan.tensors, digests, strict=True)
        ],
    }  # fmt: skip


def losses_json(losses: Losses) -> dict[str, int]:
    """What a narrower type lost; nothing where it lost nothing."""
    counts = {"flushed_to_zero": losses.flushed, "rough_subnormals": losses.subnormals}
    return {name: count for name, count in counts.items() if count}


def tool_version() -> str:
    """Version of this package, `unknown` where it runs uninstalled."""
    try:
        return version("dflash-gguf")
    except PackageNotFoundError:
        return "unknown"
