"""The storage types of weights that this library knows: ggml's number, block length, and the fields of a block.

Pure. Block bytes are sums of the fields that `csrc/kquant/kquant.h` declares; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..convert.errors import UsageError
from ..convert.ggml import TYPES


@dataclass(frozen=True, slots=True)
class QType:
    """One storage type."""

    name: str
    """Lower-case name, as `--tensor-type`, `schemes.toml` and `quantize_rows` spell it."""
    id: int
    """ggml's number, as a GGUF tensor info spells it."""
    block_weights: int
    """Weights in a block; a row must be a multiple of it."""
    field_bytes: tuple[int, ...]
    """Bytes of the block's fields in file order."""
    searches: bool = True
    """Whether importance weights change the bytes."""

    @property
    def fallback(self) -> str:
        """The type llama-quantize takes instead when the row is not a multiple of `block_weights`."""
        return TYPES[self.id].fallback.lower()

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return sum(self.field_bytes)

    @property
    def bits_per_weight(self) -> float:
        """Bits a weight takes."""
        return 8 * self.block_bytes / self.block_weights

    @property
    def is_float(self) -> bool:
        """Whether the type stores floats (and can be a source without requantising)."""
        return self.block_weights == 1

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row of `cols` weights. Raises UsageError when `cols` is not a multiple of the block."""
        if cols <= 0 or cols % self.block_weights:
            raise UsageError(
                f"a row does not divide into {self.name} blocks",
                found=f"{cols} columns",
                expected=f"a multiple of {self.block_weights}",
                fix=f"use {self.fallback}" if cols > 0 else "",
            )
        return cols // self.block_weights * self.block_bytes


FLOATS = (
    QType("f32", 0, 1, (4,), searches=False),
    QType("f16", 1, 1, (2,), searches=False),
    QType("bf16", 30, 1, (2,), searches=False),
)
"""Types a tensor can be quantised from."""

QUANTISED = (
    QType("q4_0", 2, 32, (2, 16)),
    QType("q4_1", 3, 32, (2, 2, 16)),
    QType("q5_0", 6, 32, (2, 4, 16)),
    QType("q5_1", 7, 32, (2, 2, 4, 16)),
    QType("q8_0", 8, 32, (2, 32), searches=False),
    QType("q2_k", 10, 256, (16, 64, 2, 2)),
    QType("q3_k", 11, 256, (32, 64, 12, 2)),
    QType("q4_k", 12, 256, (2, 2, 12, 128)),
    QType("q5_k", 13, 256, (2, 2, 12, 32, 128)),
    QType("q6_k", 14, 256, (128, 64, 16, 2)),
    QType("iq4_nl", 20, 32, (2, 16)),
    QType("iq4_xs", 23, 256, (2, 2, 4, 128)),
)
"""Types `quantize_rows` writes."""

BY_NAME = {t.name: t for t in (*FLOATS, *QUANTISED)}
BY_ID = {t.id: t for t in (*FLOATS, *QUANTISED)}


def qtype(name: str) -> QType:
    """The type called `name` (lower case). Raises UsageError when there is none."""
    if name not in BY_NAME:
        raise UsageError("no such type", found=name, expected=" ".join(sorted(BY_NAME)))
    return BY_NAME[name]
