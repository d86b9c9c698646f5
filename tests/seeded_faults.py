"""Wrong readings of a draft, seeded into the oracle one at a time (spec-runtime 14, bugs.md).

Each keeps the target's text right: only acceptance can show it. `python tests/seeded_faults.py` prints the table of
docs/acceptance.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch
from dflash_gguf.runtime.gate import exact, first_mismatch, judge
from dflash_gguf.runtime.oracle import speculate
from dflash_gguf.runtime.oracle_draft import Draft, Proposal
from dflash_gguf.runtime.oracle_target import Target, Text, rms
from dflash_gguf.runtime.prompts import read_prompts
from dflash_gguf.runtime.record import PromptRun, Record, prompts_sha256, record_from_json
from dflash_gguf.runtime.tokenizer import target_ids
from torch import Tensor

Seed = Callable[[Draft], Draft]


@dataclass(frozen=True)
class Fault:
    """One wrong reading."""

    seed: Seed
    variants: tuple[str, ...] = ("v1", "v2")


def config(**change: Callable[[Any], Any]) -> Seed:
    """A draft whose config fields are each `change[name](config)`."""
    return lambda d: type(d)(
        replace(d.config, **{k: f(d.config) for k, f in change.items()}), d.weights, d.target
    )


def weights(change: Callable[[Draft, dict[str, Tensor]], dict[str, Tensor]]) -> Seed:
    """A draft with some weights replaced."""
    return lambda d: type(d)(d.config, d.weights | change(d, d.weights), d.target)


def method(**methods: Callable[..., Any]) -> Seed:
    """A draft with methods replaced; each gets the right draft's class as `self`."""
    kind = type("FaultyDraft", (Draft,), methods)
    return lambda d: kind(d.config, d.weights, d.target)


def layer_ids(step: int) -> Seed:
    return config(target_layer_ids=lambda c: tuple(i + step for i in c.target_layer_ids))


def fc_reversed(d: Draft, w: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = w["fc.weight"].unflatten(1, (len(d.config.target_layer_ids), -1))
    return {"fc.weight": parts.flip(1).flatten(1)}


def without_hidden_norm(self: Draft, features: Tensor) -> Tensor:
    return self.linear(features, "fc")


def normed_context(self: Draft, layer: int, g: Tensor) -> Tensor:
    return self.norm(g, f"layers.{layer}.input_layernorm")


def target_norm_again(self: Draft, z: Tensor) -> Tensor:
    return Draft.logits(self, rms(z, self.target.weights["model.norm.weight"], self.config.eps))


def bf16_features(self: Draft, features: Tensor) -> Tensor:
    return Draft.fuse(self, features.bfloat16().float())


def late_features(self: Draft, features: Tensor) -> None:
    held = getattr(self, "held", features[:1]) if self.committed else features[:1]
    self.held = features[-1:]
    Draft.extend(self, torch.cat([held, features[:-1]]))


def anchored_window(self: Draft, layer: int) -> Tensor:
    seen, c, config = Draft.visible(self, layer), self.committed, self.config
    if config.sliding[layer]:
        seen[:, :c] = torch.arange(c) >= c - config.window
    return seen


def without_last_row(self: Draft, layer: int) -> Tensor:
    seen = Draft.visible(self, layer)
    seen[:, self.committed - 1] = False
    return seen


def shrunk_context(self: Draft, layer: int) -> Tensor:
    seen = Draft.visible(self, layer)
    seen[:, : max(0, self.committed - 64)] = False
    return seen


def slots_for_positions(
    self: Draft, layer: int, x: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    inside = len(positions) == self.config.block_size and int(positions[0]) == self.committed
    return Draft.keys_values(self, layer, x, positions if inside else positions % 96)


def kernels(change: Callable[[Tensor], Tensor], base: bool = True) -> Seed:
    """Faulty reading order of (2, K, ...) of conv bases and projections; of the projections alone without `base`."""

    def changed(d: Draft, w: dict[str, Tensor]) -> dict[str, Tensor]:
        result = {}
        for name, t in w.items():
            if name.endswith("base_kernel") and base:
                result[name] = change(t)
            elif name.endswith("kernel_projection.weight"):
                k = w[name.replace("kernel_projection.weight", "base_kernel")].shape[1]
                result[name] = change(t.unflatten(0, (2, k, -1))).reshape(t.shape)
        return result

    return weights(changed)


def circular(self: Draft, u: Tensor, tap: int) -> Tensor:
    return u.roll(tap, 0)


def input_row(self: Draft, base: Tensor, dynamic: Tensor, u: Tensor, tap: int) -> Tensor:
    return self.shifted((base + self.spread(dynamic)) * u, tap)


def modulo_groups(self: Draft, coefficients: Tensor) -> Tensor:
    return coefficients.repeat(1, self.config.group_size)


def gateless(self: Draft, z: Tensor) -> Tensor:
    return torch.ones(self.weights["candidate_selector.hidden_projection.weight"].shape[0])


def codebooks_swapped(d: Draft, w: dict[str, Tensor]) -> dict[str, Tensor]:
    a, b = (f"candidate_selector.{n}_codebook" for n in ("predecessor", "successor"))
    return {a: w[b], b: w[a]}


def anchor_predecessor(self: Draft, anchor: int) -> Proposal:
    self.anchor = anchor
    return Draft.propose(self, anchor)


def choose_after_anchor(self: Draft, p: Proposal, row: int, predecessor: int) -> None:
    Draft.choose(self, p, row, self.anchor)


def choose_after_argmax(self: Draft, p: Proposal, row: int, predecessor: int) -> None:
    Draft.choose(self, p, row, predecessor if not p.tokens else int(p.logits[row - 1].argmax()))


V2 = ("v2",)
FAULTS: dict[str, Fault] = {
    "layer ids - 1": Fault(layer_ids(-1)),
    "layer ids + 1": Fault(layer_ids(1)),
    "fc slices in reverse order": Fault(weights(fc_reversed)),
    "hidden_norm left out": Fault(method(fuse=without_hidden_norm)),
    "attn_norm applied to context": Fault(method(context_input=normed_context)),
    "target's output norm applied again": Fault(method(logits=target_norm_again)),
    "row i read as the token at i + 1": Fault(method(rows=lambda self: range(self.config.block_size - 1))),
    "another mask token": Fault(config(mask_token_id=lambda c: c.mask_token_id - 1)),
    "block causal in every layer": Fault(config(causal=lambda c: (True,) * c.layers)),
    "block causal in no layer": Fault(config(causal=lambda c: (False,) * c.layers), ("v1",)),
    "causality of the layers swapped": Fault(config(causal=lambda c: tuple(not x for x in c.causal)), ("v1",)),
    "RoPE base / 100": Fault(config(theta=lambda c: c.theta / 100)),
    "RMS epsilon 1e-5 for 1e-6": Fault(config(eps=lambda c: c.eps * 10)),
    "features through BF16": Fault(method(fuse=bf16_features)),
    "features one position late": Fault(method(extend=late_features)),
    "no window at all": Fault(config(sliding=lambda c: (False,) * c.layers)),
    "window one too large": Fault(config(window=lambda c: c.window + 1)),
    "window one too small": Fault(config(window=lambda c: c.window - 1)),
    "window anchored, not per row": Fault(method(visible=anchored_window)),
    "last context row not visible": Fault(method(visible=without_last_row)),
    "context shrunk to 64 rows": Fault(method(visible=shrunk_context), ("v1",)),
    "ring slots taken for positions (ring 96)": Fault(method(keys_values=slots_for_positions)),
    "conv sides swapped": Fault(kernels(lambda t: t.flip(0)), V2),
    "conv taps reversed": Fault(kernels(lambda t: t.flip(1)), V2),
    "conv padding circular": Fault(method(shifted=circular), V2),
    "conv projection read tap-major": Fault(kernels(lambda t: t.transpose(0, 1), base=False), V2),
    "conv projection read group-major": Fault(
        kernels(lambda t: t.reshape(t.shape[2], 2, t.shape[1], t.shape[3]).permute(1, 2, 0, 3), base=False), V2
    ),
    "conv coefficients of the input row": Fault(method(tap=input_row), V2),
    "conv group = channel mod G": Fault(method(spread=modulo_groups), V2),
    "no selector": Fault(config(top_k=lambda c: 0), V2),
    "selector without its gate": Fault(method(gate=gateless), V2),
    "selector codebooks swapped": Fault(weights(codebooks_swapped), V2),
    "selector with one candidate fewer": Fault(config(top_k=lambda c: c.top_k - 1), V2),
    "predecessor always the anchor": Fault(method(propose=anchor_predecessor, choose=choose_after_anchor), V2),
    "predecessor always the argmax": Fault(method(choose=choose_after_argmax), V2),
}  # fmt: skip


def text_of(target: Target, ids: list[int], run: PromptRun, reference: Record) -> Text:
    """The text of a reference's run, with the target's states."""
    c = reference.conditions
    return target.read(ids, run.new_tokens, min(c.max_new, c.context_length - len(ids)), run.stop)


def part_of(reference: Record, every: int) -> Record:
    """Every n-th prompt of the reference, as if only they had been run."""
    runs = reference.runs[::every]
    conditions = replace(reference.conditions, prompts_sha256=prompts_sha256(runs))
    return replace(reference, conditions=conditions, runs=runs)


def line(name: str, variant: str, record: Record, reference: Record) -> str:
    """The table's row for the record of one faulty draft."""
    kept = sum(
        first_mismatch(a, b) is None for a, b in zip(record.runs, reference.runs, strict=True)
    )
    stranger = replace(record, subject=replace(record.subject, draft_values_sha256=""))
    words = exact(record, reference).word, judge(stranger, reference).word
    length = record.total.mean_accepted_length
    return f"| {name} | {variant} | {kept} of {len(record.runs)} | {length:.3f} | {words[0]} | {words[1]} |"


@click.command()
@click.option("--pair", type=click.Path(path_type=Path), default=Path("examples/pair"))
@click.option(
    "--prompts", type=click.Path(path_type=Path), default=Path("manifests/prompts/pair.jsonl")
)
@click.option("--references", type=click.Path(path_type=Path), default=Path("manifests/references"))
@click.option("--every", default=1, help="Every n-th prompt only.")
def main(pair: Path, prompts: Path, references: Path, every: int) -> None:
    """Print, for every fault and draft: prompts that keep all rounds, mean length, and what the gate says."""
    torch.set_num_threads(1)
    target = Target(pair / "target")
    ids = target_ids(
        pair / "Pair-Target-BF16.gguf",
        read_prompts(prompts),
        len(target.embed),
        target.context_length,
    )
    found = {v: references / f"pair-{v}.json" for v in ("v1", "v2")}
    reference = {
        v: part_of(record_from_json(p.read_bytes(), p.name), every) for v, p in found.items()
    }
    texts = [
        text_of(target, i, run, reference["v1"])
        for i, run in zip(ids[::every], reference["v1"].runs, strict=True)
    ]
    click.echo(
        "| fault | draft | prompts unchanged | mean length | same draft | another draft |\n|---|---|---|---|---|---|"
    )
    for name, fault in {"none": Fault(lambda d: d), **FAULTS}.items():
        for variant in fault.variants:
            r = reference[variant]
            draft = fault.seed(Draft.read(pair / f"draft-{variant}", target))
            rounds = [tuple(speculate(draft, t, r.conditions.n_max)[0]) for t in texts]
            runs = tuple(
                replace(a, rounds=b, margins=None) for a, b in zip(r.runs, rounds, strict=True)
            )
            click.echo(line(name, variant, replace(r, runs=runs), r))


if __name__ == "__main__":
    main()
