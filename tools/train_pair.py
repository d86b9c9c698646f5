"""Trains the example pair: a small Qwen3 target and its DFlash v1 and DFlash 2 drafts.

    python tools/train_pair.py --out examples/pair --work /tmp/pair --seed 0

Stages run in order and each leaves its result in --work, so that a run can be taken up again or one
stage be run alone. With the same seed, steps, threads and machine the weights come out the same.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import click
import target_gguf
import torch
from pair import corpus, draft_training, evaluate, export, prompts, target_training, tokenizer
from pair.draft import SHAPES, Draft
from pair.learn import round_weights
from pair.target import Geometry, Target
from tokenizers import Tokenizer

STEPS = {"target": 650, "texts": 16, "draft-v1": 400, "draft-v2": 400}
FIRST_RUN = 400  # steps of the target before its warm restart
GGUF_NAME = "Pair-Target-BF16.gguf"
TOKENIZER_DOCUMENTS = 4000


class Pair:
    """The stages; each reads what earlier ones left in `work`."""

    def __init__(self, out: Path, work: Path, sets: Path, seed: int, steps: dict[str, int]):
        self.out, self.work, self.sets, self.seed, self.steps = out, work, sets, seed, steps

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, as the first stage left it."""
        return Tokenizer.from_file(str(self.work / "tokenizer.json"))

    def target(self) -> Target:
        """The trained target, rounded to BF16."""
        return self._load(Target(Geometry()), "target")

    def _load(self, model, name: str):
        model.load_state_dict(torch.load(self.work / f"{name}.pt", weights_only=True))
        round_weights(model)
        return model.requires_grad_(False)

    def do_tokenizer(self) -> None:
        """Learn the tokenizer."""
        texts = itertools.islice(corpus.mixed(self.seed), TOKENIZER_DOCUMENTS)
        tokenizer.train(text for _, text in texts).save(str(self.work / "tokenizer.json"))

    def do_target(self) -> None:
        """Train the target."""
        target_training.train_target(
            self.tokenizer(), self.seed, (FIRST_RUN, self.steps["target"]), self.work
        )

    def do_texts(self) -> None:
        """Let the target write the texts that the drafts learn from."""
        texts = draft_training.write_texts(
            self.target(), self.tokenizer(), self.seed + 1000, self.steps["texts"]
        )
        torch.save({"ids": texts.ids, "states": texts.states}, self.work / "texts.pt")

    def do_draft(self, name: str) -> None:
        """Train one draft."""
        saved = torch.load(self.work / "texts.pt", weights_only=True, mmap=True)
        texts = draft_training.Texts(saved["ids"], saved["states"])
        draft_training.train_draft(
            name, self.target(), texts, self.seed, self.steps[name], self.work
        )

    def do_export(self) -> None:
        """Write the pair in the published layouts, and the GGUF."""
        made = self.tokenizer()
        export.write_target(self.out / "target", self.target(), made)
        for name, shape in SHAPES.items():
            export.write_draft(self.out / name, self._load(Draft(Geometry(), shape), name))
        target_gguf.write(self.out / "target", self.out / GGUF_NAME)

    def do_prompts(self) -> None:
        """Write the prompt sets."""
        self.sets.mkdir(parents=True, exist_ok=True)
        for name, (offset, lengths) in prompts.SETS.items():
            records = prompts.prompt_set(self.tokenizer(), self.seed + offset, lengths)
            lines = [json.dumps(record, ensure_ascii=False) for record in records]
            (self.sets / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def do_evaluate(self) -> None:
        """Print what the drafts accept, greedily, domain by domain."""
        made, target = self.tokenizer(), self.target()
        lines = (self.sets / "pair.jsonl").read_text().splitlines()
        click.echo("| draft | domain | rounds | mean length | rate | rate at position 1..7 |")
        click.echo("|---|---|---|---|---|---|")
        for name, shape in SHAPES.items():
            draft = self._load(Draft(Geometry(), shape), name)
            tallies = evaluate.table(target, draft, made, [json.loads(line) for line in lines])
            click.echo("\n".join(evaluate.rows(name, tallies)))

    def stages(self) -> dict[str, Callable[[], None]]:
        """Stage name to what it does, in order."""
        return {
            "tokenizer": self.do_tokenizer,
            "target": self.do_target,
            "texts": self.do_texts,
            "draft-v1": lambda: self.do_draft("draft-v1"),
            "draft-v2": lambda: self.do_draft("draft-v2"),
            "export": self.do_export,
            "prompts": self.do_prompts,
            "evaluate": self.do_evaluate,
        }


STAGES = ("tokenizer", "target", "texts", "draft-v1", "draft-v2", "export", "prompts", "evaluate")


@click.command(epilog="Example: train_pair.py --out examples/pair --work /tmp/pair --seed 0")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the pair.")
@click.option(
    "--work", type=click.Path(path_type=Path), required=True, help="Folder of the stages."
)
@click.option(
    "--sets",
    type=click.Path(path_type=Path),
    default=Path("manifests/prompts"),
    show_default=True,
    help="Folder of the prompt sets.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of corpus, weights and sampling.")
@click.option("--threads", default=2, show_default=True, help="PyTorch threads.")
@click.option(
    "--stage", "only", multiple=True, type=click.Choice(STAGES), help="Only these stages."
)
@click.option(
    "--steps",
    multiple=True,
    type=(click.Choice(list(STEPS)), int),
    metavar="STAGE N",
    help=f"Training steps (texts: batches of texts); defaults {STEPS}.",
)
def main(
    out: Path,
    work: Path,
    sets: Path,
    seed: int,
    threads: int,
    only: tuple[str, ...],
    steps: tuple[tuple[str, int], ...],
) -> None:
    """Train the example pair, or the chosen stages of it."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    work.mkdir(parents=True, exist_ok=True)
    stages = Pair(out, work, sets, seed, STEPS | dict(steps)).stages()
    for name in STAGES:
        if not only or name in only:
            stages[name]()


if __name__ == "__main__":
    main()
