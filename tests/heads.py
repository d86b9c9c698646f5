"""Small drafts with the heads of DSpark and Domino, in the names of their publishers, and the files that carry them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from click.testing import CliRunner
from dflash_gguf.convert.checkpoint import open_checkpoint
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.gguf import read_gguf

Tensors = dict[str, tuple[str, np.ndarray]]
RANK, GRU = 8, 16


def random(seed: int, *shape: int) -> tuple[str, np.ndarray]:
    """A BF16 tensor."""
    return ("BF16", tiny.random_bf16(np.random.default_rng(seed), shape))


def flat(**more: Any) -> dict[str, Any]:
    """The tiny config with everything at top level, as DeepSeek and Muse write it."""
    config = tiny.draft_config()
    return config | config.pop("dflash_config") | more


def markov(
    prefix: str, confidence: str, rows: int = 0, hidden: int = tiny.H, vocab: int = tiny.VOCAB
) -> Tensors:
    """DSpark's Markov tables and confidence head under some publisher's names; `rows` of a reduced vocabulary."""
    return {
        f"{prefix}markov_w1.weight": random(1, vocab, RANK), f"{prefix}markov_w2.weight": random(2, rows or vocab, RANK),
        f"{confidence}.weight": random(3, 1, hidden + RANK), f"{confidence}.bias": random(4, 1),
    }  # fmt: skip


def markov_kinds(hidden: int = tiny.H) -> dict[str, Tensors]:
    """What a gated and a recurrent Markov head have beside the tables."""
    name = "markov_head"
    return {
        "gated": {f"{name}.gate_proj.weight": random(5, RANK, hidden + RANK), f"{name}.gate_proj.bias": random(6, RANK)},
        "rnn": {f"{name}.joint_proj.weight": random(7, 3 * RANK, hidden + 2 * RANK), f"{name}.joint_proj.bias": random(8, 3 * RANK)},
    }  # fmt: skip


MARKOV_KINDS = markov_kinds()


def domino_tensors(
    gru: str = "prefix_gru.",
    first: str = "embed_proj.0.",
    second: str = "embed_proj.2.",
    *,
    hidden: int = tiny.H,
    vocab: int = tiny.VOCAB,
) -> Tensors:
    """Domino's recurrent head, without a bias anywhere."""
    return {
        f"{gru}weight_ih_l0": random(11, 3 * GRU, hidden), f"{gru}weight_hh_l0": random(12, 3 * GRU, GRU),
        f"{first}weight": random(13, RANK, hidden + GRU), f"{second}weight": random(14, vocab, RANK),
    }  # fmt: skip


DOMINO_FIELDS = {"projector_type": "domino", "emb_dim": RANK, "gru_hidden_dim": GRU, "pure_draft_prefix_len": 1, "shift_label": True}  # fmt: skip


def domino(**more: Any) -> dict[str, Any]:
    """SpecForge's Domino config, with the width that it repeats at top level."""
    config = tiny.draft_config()
    config["dflash_config"] |= DOMINO_FIELDS
    return (
        config
        | {
            "architectures": ["DominoDraftModel"],
            "auto_map": {"AutoModel": "domino.X"},
            "emb_dim": RANK,
        }
        | more
    )


def lucebox_domino() -> Tensors:
    """Lucebox's own Domino head, every bias and a start state in it."""
    names = ("domino_gru.", "domino_head.W1.", "domino_head.W2.")
    return domino_tensors(*names) | {
        "domino_start": random(15, GRU), "domino_gru.bias_ih_l0": random(16, 3 * GRU), "domino_gru.bias_hh_l0": random(17, 3 * GRU),
        "domino_head.W1.bias": random(18, RANK), "domino_head.W2.bias": random(19, tiny.VOCAB),
    }  # fmt: skip


PAIR = Path(__file__).resolve().parent.parent / "examples" / "pair"
PAIR_TARGET = PAIR / "Pair-Target-BF16.gguf"


def pair_draft() -> tuple[dict[str, Any], Tensors, dict[str, int]]:
    """Config and tensors of the trained v1 draft of the example pair, and the two sizes that its heads need."""
    checkpoint = open_checkpoint(PAIR / "draft-v1")
    raw = {f.path: f.path.read_bytes() for f in checkpoint.files}
    tensors: Tensors = {
        n: (t.dtype, np.frombuffer(raw[t.file][t.offset : t.offset + t.nbytes], np.uint16).reshape(t.shape)) for n, t in checkpoint.tensors.items()
    }  # fmt: skip
    config = checkpoint.config.values
    return dict(config), tensors, {"hidden": config["hidden_size"], "vocab": config["vocab_size"]}


def as_torch(tensors: Tensors) -> dict[str, torch.Tensor]:
    """The tensors as PyTorch has them."""
    kinds = {"BF16": torch.bfloat16, "I64": torch.int64, "F32": torch.float32}
    return {
        name: torch.from_numpy(array.copy()).view(kinds[dtype])
        for name, (dtype, array) in tensors.items()
    }


def convert(source: Path, output: Path, *more: Any) -> Path:
    """A conversion that must succeed."""
    result = CliRunner().invoke(main, [str(a) for a in (source, output, *more)])

    assert 0 == result.exit_code, result.output
    return output


def values_of(path: Path) -> dict[str, bytes]:
    """Name to bytes of every tensor of a GGUF."""
    raw = path.read_bytes()
    return {t.name: raw[t.offset : t.offset + t.nbytes] for t in read_gguf(path).tensors.values()}
