"""The K-quant library gives ggml's bytes, on every path, and refuses what it cannot take."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from dflash_gguf import _native
from dflash_gguf.convert.errors import InputError, UsageError
from dflash_gguf.convert.ggml import fit_row
from dflash_gguf.quantize import dequantize_rows, quantize_rows
from dflash_gguf.quantize.native import usable_isas
from dflash_gguf.quantize.qtypes import BY_ID, BY_NAME, FLOATS, QUANTISED
from hypothesis import given, settings
from hypothesis import strategies as st
from weights import rows

GOLDEN = Path(__file__).parent / "golden"
TYPES = [t.name for t in QUANTISED]
ISAS = usable_isas()
Floats = npt.NDArray[np.float32]


@cache
def golden() -> dict[str, npt.NDArray[Any]]:
    with np.load(GOLDEN / "kquant.npz") as data:
        return dict(data)


@cache
def published() -> dict[str, dict[str, Any]]:
    return json.loads((GOLDEN / "hashes.json").read_text())


@cache
def generated() -> tuple[Floats, Floats]:
    """A matrix and an importance vector that a 32-bit generator defines exactly, bit for bit."""

    def stream(seed: int, n: int) -> npt.NDArray[np.int64]:
        values = []
        for _ in range(n):
            seed = (seed * 1664525 + 1013904223) % 2**32
            values.append(seed >> 8)
        return np.array(values)

    v = ((stream(12345, 6 * 512) - 8388608) * 2.0**-23).astype(np.float32).reshape(6, 512)
    x = v * v * v
    x[1, (np.arange(512) // 16) % 3 == 1] = 0
    x[2] = np.abs(x[2])
    x[3, 100] *= 64
    x[4] = 0
    return x, ((stream(777, 512) + 1) * 2.0**-24).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_blocks_equal_ggmls_golden_bytes(name: str, isa: str) -> None:
    """Every golden row gives ggml's bytes, with and without importance, on every instruction set."""
    g = golden()

    np.testing.assert_array_equal(g[name], quantize_rows(g["x"], name, isa=isa))
    np.testing.assert_array_equal(
        g[f"{name}_imatrix"], quantize_rows(g["x"], name, g["imatrix"], isa=isa)
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_blocks_of_the_generated_matrix_have_the_published_hash(name: str, isa: str) -> None:
    """A second matrix, defined by a generator, gives the published SHA-256."""
    x, importance = generated()

    found = [
        hashlib.sha256(quantize_rows(x, name, w, isa=isa).tobytes()).hexdigest()
        for w in (None, importance)
    ]

    assert published()["sha256"][name] == found


@pytest.mark.parametrize("name", TYPES)
def test_dequantised_weights_equal_ggmls_bit_for_bit(name: str) -> None:
    """Dequantising golden blocks gives ggml's floats, sign of zero included."""
    g = golden()

    assert g[f"{name}_dequant"].tobytes() == dequantize_rows(g[name], name, 512).tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_an_all_zero_row_has_the_published_bytes(name: str, isa: str) -> None:
    """Zero rows give ggml's bytes, minus zeros and all, and decode to zero."""
    x, cols = np.zeros((1, 256), np.float32), 256
    ones = np.ones(cols, np.float32)
    count = 256 // BY_NAME[name].block_weights

    found = [quantize_rows(x, name, w, isa=isa) for w in (None, ones)]

    assert [h * count for h in published()["zero_block"][name]] == [
        b.tobytes().hex() for b in found
    ]
    assert not dequantize_rows(found[0], name, cols).any()


@pytest.mark.parametrize("isa", ISAS)
def test_q8_0_rounds_ties_away_from_zero_and_not_just_below(isa: str) -> None:
    """0.49999997 goes to 0, halves go away from zero, minus zero to 0: floor(x + 0.5) fails here."""
    x = np.zeros((1, 32), np.float32)
    x[0, :8] = [127, 0.5, -0.5, 1.5, -1.5, 2.5, 0.49999997, -0.0]

    found = quantize_rows(x, "q8_0", isa=isa).tobytes().hex()

    assert "003c7f01ff02fe0300" + "00" * 25 == found


@pytest.mark.parametrize("isa", ISAS)
def test_q4_0_takes_the_first_of_two_equal_extremes(isa: str) -> None:
    """The sign of d follows the first weight of largest magnitude."""
    x = np.zeros((2, 32), np.float32)
    x[:, :6] = [[-4, 4, 1, -1, 0.5, -0.5], [4, -4, 1, -1, 0.5, -0.5]]

    found = [b.tobytes().hex() for b in quantize_rows(x, "q4_0", isa=isa)]

    assert ["0038808f8a868987" + "88" * 10, "00b8808f868a8789" + "88" * 10] == found


@pytest.mark.parametrize("name", TYPES)
def test_vector_paths_equal_the_scalar_twin_on_10000_random_rows(name: str) -> None:
    """Rows of every kind, with and without importance (half of it zero, of any scale), give the twin's bytes."""
    x = rows(7, 10_000, 256)
    rng = np.random.default_rng(8)
    importance = rng.exponential(1, 256).astype(np.float32)
    sparse = np.where(rng.random(256) < 0.5, 0, importance * np.float32(1e-12)).astype(np.float32)
    sparse[64:160] = 0

    for array, weights in ((x, None), (x[:3000], importance), (x[3000:6000], sparse)):
        wanted = quantize_rows(array, name, weights, isa="scalar")
        for isa in ISAS[1:]:
            np.testing.assert_array_equal(wanted, quantize_rows(array, name, weights, isa=isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["q4_1", "q5_1"])
def test_a_weight_too_far_away_to_round_gets_the_lowest_code(name: str, isa: str) -> None:
    """Unimportant and 1e19 steps below the others: capped before rounding, on every path (a fuzzer's finding)."""
    x = np.full((1, 32), 9.3e-15, np.float32)
    x[0, [20, 23]] = [4e-5, -7.4e14]
    importance = np.full(32, 1e-14, np.float32)
    importance[23] = 0

    found = quantize_rows(x, name, importance, isa=isa)

    assert 0 == found[0, -16 + 7] >> 4
    np.testing.assert_array_equal(quantize_rows(x, name, importance, isa="scalar"), found)


@pytest.mark.parametrize("cols", [256, 768, 2048, 2304, 5120])
@pytest.mark.parametrize("name", TYPES)
def test_bytes_do_not_depend_on_the_length_of_the_row(name: str, cols: int) -> None:
    """A row is its blocks: odd numbers of super-blocks and rows longer than a piece change nothing."""
    x = rows(11, 2, cols)
    bytes_256 = BY_NAME[name].row_bytes(256)

    found = quantize_rows(x, name).reshape(-1, bytes_256)

    np.testing.assert_array_equal(quantize_rows(x.reshape(-1, 256), name, isa="scalar"), found)


@pytest.mark.parametrize("name", TYPES)
def test_16_bit_rows_give_the_bytes_of_their_float32_values(name: str) -> None:
    """F16 and BF16 rows are widened exactly, then quantised."""
    x = rows(13, 8, 2304)
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    half[~np.isfinite(half)] = 1  # 1e30 does not fit
    bf16 = (x.view(np.uint32) >> 16).astype(np.uint16)
    importance = np.linspace(0, 2, 2304, dtype=np.float32)

    for weights in (None, importance):
        np.testing.assert_array_equal(
            quantize_rows(half.astype(np.float32), name, weights),
            quantize_rows(half, name, weights),
        )
        wide = (bf16.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(
            quantize_rows(wide, name, weights), quantize_rows(bf16, name, weights)
        )


@pytest.mark.parametrize("name", TYPES)
def test_any_bytes_dequantise_as_gguf_reads_them(name: str) -> None:
    """Random blocks decode to the floats of the gguf package, an independent decoder."""
    kind = BY_NAME[name]
    blocks = np.random.default_rng(3).integers(0, 256, (4, kind.row_bytes(512)), dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        wanted = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(kind.id))

    found = dequantize_rows(blocks, name, 512)

    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(wanted[finite], found[finite])
    np.testing.assert_array_equal(finite, np.isfinite(found))


@pytest.mark.parametrize("name", TYPES)
def test_error_stays_within_what_the_type_can_hold(name: str) -> None:
    """Relative error on normal rows lies in a band: too large is a fault, too small cannot be true."""
    x = np.random.default_rng(5).standard_normal((16, 512)).astype(np.float32)
    bands = {
        "q8_0": (0.004, 0.006), "q6_k": (0.015, 0.02), "q5_0": (0.03, 0.05), "q5_1": (0.025, 0.04),
        "q5_k": (0.03, 0.04), "q4_0": (0.07, 0.1), "q4_1": (0.06, 0.085), "q4_k": (0.06, 0.08),
        "iq4_nl": (0.06, 0.09), "iq4_xs": (0.06, 0.09), "q3_k": (0.12, 0.18), "q2_k": (0.24, 0.34),
    }  # fmt: skip

    y = dequantize_rows(quantize_rows(x, name), name, 512)

    low, high = bands[name]
    assert low < np.sqrt(((x - y) ** 2).sum() / (x**2).sum()) < high


@pytest.mark.parametrize("name", [t.name for t in QUANTISED if t.searches])
def test_importance_moves_the_error_to_where_it_matters_less(name: str) -> None:
    """The importance-weighted error falls against quantising without importance."""
    x = np.random.default_rng(6).standard_normal((16, 512)).astype(np.float32)
    importance = np.exp(np.random.default_rng(7).standard_normal(512) * 2).astype(np.float32)

    def weighted_error(w: Floats | None) -> float:
        y = dequantize_rows(quantize_rows(x, name, w), name, 512)
        return float((importance * (x - y) ** 2).sum())

    assert weighted_error(importance) < weighted_error(None)


@pytest.mark.parametrize("name", TYPES)
def test_importance_of_only_zeros_counts_as_absent(name: str) -> None:
    """An all-zero vector would collapse whole blocks to zero; it says nothing, so it is not used."""
    x = golden()["x"]

    found = quantize_rows(x, name, np.zeros(512, np.float32))

    np.testing.assert_array_equal(golden()[name], found)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_weight_that_is_not_finite_is_refused_by_row_and_column(dtype: str, bad: float) -> None:
    """NaN and infinity are named where they stand, in every source type."""
    x = np.zeros((3, 4096), np.float32)
    x[1, 4093] = bad
    array = {
        "f32": x,
        "f16": x.astype(np.float16),
        "bf16": (x.view(np.uint32) >> 16).astype(np.uint16),
    }[dtype]

    with pytest.raises(InputError) as caught:
        quantize_rows(array, "q4_k")

    assert "row 1, column 4093" == caught.value.where


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_importance_that_is_negative_or_not_finite_is_refused_by_column(bad: float) -> None:
    """The first bad column is named."""
    importance = np.ones(512, np.float32)
    importance[77] = bad

    with pytest.raises(InputError) as caught:
        quantize_rows(golden()["x"], "q4_k", importance)

    assert "column 77" == caught.value.where


X = np.zeros((2, 512), np.float32)
BAD_CALLS = {
    "unknown type": lambda: quantize_rows(X, "q9_k"),
    "upper case": lambda: quantize_rows(X, "Q4_K"),
    "float type": lambda: quantize_rows(X, "f16"),
    "float64": lambda: quantize_rows(X.astype(np.float64), "q8_0"),
    "one dimension": lambda: quantize_rows(X[0], "q8_0"),
    "transposed": lambda: quantize_rows(X.T, "q8_0"),
    "sliced columns": lambda: quantize_rows(X[:, ::2], "q8_0"),
    "list": lambda: quantize_rows([[0.0] * 32], "q8_0"),
    "96 columns for a K-quant": lambda: quantize_rows(np.zeros((1, 96), np.float32), "q2_k"),
    "172 columns": lambda: quantize_rows(np.zeros((1, 172), np.float32), "q8_0"),
    "no columns": lambda: quantize_rows(np.zeros((1, 0), np.float32), "q8_0"),
    "importance of a row's length but float64": lambda: quantize_rows(X, "q4_k", np.ones(512)),
    "importance too short": lambda: quantize_rows(X, "q4_k", np.ones(511, np.float32)),
    "importance of the matrix's shape": lambda: quantize_rows(X, "q4_k", np.ones((2, 512), np.float32)),
    "unknown instruction set": lambda: quantize_rows(X, "q4_k", isa="neon"),
    "blocks too long": lambda: dequantize_rows(np.zeros((1, 85), np.uint8), "q2_k", 256),
    "blocks too short": lambda: dequantize_rows(np.zeros((1, 83), np.uint8), "q2_k", 256),
    "blocks not bytes": lambda: dequantize_rows(np.zeros((1, 84), np.int8), "q2_k", 256),
    "blocks flat": lambda: dequantize_rows(np.zeros(84, np.uint8), "q2_k", 256),
    "columns that do not divide": lambda: dequantize_rows(np.zeros((1, 84), np.uint8), "q2_k", 255),
    "negative columns": lambda: dequantize_rows(np.zeros((1, 84), np.uint8), "q2_k", -256),
}  # fmt: skip


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_a_wrong_argument_is_refused_before_any_work(call: Any) -> None:
    """Dtype, shape, layout, names and divisibility are checked."""
    with pytest.raises(UsageError):
        call()


def test_no_rows_give_no_blocks() -> None:
    """An empty matrix is legal and stays empty."""
    assert (0, 84) == quantize_rows(np.zeros((0, 256), np.float32), "q2_k").shape
    assert (0, 256) == dequantize_rows(np.zeros((0, 84), np.uint8), "q2_k", 256).shape


@pytest.mark.parametrize("kind", [*QUANTISED, *FLOATS], ids=lambda t: t.name)
def test_the_table_in_python_agrees_with_the_one_in_c(kind: Any) -> None:
    """Block length, block bytes (a sum of fields) and ggml's number are the same on both sides."""
    wanted = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.name.upper()]]

    assert wanted == (kind.block_weights, kind.block_bytes)
    assert wanted == (_native.kq_block_weights(kind.id), _native.kq_block_bytes(kind.id))
    assert gguf.GGMLQuantizationType[kind.name.upper()] == kind.id


@given(
    type_id=st.integers(-5, 300),
    rows=st.integers(0, 2**63),
    cols=st.integers(0, 2**63),
    n=st.integers(0, 600),
)
@settings(max_examples=300, deadline=None)
def test_the_native_door_never_trusts_a_size(type_id: int, rows: int, cols: int, n: int) -> None:
    """Sizes that do not match the buffers, overflow or do not divide raise; none reaches the kernels."""
    x, blocks = np.zeros(4 * n, np.uint8), np.zeros(n, np.uint8)
    kind = BY_ID.get(type_id)

    try:
        _native.kq_quantize(type_id, 0, x, rows, cols, None, blocks, 0)
    except (ValueError, TypeError, OverflowError):
        return

    assert kind is not None
    assert n == rows * cols
    assert n == rows * kind.row_bytes(cols)


@pytest.mark.parametrize(
    ("name", "cols", "wanted"),
    [
        ("q2_k", 256, "q2_k"), ("q2_k", 96, "q4_0"), ("q2_k", 172, "f16"), ("q3_k", 64, "q4_0"), ("q4_k", 896, "q5_0"),
        ("q4_k", 768, "q4_k"), ("q5_k", 288, "q5_1"), ("q6_k", 32, "q8_0"), ("iq4_xs", 736, "iq4_nl"), ("q8_0", 48, "f16"),
        ("q4_0", 33, "f16"), ("f16", 7, "f16"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_falls_back_as_llama_quantize_does(
    name: str, cols: int, wanted: str
) -> None:
    """The row's length decides, never an abort."""
    assert wanted == BY_ID[fit_row(BY_NAME[name].id, cols)].name
