r"""dflash-convert against plain file copies and llama.cpp's own converter: wall time and peak memory.

    python tools/make_checkpoint.py /tmp/big
    python bench/convert.py /tmp/big/draft --target /tmp/big/target --work /tmp/big/out \
        [--llama-cpp SOURCES --peer-python PYTHON] [--repeat 3] [--cold] [--json convert.json]

One run, alternating; every case ends with its output on the disk (fsync). The page cache holds the source (warm)
unless --cold drops it before each run. `--llama-cpp` names a folder of llama.cpp sources with
convert_hf_to_gguf.py, `--peer-python` a Python that has torch and transformers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import measure

PEER = """
import sys
sys.path.insert(0, sys.argv[1])
sys.argv = ["convert_hf_to_gguf.py", *sys.argv[2:]]
import conversion.base
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen35"
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""
"""llama.cpp's converter knows a pre-tokenizer by the ids of a test text, and cannot know a made-up vocabulary."""


def peer(args: argparse.Namespace, out: Path) -> list[str]:
    """The command line of llama.cpp's converter, its output synced as ours is."""
    return [
        "sh", "-c", '"$@" && sync "$0"', str(out), args.peer_python, "-c", PEER, str(args.llama_cpp), str(args.checkpoint), "--outtype", "bf16",
        "--outfile", str(out), "--target-model-dir", str(args.target),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "checkpoint", type=Path, help="folder with config.json and model.safetensors"
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument(
        "--work", type=Path, required=True, help="outputs go here, on the disk to measure"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    args.work.mkdir(parents=True, exist_ok=True)
    source, out = args.checkpoint / "model.safetensors", args.work / "dflash-Bench-BF16.gguf"
    cases = measure.copies(source, out)
    convert = [measure.command("dflash-convert"), str(args.checkpoint), str(out)]
    cases["dflash-convert"] = [*convert, "--target", str(args.target), "--quiet"]
    if args.llama_cpp:
        cases["llama.cpp's converter"] = peer(args, out)

    def before() -> None:
        for left in args.work.glob(out.name.removesuffix(".gguf") + "*"):
            left.unlink()
        (measure.evict if args.cold else measure.warm)([source])

    rows = measure.report(measure.alternate(cases, args.repeat, before), "python copy")
    print(
        f"source {source.stat().st_size:,} bytes, {'cold' if args.cold else 'warm'}, fsync included"
    )
    measure.print_report(rows, "python copy")
    measure.save(
        args.json,
        {"bench": "convert", "cold": args.cold, "bytes": source.stat().st_size, "rows": rows},
    )
    before()


if __name__ == "__main__":
    main()
