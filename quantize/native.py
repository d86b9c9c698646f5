"""The typed door to csrc/kquant: every argument is checked here, the kernels run without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..convert.errors import InputError, UsageError
from .qtypes import BY_NAME, QType, qtype

ISAS = {"auto": 0, "scalar": 1, "avx2": 2, "avx512": 3}
"""Names of `kq_isa`; every one gives the same bytes, "scalar" is the oracle."""

SOURCES = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(np.uint16): "bf16"}
"""Element types of rows; NumPy has no bfloat16, so its bits come as uint16."""


def usable_isas() -> tuple[str, ...]:
    """The instruction sets this machine can run, plain C first."""
    best = _native.kq_best_isa()
    return tuple(name for name, number in ISAS.items() if 0 < number <= best)


def quantize_rows(
    x: npt.NDArray[Any],
    qtype: str,
    importance: npt.NDArray[np.float32] | None = None,
    *,
    isa: str = "auto",
) -> npt.NDArray[np.uint8]:
    """The block bytes of `x`, (rows, row_bytes) uint8, equal to ggml's.

    Args:
        x: (rows, cols) float32, C-contiguous; float16, or uint16 holding bfloat16 bits, are taken too.
            cols must be a multiple of the type's block length.
        qtype: lower-case type name, such as `q4_0` or `q2_k`.
        importance: (cols,) float32, the weight of each column's squared error, or None. A vector of only
            zeros counts as None.
        isa: `auto`, `scalar`, `avx2` or `avx512`; the bytes do not depend on it.

    Raises:
        UsageError: wrong dtype, shape, memory layout, type name or instruction set, or cols does not divide.
        InputError: NaN or infinity in x (named by row and column); importance negative or not finite.

    """
    kind = quantised_type(qtype)
    source = check_rows(x)
    rows, cols = x.shape
    blocks = np.empty((rows, kind.row_bytes(cols)), np.uint8)
    refuse_nonfinite(x, source)
    weights = check_importance(importance, cols)
    _native.kq_quantize(
        kind.id, source.id, as_bytes(x), rows, cols, weights, blocks.reshape(-1), isa_number(isa)
    )
    return blocks


def dequantize_rows(
    blocks: npt.NDArray[np.uint8], qtype: str, cols: int
) -> npt.NDArray[np.float32]:
    """The weights that `blocks` stand for, (rows, cols) float32.

    Args:
        blocks: (rows, row_bytes) uint8, C-contiguous.
        qtype: lower-case type name.
        cols: weights in a row.

    Raises:
        UsageError: wrong dtype, shape or layout, unknown type, cols does not divide or does not fit row_bytes.

    """
    kind = quantised_type(qtype)
    row_bytes = kind.row_bytes(cols)
    require(
        isinstance(blocks, np.ndarray) and blocks.dtype == np.uint8, "blocks is not uint8", blocks
    )
    require(blocks.ndim == 2, "blocks is not (rows, row_bytes)", blocks)
    require(blocks.flags.c_contiguous, "blocks is not contiguous", blocks, "np.ascontiguousarray")
    require(
        blocks.shape[1] == row_bytes,
        f"a {qtype} row of {cols} weights has {row_bytes} bytes",
        blocks,
    )
    y = np.empty((blocks.shape[0], cols), np.float32)
    _native.kq_dequantize(kind.id, blocks.reshape(-1), blocks.shape[0], cols, y.reshape(-1))
    return y


def as_bytes(x: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """A contiguous array as the flat bytes it is made of, without a copy."""
    return x.reshape(-1).view(np.uint8)


def quantised_type(name: str) -> QType:
    """The quantised type called `name`. Raises UsageError for another."""
    kind = qtype(name)
    if kind.is_float:
        raise UsageError("not a quantised type", found=name)
    return kind


def isa_number(isa: str) -> int:
    """The number of an instruction set that this machine has. Raises UsageError for another."""
    if isa not in ISAS:
        raise UsageError("no such instruction set", found=isa, expected=" ".join(ISAS))
    if ISAS[isa] > _native.kq_best_isa():
        raise UsageError(
            "this machine lacks the instruction set", found=isa, expected=" ".join(usable_isas())
        )
    return ISAS[isa]


def require(ok: bool, what: str, array: object, fix: str = "") -> None:
    """Raise UsageError describing the array unless `ok`."""
    if not ok:
        shape, dtype = (
            getattr(array, "shape", "no shape"),
            getattr(array, "dtype", type(array).__name__),
        )
        raise UsageError(what, found=f"{dtype} {shape}", fix=fix)


def check_rows(x: npt.NDArray[Any]) -> QType:
    """The float type of rows. Raises UsageError when they are not a contiguous 2-D array of one."""
    require(isinstance(x, np.ndarray), "x is not an array", x)
    require(x.dtype in SOURCES, "x is not float32, float16 or bfloat16 bits in uint16", x)
    require(x.ndim == 2, "x is not (rows, cols)", x)
    require(x.flags.c_contiguous, "x is not contiguous", x, "np.ascontiguousarray(x)")
    return BY_NAME[SOURCES[x.dtype]]


def refuse_nonfinite(x: npt.NDArray[Any], source: QType) -> None:
    """Raise InputError naming row and column of the first NaN or infinity."""
    at = _native.kq_find_nonfinite(source.id, as_bytes(x))
    if at < x.size:
        row, col = divmod(at, x.shape[1])
        value = x[row, col] if source.name != "bf16" else f"bits {x[row, col]:#06x}"
        raise InputError("a weight is not finite", found=value, where=f"row {row}, column {col}")


def check_importance(
    importance: npt.NDArray[np.float32] | None, cols: int
) -> npt.NDArray[np.float32] | None:
    """The importance vector as the kernels take it; None when it says nothing.

    Raises UsageError for dtype or shape, InputError for values (named by column).
    """
    if importance is None:
        return None
    require(
        isinstance(importance, np.ndarray) and importance.dtype == np.float32,
        "importance is not float32",
        importance,
    )
    require(
        importance.shape == (cols,), f"importance is not one value a column ({cols})", importance
    )
    bad = np.flatnonzero(~(np.isfinite(importance) & (importance >= 0)))
    if bad.size:
        raise InputError(
            "importance is negative or not finite",
            found=importance[bad[0]],
            where=f"column {bad[0]}",
        )
    return np.ascontiguousarray(importance) if importance.any() else None
