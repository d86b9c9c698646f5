"""Plain float formats: every conversion equals NumPy's, losses are counted, what is not finite is found at its place."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from dflash_gguf import _native
from dflash_gguf.convert.floats import Losses, convert_floats, find_non_finite
from dflash_gguf.convert.ggml import BF16, BY_NAME, F16, F32, TYPES
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

KINDS = (F32, F16, BF16)
SCALAR, AVX2 = 1, 2
BITS = {F32: np.uint32, F16: np.uint16, BF16: np.uint16}
ALL_ONES = {F32: 0x7F800000, F16: 0x7C00, BF16: 0x7F80}
TINY = {F32: 2.0**-126, F16: 2.0**-14, BF16: 2.0**-126}


def isas() -> list[int]:
    """The instruction sets this machine has."""
    x = np.zeros(2, np.uint8)
    try:
        _native.fl_find_nonfinite(F16, x, AVX2)
    except ValueError:
        return [SCALAR]
    return [SCALAR, AVX2]


def widened(bits: NDArray[np.generic], kind: int) -> NDArray[np.float32]:
    """The values as float32, by NumPy."""
    if kind == BF16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16 if kind == F16 else np.float32).astype(np.float32)


def narrowed(values: NDArray[np.float32], kind: int) -> NDArray[np.generic]:
    """The bits of float32 values in a type, by NumPy; BF16 by the sum of halves that defines the rounding."""
    if kind == BF16:
        exact = values.astype(np.float64)
        down = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        up = ((values.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32).astype(np.float64)
        up = np.where(np.isinf(up), np.copysign(2.0**128, exact), up)
        low, high = abs(exact - down), abs(up - exact)
        odd = (values.view(np.uint32) >> 16 & 1).astype(bool)
        take_up = (high < low) | ((high == low) & odd)
        return (values.view(np.uint32) >> 16).astype(np.uint16) + take_up.astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(np.float16 if kind == F16 else np.float32).view(BITS[kind])


def finite_values(kind: int) -> NDArray[np.generic]:
    """Bits of finite values: all there are of 16 bits; of F32 every exponent, borders and random ones."""
    if kind != F32:
        bits = np.arange(1 << 16, dtype=np.uint16)
    else:
        rng = np.random.default_rng(7)
        halves = (np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] + np.array(
            [0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32
        )
        bits = np.concatenate([halves.ravel(), rng.integers(0, 1 << 32, 100_000, np.uint32)])
    return bits[(bits & ALL_ONES[kind]) != ALL_ONES[kind]]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("source", "kind"), list(product(KINDS, KINDS)))
def test_conversion_rounds_like_numpy_and_counts_what_it_loses(
    source: int, kind: int, isa: int
) -> None:
    """Every 16-bit value and F32 at every border: the bytes are NumPy's, the counts those of the values compared."""
    bits = finite_values(source)
    exact = widened(bits, source)
    expected = narrowed(exact, kind)
    out = np.empty(bits.size * TYPES[kind].size, np.uint8)

    found = _native.fl_convert(source, bits.view(np.uint8), kind, out, isa)

    assert np.array_equal(expected, out.view(BITS[kind]))
    after = widened(expected, kind)
    zero, small = after == 0, abs(after) < TINY[kind]
    counts = (np.isinf(after), zero & (exact != 0), small & ~zero & (after != exact))
    assert tuple(int(c.sum()) for c in counts) == found


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, 1023, 1024, 1025, 5000])
def test_first_value_that_is_not_finite_is_found_at_every_kind_of_place(
    kind: int, isa: int, size: int
) -> None:
    """NaN and both infinities, at the ends and at the borders of pieces; the largest finite value is none of them."""
    clean = np.full(size, ALL_ONES[kind] - 1, BITS[kind])
    assert size == _native.fl_find_nonfinite(kind, clean.view(np.uint8), isa)
    sign = np.array(1 << (8 * clean.itemsize - 1), BITS[kind])
    for at in sorted({0, size // 2, size - 1}):
        for bad in (ALL_ONES[kind], ALL_ONES[kind] + 1, ALL_ONES[kind] | int(sign)):
            x = clean.copy()
            x[at:] = bad
            assert at == _native.fl_find_nonfinite(kind, x.view(np.uint8), isa)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 40), st.integers(0, 3), st.sampled_from([(F32, F16), (BF16, F16), (F32, BF16)])
)
def test_any_length_and_start_gives_the_same_bytes(
    length: int, start: int, pair: tuple[int, int]
) -> None:
    """Neither the length nor the place in memory changes an element."""
    source, kind = pair
    bits = np.random.default_rng(length).integers(0, 1 << 14, length + start, BITS[source])
    whole, _ = convert_floats(bits.data.cast("B"), source, kind)
    part, _ = convert_floats(bits[start:].data.cast("B"), source, kind)

    assert whole[start * TYPES[kind].size :] == part


def test_losses_add_up() -> None:
    """Field by field."""
    assert Losses(5, 7, 9) == Losses(1, 2, 3) + Losses(4, 5, 6)


def test_block_whose_scale_is_not_finite_is_found() -> None:
    """The place is that of the block's first weight; a type whose scales are unknown here passes."""
    q8_0 = BY_NAME["Q8_0"]
    blocks = np.zeros((4, q8_0.size), np.uint8)
    assert find_non_finite(blocks.data.cast("B"), q8_0.id) is None
    blocks[2, 1] = 0x7C

    assert 64 == find_non_finite(blocks.data.cast("B"), q8_0.id)
    assert find_non_finite(blocks.data.cast("B"), BY_NAME["MXFP4"].id) is None


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("not a float type", lambda: _native.fl_find_nonfinite(8, np.zeros(34, np.uint8))),
        ("whole number", lambda: _native.fl_find_nonfinite(F32, np.zeros(5, np.uint8))),
        ("aligned", lambda: _native.fl_find_nonfinite(F32, np.zeros(9, np.uint8)[1:])),
        ("instruction set", lambda: _native.fl_find_nonfinite(F32, np.zeros(4, np.uint8), 9)),
        ("as many", lambda: _native.fl_convert(F32, np.zeros(8, np.uint8), F16, np.zeros(2, np.uint8))),
    ],
)  # fmt: skip
def test_what_could_reach_past_an_end_is_refused(what: str, call: object) -> None:
    """Types, sizes and alignment are checked before C sees a pointer."""
    with pytest.raises(ValueError, match=what):
        call()  # type: ignore[operator]
