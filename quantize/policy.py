"""From a scheme and a list of tensors to the type of each: the decisions, and why. Pure.

Which tensors may change at all, their order and their numbers are llama-quantize's, so that a scheme can spell its
recipes exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

from ..convert.errors import UsageError
from .qtypes import BY_ID, BY_NAME, QType, fit_row
from .schemes import KEEP, Rule, Scheme

NOT_MATRICES = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
)  # fmt: skip
"""Parts of names whose tensors llama-quantize never touches (those that a text model can have)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What the policy needs to know of a tensor."""

    name: str
    type: int
    """ggml's number."""
    shape: tuple[int, ...]
    """GGUF order: row length first."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions of a scheme ask of the whole file."""

    block_count: int
    gqa: int
    """Query heads that share a KV head."""
    tied: bool
    """The file has no output.weight."""


@dataclass(frozen=True, slots=True)
class Override:
    """`--tensor-type PATTERN=TYPE`: wins over the scheme."""

    pattern: str
    type: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The type a tensor gets, and why."""

    name: str
    shape: tuple[int, ...]
    source: int
    """ggml's number of the type it has."""
    type: int
    """ggml's number of the type it gets; equal to `source` where the bytes are copied."""
    why: str
    """`rule GLOB`, `default`, `override GLOB`, or `kept: reason`."""
    wanted: str = ""
    """The type the scheme asked for, where the row's length forbade it."""

    @property
    def weights(self) -> int:
        """Weights in the tensor."""
        return prod(self.shape)


def file_order(name: str) -> tuple[int, bytes]:
    """The key by which llama-quantize orders tensors: block number (-1 for none), then name by bytes."""
    found = re.match(r"blk\.(\d+)\.", name)
    return (int(found[1]) if found else -1, name.encode())


def why_kept(tensor: Tensor) -> str:
    """Why llama-quantize would never touch the tensor; empty for a matrix."""
    shape = list(tensor.shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    if len(shape) < 2:
        return "one-dimensional"
    if not tensor.name.endswith("weight"):
        return "its name does not end in weight"
    part = next((part for part in NOT_MATRICES if part in tensor.name), "")
    return f"{part} tensors stay" if part else ""


def decide(
    scheme: Scheme, tensors: Sequence[Tensor], facts: Facts, overrides: Sequence[Override] = ()
) -> tuple[Decision, ...]:
    """The type of every tensor, in file order.

    Raises UsageError for an override that matches no matrix.
    """
    ordered = sorted(tensors, key=lambda t: file_order(t.name))
    matrices = [t.name for t in ordered if not why_kept(t)]
    for override in overrides:
        if not any(fnmatchcase(name, override.pattern) for name in matrices):
            raise UsageError(
                "a tensor pattern matches no matrix", found=override.pattern, where="--tensor-type",
                expected="a glob over whole tensor names", fix="dflash-quantize --dry-run lists the names",
            )  # fmt: skip
    return tuple(decide_one(scheme, t, matrices, facts, overrides) for t in ordered)


def decide_one(
    scheme: Scheme,
    tensor: Tensor,
    matrices: Sequence[str],
    facts: Facts,
    overrides: Sequence[Override],
) -> Decision:
    """The type of one tensor: kept, overridden, by rule, or by default; then fitted to its row."""
    reason = why_kept(tensor)
    if reason:
        return Decision(tensor.name, tensor.shape, tensor.type, tensor.type, f"kept: {reason}")
    override = next((o for o in overrides if fnmatchcase(tensor.name, o.pattern)), None)
    rule = next((r for r in scheme.rules if applies(r, tensor.name, matrices, facts)), None)
    if override:
        name, why = override.type, f"override {override.pattern}"
    elif rule:
        name, why = rule.type, f"rule {glob_of(rule, tensor.name)}"
    else:
        name, why = scheme.default, "default"
    if name == KEEP or (tensor.type in BY_ID and BY_ID[tensor.type].name == name):
        return Decision(tensor.name, tensor.shape, tensor.type, tensor.type, why)
    fitted: QType = fit_row(BY_NAME[name], tensor.shape[0])
    wanted = "" if fitted.name == name else name
    return Decision(tensor.name, tensor.shape, tensor.type, fitted.id, why, wanted)


def glob_of(rule: Rule, name: str) -> str:
    """The glob of `rule` that matches `name`, empty if none does."""
    return next((glob for glob in rule.match if fnmatchcase(name, glob)), "")


def applies(rule: Rule, name: str, matrices: Sequence[str], facts: Facts) -> bool:
    """Whether the rule decides for the tensor `name`."""
    if not glob_of(rule, name):
        return False
    if rule.when == "tied":
        return facts.tied
    if rule.when == "gqa4":
        return facts.gqa >= 4
    if not rule.when:
        return True
    peers = [other for other in matrices if glob_of(rule, other)]
    number, n = peers.index(name), facts.block_count if rule.count == "blocks" else len(peers)
    if rule.when == "first-two":
        return number < 2
    if rule.when == "first-16th":
        return number < n // 16
    return number < n // 8 or number >= 7 * n // 8 or (number - n // 8) % 3 == 2
