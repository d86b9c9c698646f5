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
from .heads import unknown_to_llama_cpp
from .names import generic, lookup
from .spec import DraftSpec
from .spelling import MAX_IK_TAPS, READERS


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one runtime does with the file."""

    runtime: str
    loads: bool | None
    """None where it is not known."""
    reasons: tuple[str, ...] = ()
    """Why it does not load it, or runs it wrongly."""
    remarks: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    """Those of the reasons that converting the file again takes away."""


def verdicts(draft: Draft) -> list[Verdict]:
    """The verdict of every runtime that is known; of none for a checkpoint, which has to be converted first."""
    return [] if draft.gguf is None else [rule(draft, draft.gguf) for rule in RUNTIMES]


def verdict(
    runtime: str, file_is: list[str], draft_is: list[str], remarks: list[str] | None = None
) -> Verdict:
    """A verdict from what is wrong with the file (a conversion mends it) and with the draft (nothing does)."""
    reasons = (*file_is, *draft_is)
    return Verdict(runtime, not reasons, reasons, tuple(remarks or ()), tuple(file_is))


def strange(draft: Draft, column: str) -> list[str]:
    """That tensors are not named as a dialect names them, with the first of them."""
    assert draft.gguf is not None
    names = [name for name in draft.gguf.tensors if generic(name)[0] not in lookup(column)]
    return [f"{len(names)} tensors have names it does not know ({names[0]})"] if names else []


def llama_cpp(draft: Draft, file: GgufFile) -> Verdict:
    """llama.cpp with the architecture `dflash` (b11434)."""
    spec, kv = draft.spec, file.kv
    faults, limits, remarks = [], [], []
    if file.architecture != "dflash":
        faults.append(f"architecture {file.architecture} is not known to it")
    faults += strange(draft, "gguf")
    for key in ("dflash.target_layers", "tokenizer.ggml.tokens", "tokenizer.ggml.mask_token_id"):
        if key not in kv:
            faults.append(f"{key} is missing")
    loose = [t.name for t in file.tensors.values() if t.type != F32 and wants_f32(draft, t.name)]
    if loose:
        faults.append(
            f"{len(loose)} norms or bases are not F32 ({loose[0]}): it aborts at the first draft"
        )
    if "dflash.block_size" not in kv:
        faults.append("dflash.block_size is missing: it takes 16")
    if spec.causal is None:
        remarks.append("its layers differ in causality and it has one flag: all run two-sided")
    elif spec.causal and kv.get("dflash.attention.causal") is not True:
        faults.append(
            "all layers are causal and dflash.attention.causal does not say so: it drafts two-sided"
        )
    if spec.num_target_layers and spec.num_target_layers - 1 in spec.target_layer_ids:
        limits.append("the target's last layer is captured: it aborts")
    if head := unknown_to_llama_cpp(spec):
        limits.append(f"it knows no {head}")
    return verdict("llama.cpp", faults, limits, remarks)


def wants_f32(draft: Draft, name: str) -> bool:
    """Whether the table stores this tensor as F32 always."""
    return any(m.source == name and m.rule.store == "f32" for m in draft.matches)


def lucebox(draft: Draft, file: GgufFile) -> Verdict:
    """Lucebox's server, as of July 2026."""
    arch, faults, limits, remarks = file.architecture, [], [], []
    if READERS[arch] == "gguf":
        faults.append(
            f"architecture {arch} is not known to the loader that was read; newer ones are said to take llama.cpp's file"
        )
    faults += strange(draft, "lucebox")
    ids = file.fields.get(f"{arch}.dflash.target_layer_ids")
    if ids is None or ids.item != kinds.I32:
        faults.append(f"{arch}.dflash.target_layer_ids is not an array of int32")
    if draft.spec.rms_norm_eps != 1e-6:
        limits.append(f"it computes with epsilon 1e-6, the draft with {draft.spec.rms_norm_eps:g}")
    if not all(draft.spec.causal_layers) or draft.spec.sliding_window:
        remarks.append("it anchors the window at the last token and runs the block causally")
    limits += lucebox_head_faults(draft.spec)
    if "token_embd.weight" in file.tensors:
        remarks.append("it uses the target's embedding and head, not the draft's own")
    if draft.spec.variant == "dflash2" and not faults + limits:
        return Verdict("Lucebox", None, remarks=("its loader for DFlash 2 was not seen",))
    return verdict("Lucebox", faults, limits, remarks)


def lucebox_head_faults(spec: DraftSpec) -> list[str]:
    """What Lucebox would compute otherwise, or not at all, of a draft's head."""
    faults = []
    if spec.domino and (spec.sample_from_anchor or spec.domino.pure_draft_prefix_len):
        faults.append(
            "it takes row 0 for the anchor and corrects every row behind it, this Domino head was trained otherwise"
        )
    if spec.markov_head_type != "vanilla":
        faults.append(
            f"it knows no {spec.markov_head_type} Markov head and would run the tables alone"
        )
    return faults


def ik(draft: Draft, file: GgufFile) -> Verdict:
    """ik_llama.cpp, buun, beellama."""
    arch, spec, faults, limits = file.architecture, draft.spec, [], []
    if arch != "dflash-draft":
        faults.append(f"architecture {arch} is not known to it")
    faults += strange(draft, "ik")
    for key in (f"{arch}.dflash.n_target_features", "tokenizer.ggml.tokens"):
        if not file.fields.get(key):
            faults.append(f"{key} is missing")
    if len(spec.target_layer_ids) > MAX_IK_TAPS:
        limits.append(f"{len(spec.target_layer_ids)} captured layers, it takes {MAX_IK_TAPS}")
    if spec.variant != "dflash1" and not faults + limits:
        return Verdict(
            "ik_llama.cpp", None, remarks=(f"its loader for {spec.variant} was not seen",)
        )
    return verdict("ik_llama.cpp", faults, limits)


def ours(draft: Draft, file: GgufFile) -> Verdict:
    """dflash-validate."""
    faults, limits = [], []
    if draft.dialect == "laguna":
        faults.append("a Laguna decoder, with gates and norms of the captured states")
    if draft.dialect == "any":
        faults.append("names of several dialects are mixed")
    if draft.spec.variant not in ("dflash1", "dflash2"):
        limits.append(f"its engine has no {draft.spec.variant} drafter")
    return verdict("dflash-validate", faults, limits)


RUNTIMES: tuple[Callable[[Draft, GgufFile], Verdict], ...] = (llama_cpp, lucebox, ik, ours)
