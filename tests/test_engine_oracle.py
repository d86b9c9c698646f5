"""The engine and the oracle are two readings of one specification: they must agree in every number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_pair
import torch
from dflash_gguf.runtime.engine import Engine, EngineOptions
from dflash_gguf.runtime.oracle import speculate
from dflash_gguf.runtime.oracle_draft import Draft
from dflash_gguf.runtime.oracle_target import Target
from safetensors.torch import load_file, save_file
from seeded_faults import FAULTS

EXACT = EngineOptions(kv="full", kv_type="f32")
TOKENS = [int(t) for t in torch.randint(0, 96, (45,), generator=torch.Generator().manual_seed(9))]


def nested(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """`config` with changes inside dflash_config."""
    return config | {"dflash_config": config["dflash_config"] | changes}


KINDS: dict[str, dict[str, Any]] = {
    "v1": tiny_pair.V1,
    "v1, all layers causal": tiny_pair.V1 | {"is_causal": True},
    "v1, no layer causal": tiny_pair.V1 | {"is_causal": False},
    "v1, no window": tiny_pair.V1 | {"layer_types": ["full_attention"] * 2},
    "v1, window smaller than the block": tiny_pair.V1 | {"sliding_window": 3},
    "v1, window smaller than the block, not causal": tiny_pair.V1 | {"sliding_window": 3, "is_causal": False},
    "v1, three captures, the last layer among them": nested(tiny_pair.V1, target_layer_ids=[0, 1, 3]),
    "v1, another RoPE base": tiny_pair.V1 | {"rope_theta": 1e6},
    "v1, epsilon 1e-2": tiny_pair.V1 | {"rms_norm_eps": 1e-2},
    "v2": tiny_pair.V2,
    "v2, full and causal": tiny_pair.V2 | {"layer_types": ["full_attention"] * 2, "is_causal": True},
    "v2, three taps, groups of 4": nested(tiny_pair.V2, conv_kernel_size=3, conv_group_size=4),
    "v2, multiplier and soft cap": nested(tiny_pair.V2, output_multiplier=0.3, final_logit_softcapping=2.0),
    "v2, block of 7": nested(tiny_pair.V2, block_size=7),
}  # fmt: skip


@dataclass(frozen=True)
class Both:
    """One pair, opened twice."""

    engine: Engine
    draft: Draft


def open_both(folder: Path, config: dict[str, Any], seed: int = 2) -> Both:
    """A random pair with this draft, as F32 GGUFs in the engine and as checkpoints in the oracle."""
    tiny_pair.write_draft(folder / "draft", config, seed)
    target = folder / "target.gguf"
    if not target.exists():
        tiny_pair.write_target(folder / "target", eos_token_id=None)
        tiny_pair.write_target_gguf(target, folder / "target", "f32")
    path = tiny_pair.write_draft_gguf(folder / "draft.gguf", folder / "draft", "f32")
    return Both(
        Engine(target, path, EXACT), Draft.read(folder / "draft", Target(folder / "target"))
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Both]:
    """Each kind's pair, opened once."""
    return cache(lambda kind: open_both(tmp_path_factory.mktemp("pair"), KINDS[kind]))


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, pairs: Callable[[str], Both]) -> Both:
    return pairs(request.param)


def relative(expected: torch.Tensor, actual: np.ndarray) -> float:
    """Largest difference, as a share of the largest value."""
    return float(np.abs(expected.numpy() - actual).max() / expected.abs().max())


def extended(draft: Draft, tokens: list[int]) -> Draft:
    """The draft with the context of `tokens`."""
    draft.reset()
    states, _ = draft.target.forward(tokens, [])
    draft.extend(torch.cat([states[i] for i in draft.config.target_layer_ids], -1))
    return draft


def test_target_logits_agree(both: Both) -> None:
    """Every row of a 45-token prompt, within 1e-5 relative."""
    _, logits = both.draft.target.forward(TOKENS, [])

    assert relative(logits, both.engine.logits(TOKENS)) < 1e-5


def test_features_agree(both: Both) -> None:
    """The captured states, in the order of the ids, the last layer included."""
    states, _ = both.draft.target.forward(TOKENS, [])
    expected = torch.cat([states[i] for i in both.draft.config.target_layer_ids], -1)

    assert relative(expected, both.engine.features(TOKENS)) < 1e-5


@pytest.mark.parametrize("context", [1, 2, 7, 8, 9, 17, 44])
def test_proposals_agree(both: Both, context: int) -> None:
    """Hidden rows, logits and tokens of a block, behind contexts below, at and beyond twice the window."""
    expected = extended(both.draft, TOKENS[:context]).propose(TOKENS[context])

    found = both.engine.propose(TOKENS[: context + 1])

    assert relative(expected.hidden, found.hidden) < 1e-5
    assert relative(expected.logits[1:], found.logits[1:]) < 1e-5
    assert expected.tokens == list(found.tokens)


@pytest.mark.parametrize("n_max", [1, 2, 3])
def test_rounds_agree(both: Both, n_max: int) -> None:
    """Tokens, drafted and accepted of every round, at every budget."""
    text = both.draft.target.decode(TOKENS[:20], 30)
    rounds, margins = speculate(both.draft, text, n_max)

    found = both.engine.generate(TOKENS[:20], 30, n_max=n_max)

    assert min(margins) > 1e-4  # no decision of these prompts is a tie
    assert text.new == list(found.tokens)
    assert rounds == [tuple(r) for r in found.rounds]


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_ties_go_to_the_lower_id_in_draft_and_target(tmp_path: Path, name: str) -> None:
    """With every head row there twice, each logit is a tie: both pick the lower id, at the edge of the candidates too."""
    tiny_pair.write_target(tmp_path / "target", eos_token_id=None)
    path = tmp_path / "target" / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"][1::2] = weights["lm_head.weight"][::2]
    save_file(weights, path)
    tiny_pair.write_target_gguf(tmp_path / "target.gguf", tmp_path / "target", "f32")
    both = open_both(
        tmp_path, KINDS[name] if name == "v1" else nested(KINDS[name], selector_top_k=3)
    )
    text = both.draft.target.decode(TOKENS[:20], 30)
    rounds, _ = speculate(both.draft, text, 3)

    found = both.engine.generate(TOKENS[:20], 30)

    assert all(t % 2 == 0 for t in text.new)
    assert text.new == list(found.tokens)
    assert rounds == [tuple(r) for r in found.rounds]
    assert [0.0] * len(text.margins) == text.margins


@pytest.mark.parametrize(
    ("name", "variant"), [(n, v) for n, fault in FAULTS.items() for v in fault.variants]
)
def test_every_seeded_fault_shows_in_the_numbers(
    pairs: Callable[[str], Both], name: str, variant: str
) -> None:
    """A wrong reading moves the scores of a block by far more than engine and oracle differ."""
    both = pairs(variant)
    tokens = (TOKENS * 4)[:140]
    right, wrong = both.draft, extended(FAULTS[name].seed(both.draft), tokens)
    expected, faulty = extended(right, tokens).propose(5), wrong.propose(5)
    found = both.engine.propose([*tokens, 5])

    apart = max(relative(a, b.numpy()) for a, b in zip(expected.scores, faulty.scores, strict=True))
    noise = relative(expected.logits[1:], found.logits[1:])

    assert expected.tokens == list(found.tokens)
    assert apart > 3 * noise or len(expected.candidates[0]) != len(faulty.candidates[0])
