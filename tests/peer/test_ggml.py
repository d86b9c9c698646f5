"""Our bytes against ggml itself: the quantiser inside the xllamacpp package, called row by row."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
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
def test_random_rows_give_ggmls_bytes(name: str) -> None:
    """Rows of weights, with outliers, with zeros and far from zero, with and without importance."""
    rng = np.random.default_rng(17)
    x = np.concatenate([
        rng.standard_t(4, (24, 1024)) * 0.05,
        rng.standard_normal((8, 1024)) * (rng.random((8, 1024)) < 0.1),
        rng.standard_normal((8, 1024)) + 3,
        rng.standard_normal((8, 1024)) * np.repeat(np.exp2(rng.integers(-20, 10, (8, 64))), 16, axis=1),
    ]).astype(np.float32)  # fmt: skip
    importance = rng.exponential(1, 1024).astype(np.float32)
    importance[::5] = 0

    np.testing.assert_array_equal(ggml_blocks(x, name, None), quantize_rows(x, name))
    np.testing.assert_array_equal(
        ggml_blocks(x, name, importance), quantize_rows(x, name, importance)
    )
