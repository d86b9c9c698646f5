"""The tensor types of GGUF: id, name, and the bytes of a block as the sum of its fields.

Knows every type that a GGUF may hold today, so that a reader can check lengths. Knows nothing of how
the bits decode; that is `csrc/kquant`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InputError


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One tensor type; a row is a whole number of blocks."""

    id: int
    """Number in the file."""
    name: str
    block: int
    """Weights in a block."""
    size: int
    """Bytes of a block."""
    scales: tuple[int, ...] = ()
    """Where the F16 scales and minima of a block lie, in bytes from its start."""
    fallback: str = "F16"
    """The type llama-quantize writes instead where a row is not a whole number of blocks."""


TYPES: dict[int, GgmlType] = {
    number: GgmlType(number, name, block, size, *more)
    for number, name, block, size, *more in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 2 + 16, (0,)),
        (3, "Q4_1", 32, 2 + 2 + 16, (0, 2)),
        (6, "Q5_0", 32, 2 + 4 + 16, (0,)),
        (7, "Q5_1", 32, 2 + 2 + 4 + 16, (0, 2)),
        (8, "Q8_0", 32, 2 + 32, (0,)),
        (9, "Q8_1", 32, 4 + 4 + 32),
        (10, "Q2_K", 256, 16 + 64 + 2 + 2, (80, 82), "Q4_0"),
        (11, "Q3_K", 256, 32 + 64 + 12 + 2, (108,), "Q4_0"),
        (12, "Q4_K", 256, 2 + 2 + 12 + 128, (0, 2), "Q5_0"),
        (13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128, (0, 2), "Q5_1"),
        (14, "Q6_K", 256, 128 + 64 + 16 + 2, (208,), "Q8_0"),
        (15, "Q8_K", 256, 4 + 256 + 32),
        (16, "IQ2_XXS", 256, 2 + 64),
        (17, "IQ2_XS", 256, 2 + 64 + 8),
        (18, "IQ3_XXS", 256, 2 + 64 + 32),
        (19, "IQ1_S", 256, 2 + 32 + 16),
        (20, "IQ4_NL", 32, 2 + 16, (0,)),
        (21, "IQ3_S", 256, 2 + 64 + 8 + 32 + 4),
        (22, "IQ2_S", 256, 2 + 64 + 8 + 8),
        (23, "IQ4_XS", 256, 2 + 2 + 4 + 128, (0,), "IQ4_NL"),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 32 + 16 + 8),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 48 + 4 + 2),
        (35, "TQ2_0", 256, 64 + 2),
        (39, "MXFP4", 32, 1 + 16),
        (40, "NVFP4", 64, 4 + 32),
        (41, "Q1_0", 128, 2 + 16),
    )
}

BY_NAME: dict[str, GgmlType] = {t.name: t for t in TYPES.values()}

F32, F16, BF16, I64, Q8_0 = (BY_NAME[n].id for n in ("F32", "F16", "BF16", "I64", "Q8_0"))

FLOATS = frozenset({F32, F16, BF16})
"""Types that hold plain floats: what a converter writes and a quantiser reads."""


def type_name(type_id: int) -> str:
    """Name of a type id, `type 99` where it is not known."""
    return TYPES[type_id].name if type_id in TYPES else f"type {type_id}"


def fit_row(type_id: int, cols: int) -> int:
    """The type, or what llama-quantize writes instead where rows of `cols` weights are not whole blocks of it."""
    for kind in (TYPES[type_id], BY_NAME[TYPES[type_id].fallback]):
        if cols % kind.block == 0:
            return kind.id
    return F16


def tensor_bytes(type_id: int, shape: tuple[int, ...], where: object = "") -> int:
    """Bytes of a tensor of GGUF shape (row length first).

    Raises InputError when the type is unknown or a row is not a whole number of blocks.
    """
    kind = TYPES.get(type_id)
    if kind is None:
        raise InputError(
            "unknown tensor type", found=f"type {type_id}", where=where, expected=f"one of {sorted(TYPES)}"
        )  # fmt: skip
    if shape[0] % kind.block:
        raise InputError(
            "row is not a whole number of blocks", found=f"row of {shape[0]} {kind.name} weights",
            where=where, expected=f"a multiple of {kind.block}",
        )  # fmt: skip
    nbytes = shape[0] // kind.block * kind.size
    for dim in shape[1:]:
        nbytes *= dim
    return nbytes
