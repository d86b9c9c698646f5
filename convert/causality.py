"""Which layers of a draft are causal inside a block, from a GGUF's keys or from a word. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def causal_layers(
    found: Mapping[str, Any], sliding: tuple[bool, ...], *, laguna: bool = False
) -> tuple[bool, ...]:
    """Causality by layer: the pattern, else the global flag, else the reference's rule for a config that is silent.

    Converters write the flag only if the config declares it, so its absence means what the config's absence means:
    sliding layers are causal, full ones see the whole block. Laguna's decoder is causal throughout.
    """
    if found["causal_layers"] is not None:
        return tuple(found["causal_layers"])
    if found["causal"] is None and not laguna:
        return sliding
    return (found["causal"] is not False,) * len(sliding)


def causality(word: str, sliding: tuple[bool, ...]) -> tuple[bool, ...]:
    """The causal layers that `none`, `all` or `sliding` means."""
    return sliding if word == "sliding" else (word == "all",) * len(sliding)
