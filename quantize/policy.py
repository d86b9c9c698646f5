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
from ..convert.ggml import fit_row
from ..convert.matrices import why_kept
from .qtypes import BY_ID, BY_NAME
from .schemes import KEEP, Rule, Scheme


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


def decide(
    scheme: Scheme, tensors: Sequence[Tensor], facts: Facts, overrides: Sequence[Override] = ()
) -> tuple[Decision, ...]:
    """The type of every tensor, in file order.

    Raises UsageError for an override that matches no matrix.
    """
    ordered = sorted(tensors, key=lambda t: file_order(t.name))
    matrices = [t.name for t in ordered if not why_kept(t.name, t.shape)]
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
    reason = why_kept(tensor.name, tensor.shape)
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
    asked = BY_NAME[name].id
    fitted = fit_row(asked, tensor.shape[0])
    wanted = "" if fitted == asked else name
    return Decision(tensor.name, tensor.shape, tensor.type, fitted, why, wanted)


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
