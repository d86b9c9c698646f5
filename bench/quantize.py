r"""dflash-quantize against a plain file copy and llama-quantize, scheme by scheme: wall time and peak memory.

    python bench/quantize.py dflash-Bench-BF16.gguf --work /tmp/big/out [--schemes q8_0,q4-mix,q2_k,q4_k_m,q6_k] \
        [--llama-quantize PATH] [--threads 2] [--repeat 3] [--cold] [--json quantize.json]

Scheme by scheme, alternating: the copies, ours, and llama-quantize's of the same name. Our output and the copies end with
fsync, llama-quantize's is synced by `sync`. Then the two files are compared, every tensor's type and bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import measure
import numpy as np
from dflash_gguf.convert.gguf import read_gguf

PEER_NAMES = {
    "q8_0": "Q8_0", "q2_k": "Q2_K", "q3_k_m": "Q3_K_M", "q4_k_m": "Q4_K_M", "q5_k_m": "Q5_K_M", "q6_k": "Q6_K",
}  # fmt: skip
"""Our schemes that copy llama-quantize's choice of types, and what it calls them."""


def cases_for(args: argparse.Namespace, scheme: str) -> dict[str, list[str]]:
    """The commands to compare, by name; each writes a file of its own into the work folder."""
    cases = measure.copies(args.model, args.work / "copy.gguf")
    cases[f"dflash-quantize {scheme}"] = [
        measure.command("dflash-quantize"), str(args.model), str(args.work / "ours.gguf"), "--scheme", scheme,
        "--threads", str(args.threads), "--quiet", "--overwrite",
    ]  # fmt: skip
    if args.llama_quantize and scheme in PEER_NAMES:
        line = '"$0" "$1" "$2" "$3" "$4" && sync "$2"'
        cases[f"llama-quantize {PEER_NAMES[scheme]}"] = [
            "sh", "-c", line, str(args.llama_quantize), str(args.model), str(args.work / "theirs.gguf"), PEER_NAMES[scheme],
            str(args.threads),
        ]  # fmt: skip
    return cases


def differing_tensors(ours: Path, theirs: Path) -> list[str]:
    """Names of the tensors whose type, shape or bytes differ between two GGUFs, or that only one has."""
    a, b = (read_gguf(path).tensors for path in (ours, theirs))
    raw_a, raw_b = (np.memmap(path, np.uint8, "r") for path in (ours, theirs))

    def same(name: str) -> bool:
        if (
            name not in a
            or name not in b
            or (a[name].type, a[name].shape) != (b[name].type, b[name].shape)
        ):
            return False
        t, u = a[name], b[name]
        return np.array_equal(
            raw_a[t.offset : t.offset + t.nbytes], raw_b[u.offset : u.offset + u.nbytes]
        )

    return [name for name in {**a, **b} if not same(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="canonical GGUF in BF16")
    parser.add_argument(
        "--work", type=Path, required=True, help="outputs go here, on the disk to measure"
    )
    parser.add_argument("--schemes", default="q8_0,q4-mix")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--llama-quantize", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    args.work.mkdir(parents=True, exist_ok=True)
    outputs = [args.work / name for name in ("copy.gguf", "ours.gguf", "theirs.gguf")]

    def before() -> None:
        outputs[0].unlink(missing_ok=True)
        (measure.evict if args.cold else measure.warm)([args.model])

    rows, compared = [], {}
    size = args.model.stat().st_size
    print(
        f"source {size:,} bytes, {'cold' if args.cold else 'warm'}, {args.threads} threads, fsync included"
    )
    for scheme in args.schemes.split(","):
        for path in outputs:
            path.unlink(missing_ok=True)  # of a run that was killed
        runs = measure.alternate(cases_for(args, scheme), args.repeat, before)
        rows += measure.report(runs, "python copy")
        measure.print_report(rows[-len(runs) :], "python copy")
        if outputs[2].exists():
            compared[scheme] = differing_tensors(outputs[1], outputs[2])
            print(
                f"tensors that differ from llama-quantize's: {len(compared[scheme])} {compared[scheme][:3]}"
            )
        for path in (*outputs, outputs[1].with_suffix(".manifest.json")):
            path.unlink(missing_ok=True)
    measure.save(
        args.json,
        {
            "bench": "quantize",
            "cold": args.cold,
            "bytes": size,
            "threads": args.threads,
            "rows": rows,
            "differing_tensors": compared,
        },
    )


if __name__ == "__main__":
    main()
