"""The kernels of csrc/kquant alone: nanoseconds of one core for a weight, beside ggml's own quantiser.

    python bench/kquant.py [--seconds 0.5] [--types q4_k,q6_k] [--isa auto] [--json kquant.json]

BF16 rows of 5120 normal weights, one chunk of `dflash-quantize` (1 MiB) at a time, so that everything stays in the cache: what is left is
instructions. The least of many calls, in CPU time of the calling thread. ggml is the library inside the xllamacpp package, whose
quantiser is called with the same rows as F32 (it takes nothing else).
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import measure
import numpy as np
import xllamacpp
from dflash_gguf import _native
from dflash_gguf.quantize.native import ISAS
from dflash_gguf.quantize.qtypes import BY_NAME, QUANTISED

COLS, ROWS = 5120, 102
"""A row of the 27B draft, and as many as a chunk has."""


def nanoseconds(seconds: float, call: Callable[..., object], *args: object) -> float:
    """The least CPU time of one call, for a weight, over about `seconds`."""
    least, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.thread_time_ns()
        call(*args)
        least = min(least, time.thread_time_ns() - start)
    return least / (ROWS * COLS)


def ggml_quantizer() -> Callable[..., int]:
    """The function `ggml_quantize_chunk` of ggml."""
    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
    chunk = library.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    return chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    parser.add_argument("--types", default=",".join(t.name for t in QUANTISED))
    parser.add_argument("--isa", default="auto", choices=ISAS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    x = np.random.default_rng(1).standard_normal((ROWS, COLS)).astype(np.float32) * np.float32(0.02)
    x.view(np.uint32)[...] &= 0xFFFF0000
    raw = (x.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
    importance = np.random.default_rng(2).exponential(1, COLS).astype(np.float32)
    wide, theirs = np.empty(x.size, np.float32), ggml_quantizer()
    results = []
    print(
        f"{'ns a weight':<12} {'plain':>8} {'ggml':>8} {'ratio':>6}   {'weighted':>8} {'ggml':>8} {'ratio':>6}   {'decode':>6} {'measure':>7}"
    )
    for name in args.types.split(","):
        kind = BY_NAME[name]
        blocks, peer = (np.empty(ROWS * kind.row_bytes(COLS), np.uint8) for _ in range(2))
        row: dict[str, float] = {}
        bf16, isa = BY_NAME["bf16"].id, ISAS[args.isa]
        for case, weights in (("plain", None), ("weighted", importance)):
            row[case] = nanoseconds(
                args.seconds,
                _native.kq_quantize,
                kind.id,
                bf16,
                raw,
                ROWS,
                COLS,
                weights,
                blocks,
                isa,
            )
            at = None if weights is None else weights.ctypes.data
            row[f"{case} ggml"] = nanoseconds(
                args.seconds, theirs, kind.id, x.ctypes.data, peer.ctypes.data, 0, ROWS, COLS, at
            )
            assert (blocks == peer).all(), f"{name} {case}: the bytes differ"
        row["decode"] = nanoseconds(
            args.seconds, _native.kq_dequantize, kind.id, blocks, ROWS, COLS, wide
        )
        row["measure"] = nanoseconds(
            args.seconds, _native.kq_measure, kind.id, bf16, raw, blocks, ROWS, COLS
        )
        print(
            f"{name:<12} {row['plain']:8.3f} {row['plain ggml']:8.2f} {row['plain ggml'] / row['plain']:6.1f}   "
            f"{row['weighted']:8.3f} {row['weighted ggml']:8.2f} {row['weighted ggml'] / row['weighted']:6.1f}   "
            f"{row['decode']:6.3f} {row['measure']:7.3f}"
        )
        results.append({"name": name, "nanoseconds": row})
    measure.save(args.json, {"bench": "kquant", "isa": args.isa, "rows": results})


if __name__ == "__main__":
    main()
