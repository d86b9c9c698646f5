"""Our bytes against ggml itself: the quantiser inside the xllamacpp package, called row by row."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import weights
import xllamacpp
from dflash_gguf.quantize import quantize_rows
from dflash_gguf.quantize.qtypes import BY_NAME, QUANTISED


@cache
def ggml() -> ctypes.CDLL:
    """The library, if it exports its quantiser."""
    library = ctypes.CDLL(
        next(str(p) for p in Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))
    )
    if not hasattr(library, "ggml_quantize_chunk"):
        pytest.skip("this build of xllamacpp does not export ggml_quantize_chunk")
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    return library


def ggml_blocks(x: npt.NDArray[np.float32], name: str, importance: Any) -> npt.NDArray[np.uint8]:
    """ggml's blocks of the rows x."""
    kind = BY_NAME[name]
    out = np.zeros((x.shape[0], kind.row_bytes(x.shape[1])), np.uint8)
    weights = None if importance is None else importance.ctypes.data
    written = ggml().ggml_quantize_chunk(
        kind.id, x.ctypes.data, out.ctypes.data, 0, *x.shape, weights
    )
    assert out.size == written
    return out


@pytest.mark.parametrize("name", [t.name for t in QUANTISED])
def test_10000_rows_give_ggmls_bytes(name: str) -> None:
    """Rows of every kind, adversarial ones too, with and without importance, and 3000 with half of it zero and of a tiny scale."""
    x = weights.rows(17, 10_000, 256)
    rng = np.random.default_rng(18)
    importance = rng.exponential(1, 256).astype(np.float32)
    sparse = np.where(rng.random(256) < 0.5, 0, importance * np.float32(1e-12)).astype(np.float32)

    for array, vector in ((x, None), (x, importance), (x[:3000], sparse)):
        np.testing.assert_array_equal(
            ggml_blocks(array, name, vector), quantize_rows(array, name, vector)
        )


@pytest.mark.parametrize("name", [t.name for t in QUANTISED])
def test_long_rows_give_ggmls_bytes(name: str) -> None:
    """Where a row is longer than a piece of ours and its mean square takes part: with and without importance."""
    x = weights.rows(19, 42, 5120)
    importance = np.random.default_rng(20).exponential(1, 5120).astype(np.float32)

    for vector in (None, importance):
        np.testing.assert_array_equal(ggml_blocks(x, name, vector), quantize_rows(x, name, vector))
