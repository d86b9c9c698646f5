r"""dflash-quantize against a plain file copy and llama-quantize, scheme by scheme: wall time and peak memory.

    python bench/quantize.py dflash-Bench-BF16.gguf --work /tmp/big/out [--schemes q8_0,q4-mix,q2_k,q4_k_m,q6_k] \
        [--llama-quantize PATH] [--threads 2] [--repeat 3] [--cold] [--json quantize.json]

One run, alternating; our output and the copies end with fsync, llama-quantize's is synced by `sync`. A scheme of
llama-quantize's runs beside ours of the same name.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import measure

PEER_NAMES = {
    "q8_0": "Q8_0", "q2_k": "Q2_K", "q3_k_m": "Q3_K_M", "q4_k_m": "Q4_K_M", "q5_k_m": "Q5_K_M", "q6_k": "Q6_K",
}  # fmt: skip
"""Our schemes that copy llama-quantize's choice of types, and what it calls them."""


def cases_for(args: argparse.Namespace, out: Path) -> dict[str, list[str]]:
    """The commands to compare, by name."""
    cases = measure.copies(args.model, out)
    for scheme in args.schemes.split(","):
        cases[f"dflash-quantize {scheme}"] = [
            measure.command("dflash-quantize"), str(args.model), str(out), "--scheme", scheme,
            "--threads", str(args.threads), "--quiet",
        ]  # fmt: skip
        if args.llama_quantize and scheme in PEER_NAMES:
            line = '"$0" "$1" "$2" "$3" "$4" && sync "$2"'
            cases[f"llama-quantize {PEER_NAMES[scheme]}"] = [
                "sh", "-c", line, str(args.llama_quantize), str(args.model), str(out), PEER_NAMES[scheme],
                str(args.threads),
            ]  # fmt: skip
    return cases


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
    out = args.work / "dflash-Bench-OUT.gguf"

    def before() -> None:
        for left in args.work.glob(out.name.removesuffix(".gguf") + "*"):
            left.unlink()
        (measure.evict if args.cold else measure.warm)([args.model])

    runs = measure.alternate(cases_for(args, out), args.repeat, before)
    rows = measure.report(runs, "python copy")
    size = args.model.stat().st_size
    print(
        f"source {size:,} bytes, {'cold' if args.cold else 'warm'}, {args.threads} threads, fsync included"
    )
    measure.print_report(rows, "python copy")
    measure.save(
        args.json,
        {
            "bench": "quantize",
            "cold": args.cold,
            "bytes": size,
            "threads": args.threads,
            "rows": rows,
        },
    )
    before()


if __name__ == "__main__":
    main()
