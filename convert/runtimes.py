"""Which runtimes load a GGUF of a draft, and why not. Pure.

What a loader demands is from `docs/llama-cpp.md` (tried) and `models.md` section 8 (read); what was never seen is said to
be unknown. A reason is a fault that stops the runtime or makes it wrong; a remark is a loss that it survives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import fields as kinds
from .draft import Draft
from .ggml import F32
from .gguf import GgufFile
from .spelling import MAX_IK_TAPS, READERS


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one runtime does with the file."""

    runtime: str
    loads: bool | None
    """None where it is not known."""
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def verdicts(draft: Draft) -> list[Verdict]:
    """The verdict of every runtime that is known; of none for a checkpoint, which has to be converted first."""
    return [] if draft.gguf is None else [rule(draft, draft.gguf) for rule in RUNTIMES]


def llama_cpp(draft: Draft, file: GgufFile) -> Verdict:
    """llama.cpp with the architecture `dflash` (b11434)."""
    spec, kv = draft.spec, file.kv
    reasons = []
    if file.architecture != "dflash":
        reasons.append(f"architecture {file.architecture} is not known to it")
    if draft.dialect != "gguf":
        reasons.append("tensor names are another dialect's")
    for key in ("dflash.target_layers", "tokenizer.ggml.tokens", "tokenizer.ggml.mask_token_id"):
        if key not in kv:
            reasons.append(f"{key} is missing")
    loose = [t.name for t in file.tensors.values() if t.type != F32 and wants_f32(draft, t.name)]
    if loose:
        reasons.append(
            f"{len(loose)} norms or bases are not F32 ({loose[0]}): it aborts at the first draft"
        )
    if spec.num_target_layers and spec.num_target_layers - 1 in spec.target_layer_ids:
        reasons.append("the target's last layer is captured: it aborts")
    if spec.variant == "domino":
        reasons.append("it knows no Domino head")
    remarks = []
    if spec.causal is None:
        remarks.append("its layers differ in causality and it has one flag: all run two-sided")
    elif spec.causal and kv.get("dflash.attention.causal") is not True:
        reasons.append(
            "all layers are causal and dflash.attention.causal does not say so: it drafts two-sided"
        )
    if "dflash.block_size" not in kv:
        reasons.append("dflash.block_size is missing: it takes 16")
    return Verdict("llama.cpp", not reasons, tuple(reasons), tuple(remarks))


def wants_f32(draft: Draft, name: str) -> bool:
    """Whether the table stores this tensor as F32 always."""
    return any(m.source == name and m.rule.store == "f32" for m in draft.matches)


def lucebox(draft: Draft, file: GgufFile) -> Verdict:
    """Lucebox's server, as of July 2026."""
    arch, reasons, remarks = file.architecture, [], []
    if READERS[arch] == "gguf":
        reasons.append(
            f"architecture {arch} is not known to the loader that was read; newer ones are said to take llama.cpp's file"
        )
    if draft.dialect != "lucebox":
        reasons.append("tensor names are another dialect's")
    ids = file.fields.get(f"{arch}.dflash.target_layer_ids")
    if ids is None or ids.item != kinds.I32:
        reasons.append(f"{arch}.dflash.target_layer_ids is not an array of int32")
    if draft.spec.rms_norm_eps != 1e-6:
        reasons.append(f"it computes with epsilon 1e-6, the draft with {draft.spec.rms_norm_eps:g}")
    if not all(draft.spec.causal_layers) or draft.spec.sliding_window:
        remarks.append("it anchors the window at the last token and runs the block causally")
    if draft.spec.variant == "dflash2" and not reasons:
        return Verdict("Lucebox", None, remarks=("its loader for DFlash 2 was not seen",))
    return Verdict("Lucebox", not reasons, tuple(reasons), tuple(remarks))


def ik(draft: Draft, file: GgufFile) -> Verdict:
    """ik_llama.cpp, buun, beellama."""
    arch, spec, reasons = file.architecture, draft.spec, []
    if arch != "dflash-draft":
        reasons.append(f"architecture {arch} is not known to it")
    if draft.dialect != "ik":
        reasons.append("tensor names are another dialect's")
    for key in (f"{arch}.dflash.n_target_features", "tokenizer.ggml.tokens"):
        if not file.fields.get(key):
            reasons.append(f"{key} is missing")
    if len(spec.target_layer_ids) > MAX_IK_TAPS:
        reasons.append(f"{len(spec.target_layer_ids)} captured layers, it takes {MAX_IK_TAPS}")
    if spec.variant != "dflash1" and not reasons:
        return Verdict(
            "ik_llama.cpp", None, remarks=(f"its loader for {spec.variant} was not seen",)
        )
    return Verdict("ik_llama.cpp", not reasons, tuple(reasons))


def ours(draft: Draft, file: GgufFile) -> Verdict:
    """dflash-validate."""
    reasons = []
    if draft.dialect == "any":
        reasons.append("names of several dialects are mixed")
    if draft.spec.variant not in ("dflash1", "dflash2"):
        reasons.append(f"its engine has no {draft.spec.variant} drafter")
    return Verdict("dflash-validate", not reasons, tuple(reasons))


RUNTIMES: tuple[Callable[[Draft, GgufFile], Verdict], ...] = (llama_cpp, lucebox, ik, ours)
