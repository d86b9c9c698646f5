"""The figures of bench/acceptance.py as a picture and as the table of docs/quantize.md.

    python bench/acceptance_plot.py bench/results/acceptance.json docs/img/acceptance.png

Needs matplotlib (the extra `bench`). The table goes to stdout.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

TITLES = {"v1": "DFlash v1", "v2": "DFlash 2"}
RECIPES = {
    "llama-quantize": ("q8_0", "q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k"),
    "Lucebox": ("q4-mix", "lucebox-q4"),
}
COLOURS = {"llama-quantize": "#4477aa", "Lucebox": "#ccbb44", "ours": "#cc3311"}


def recipe(scheme: str) -> str:
    """Whose recipe a scheme is."""
    return next((name for name, known in RECIPES.items() if scheme in known), "ours")


def panel(axes: Any, found: list[dict[str, Any]], value: Any) -> None:
    """One draft and one figure against size; the dashed line is the BF16 file, the upper axis names the schemes."""
    axes.axhline(value(found[0]), color="0.5", linewidth=0.8, linestyle="--", zorder=1)
    for r in found[1:]:
        colour = COLOURS[recipe(r["scheme"])]
        axes.plot(
            r["bytes"] / 2**20, value(r), marker="^" if r["imatrix"] else "o", markersize=5,
            markerfacecolor=colour if r["verdict"] == "pass" else "white", markeredgecolor=colour, linestyle="none", zorder=2,
        )  # fmt: skip
    sizes = {r["scheme"]: r["bytes"] / 2**20 for r in found[1:]}
    axes.grid(visible=True, linewidth=0.3)
    axes.tick_params(labelsize=7)
    names = axes.secondary_xaxis("top")
    names.set_xticks(list(sizes.values()), list(sizes), rotation=90, fontsize=6)


def picture(found: list[dict[str, Any]], out: Path) -> None:
    """Two lines of panels a draft: acceptance rate, mean accepted length, the same by domain."""
    domains = sorted(found[0]["domains"])
    figures = {"acceptance rate": lambda r: r["rate"], "mean length, all": lambda r: r["mean"]} | {
        f"mean length, {d}": lambda r, d=d: r["domains"][d] for d in domains
    }
    figure, grid = plt.subplots(len(figures) * len(TITLES) // 3, 3, figsize=(11, 13))
    panels = [(draft, name) for draft in TITLES for name in figures]
    for axes, (draft, name) in zip(grid.flat, panels, strict=True):
        panel(axes, [r for r in found if r["draft"] == draft], figures[name])
        axes.set_xlabel(f"{TITLES[draft]}: {name}, by size in MiB", fontsize=8)
    marks = [Line2D([], [], marker="o", linestyle="none", color=c, label=n) for n, c in COLOURS.items()]  # fmt: skip
    marks += [
        Line2D([], [], marker="^", linestyle="none", color="0.4", label="with importance matrix"),
        Line2D([], [], marker="o", linestyle="none", markeredgecolor="0.4", markerfacecolor="white", label="fails the gate"),
        Line2D([], [], color="0.5", linestyle="--", label="BF16"),
    ]  # fmt: skip
    figure.legend(handles=marks, loc="lower center", ncols=len(marks), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(out, dpi=100, metadata={"Software": None})


def table(found: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    domains = sorted(found[0]["domains"])
    lines = [
        f"| draft | scheme | recipe | imatrix | bytes | rate | {' | '.join(domains)} | all | verdict |",
        "|---" * (8 + len(domains)) + "|",
    ]
    for r in found:
        lengths = " | ".join(f"{r['domains'][d]:.2f}" for d in domains)
        whose = "" if r["scheme"] == "bf16" else recipe(r["scheme"])
        lines.append(
            f"| {r['draft']} | `{r['scheme']}` | {whose} | {'yes' if r['imatrix'] else ''} | {r['bytes']:,}"
            f" | {r['rate']:.3f} | {lengths} | {r['mean']:.3f} | {r['verdict']} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    found = json.loads(args.results.read_text())["rows"]
    picture(found, args.picture)
    print(table(found))


if __name__ == "__main__":
    main()
