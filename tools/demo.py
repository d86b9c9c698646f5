"""The whole line once: convert, quantise and validate the example pair, and print one table.

Runs the installed commands as a user would (each is echoed on stderr) and shows what they measured.
Exit code: 0 when every verdict is pass, otherwise the first verdict's own exit code.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAIR = ROOT / "examples" / "pair"
OUT = ROOT / "out" / "demo"
TARGET = PAIR / "Pair-Target-BF16.gguf"
PROMPTS = ROOT / "manifests" / "prompts" / "pair.jsonl"
DRAFTS = {"v1": "DFlash v1", "v2": "DFlash 2"}
SCHEMES = {"BF16": None, "Q8_0": "q8_0", "Q4_MIX": "q4-mix"}


def run(*command: object) -> dict:
    """Run one of our commands and give back its JSON; stop with its exit code where it could not run."""
    words = [str(word) for word in command]
    shown = [str(Path(w).relative_to(ROOT)) if w.startswith(str(ROOT)) else w for w in words]
    print("$", shlex.join(shown), file=sys.stderr, flush=True)
    program = Path(sys.executable).parent / words[0]
    done = subprocess.run(
        [program, *words[1:], "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 4):  # 4 is a verdict, and belongs into the table
        print(done.stdout, file=sys.stderr)
        sys.exit(done.returncode)
    return json.loads(done.stdout) | {"exit_code": done.returncode}


def rows() -> list[dict]:
    """Convert, quantise and validate both drafts; one row a file."""
    found = []
    for name, title in DRAFTS.items():
        source = OUT / f"dflash-Pair-{name}-BF16.gguf"
        run("dflash-convert", PAIR / f"draft-{name}", source, "--target", TARGET, "--overwrite")
        for label, scheme in SCHEMES.items():
            draft = OUT / f"dflash-Pair-{name}-{label}.gguf"
            if scheme:
                run("dflash-quantize", source, draft, "--scheme", scheme, "--overwrite")
            record = run(
                "dflash-validate", draft, "--target", TARGET, "--prompts", PROMPTS,
                "--reference", ROOT / "manifests" / "references" / f"pair-{name}.json",
            )  # fmt: skip
            found.append(
                {"draft": title, "file": label, "bytes": draft.stat().st_size, "record": record}
            )
    return found


def table(found: list[dict]) -> str:
    """The rows as text: size, acceptance, mean length by domain, speed-up over no draft, verdict."""
    domains = sorted(found[0]["record"]["domains"])
    head = [
        "draft",
        "file",
        "size",
        "accepted",
        *(f"len {d}" for d in domains),
        "len all",
        "speed-up",
        "verdict",
    ]
    lines = [head]
    for row in found:
        record = row["record"]
        lengths = [f"{record['domains'][d]['mean_accepted_length']:.2f}" for d in domains]
        lines.append([
            row["draft"], row["file"], f"{row['bytes'] / 2**20:.2f} MiB", f"{record['acceptance_rate']:.1%}", *lengths,
            f"{record['mean_accepted_length']:.2f}", f"{record['speed_up']:.2f}x", record["verdict"],
        ])  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> int:
    """Run the line and print the table; the worst verdict is the exit code."""
    OUT.mkdir(parents=True, exist_ok=True)
    found = rows()
    print(table(found))
    return max(row["record"]["exit_code"] for row in found)


if __name__ == "__main__":
    sys.exit(main())
