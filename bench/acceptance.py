r"""Every scheme on both drafts of the example pair: size, acceptance and mean length by domain, verdict.

    python bench/acceptance.py --work DIR --json bench/results/acceptance.json
    python bench/acceptance_plot.py bench/results/acceptance.json docs/img/acceptance.png

The schemes are those of quantize/schemes.toml and the files in bench/schemes/ (one whose name starts with `v1-` or
`v2-` is for that draft alone). Most run twice: without and with an importance matrix, which is collected on the prompts
of `pair-calibration`; what is measured is measured on the prompts of `pair`. Every file is judged against the
recorded reference of its draft.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import measure
from dflash_gguf.quantize.schemes import packaged

ROOT = Path(__file__).resolve().parent.parent
PAIR = ROOT / "examples" / "pair"
TARGET = PAIR / "Pair-Target-BF16.gguf"
DRAFTS = ("v1", "v2")
UNWEIGHTED = {"q8_0", "lucebox-q4"}
"""Q8_0 has no search, and Lucebox takes no importance matrix."""


def ask(program: str, *words: object) -> dict[str, Any]:
    """The JSON of one of our commands. Raises RuntimeError where it could not run (a verdict of 4 is an answer)."""
    command = [measure.command(program), *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stdout}")
    return json.loads(done.stdout)


def schemes(draft: str) -> dict[str, str]:
    """What `--scheme` is given, by name."""
    files = sorted((ROOT / "bench" / "schemes").glob("*.toml"))
    own = {
        path.stem: str(path)
        for path in files
        if path.stem[:3] not in {f"{d}-" for d in DRAFTS} - {f"{draft}-"}
    }
    return {name: name for name in packaged()} | own


def row(draft: str, name: str, path: Path, *, imatrix: bool) -> dict[str, Any]:
    """One file, measured on the prompts of `pair`."""
    record = ask(
        "dflash-validate", path, "--target", TARGET, "--prompts", "pair",
        "--reference", f"pair-{draft}",
    )  # fmt: skip
    if record["lossless"] is not True:
        raise RuntimeError(f"{path.name}: the text is not the target's own")
    measure.note(f"{draft} {name:<12} {record['mean_accepted_length']:.3f} {record['verdict']}")
    return {
        "draft": draft,
        "scheme": name,
        "imatrix": imatrix,
        "bytes": path.stat().st_size,
        "rate": record["acceptance_rate"],
        "mean": record["mean_accepted_length"],
        "domains": {d: v["mean_accepted_length"] for d, v in sorted(record["domains"].items())},
        "verdict": record["verdict"],
    }


def rows(draft: str, work: Path) -> list[dict[str, Any]]:
    """The BF16 file of one draft, then every scheme."""
    source, imatrix = work / f"{draft}-BF16.gguf", work / f"{draft}.imatrix.gguf"
    ask("dflash-convert", PAIR / f"draft-{draft}", source, "--target", TARGET, "--overwrite")
    ask(
        "dflash-validate", source, "--target", TARGET, "--prompts", "pair-calibration",
        "--collect-imatrix", imatrix, "--overwrite",
    )  # fmt: skip
    found = [row(draft, "bf16", source, imatrix=False)]
    for name, scheme in schemes(draft).items():
        for weighted in (False, True):
            if weighted and name in UNWEIGHTED:
                continue
            out = work / f"{draft}-{name}{'-imatrix' if weighted else ''}.gguf"
            importance = ["--imatrix", imatrix] if weighted else []
            ask("dflash-quantize", source, out, "--scheme", scheme, *importance, "--overwrite")
            found.append(row(draft, name, out, imatrix=weighted))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="the files go here")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    measure.save(args.json, {"rows": [r for draft in DRAFTS for r in rows(draft, args.work)]})


if __name__ == "__main__":
    main()
