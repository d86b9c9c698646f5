"""The oracle is right by construction: each shortcut it takes equals the plain long way."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_pair
import torch
from dflash_gguf.runtime.oracle import decision_margin, speculate
from dflash_gguf.runtime.oracle_draft import Draft, DraftConfig, Proposal
from dflash_gguf.runtime.oracle_target import Target, Text, rope

PROMPT = [5, 17, 42, 8, 3, 77, 21, 9, 64, 30, 12, 12, 50]
CONFIGS = {"v1": tiny_pair.V1, "v2": tiny_pair.V2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random target and both drafts."""
    folder = tmp_path_factory.mktemp("pair")
    tiny_pair.write_target(folder / "target", eos_token_id=None)
    for name, config in CONFIGS.items():
        tiny_pair.write_draft(folder / name, config)
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> Target:
    return Target(folder / "target")


@pytest.fixture(scope="module")
def text(target: Target) -> Text:
    return target.decode(PROMPT, 40)


def test_decoding_with_a_cache_equals_recomputing_every_prefix(target: Target, text: Text) -> None:
    """Each new token and its margin come from a forward over all tokens before it."""
    states, logits = target.forward([*text.prompt, *text.new[:-1]], [])

    top = logits[len(PROMPT) - 1 :].topk(2)
    assert top.indices[:, 0].tolist() == text.new
    assert torch.allclose(
        top.values[:, 0] - top.values[:, 1], torch.tensor(text.margins), atol=1e-4
    )
    assert torch.allclose(states, text.states, atol=1e-4)


def test_features_are_the_states_after_the_named_layers_in_their_order(text: Text) -> None:
    """Layer ids are 0-based outputs; the order is the list's, not sorted; the last layer is legal."""
    found = text.features([3, 0])

    assert torch.equal(text.states[3], found[:, : tiny_pair.H])
    assert torch.equal(text.states[0], found[:, tiny_pair.H :])


@pytest.mark.parametrize("name", CONFIGS)
def test_context_appended_in_pieces_equals_context_at_once(
    folder: Path, target: Target, text: Text, name: str
) -> None:
    """How many tokens each round commits does not change a draft."""
    features = text.features([0, 2])
    whole, pieces = Draft.read(folder / name, target), Draft.read(folder / name, target)
    whole.extend(features[:20])
    for a, b in ((0, 13), (13, 14), (14, 18), (18, 20)):
        pieces.extend(features[a:b])

    assert torch.allclose(whole.propose(7).logits, pieces.propose(7).logits, atol=1e-5)


def seen(config: DraftConfig, layer: int, committed: int, target: Target) -> torch.Tensor:
    draft = Draft(config, {}, target)
    draft.committed = committed
    return draft.visible(layer)


def test_window_and_block_masks_follow_the_reference(target: Target) -> None:
    """Block 4 < window 6 < context 20, row by row: sliding is per row, causality is per layer."""
    config = DraftConfig(
        layers=2, head_dim=16, eps=1e-6, theta=1e4, block_size=4, mask_token_id=99, target_layer_ids=(0,),
        window=6, sliding=(True, False), causal=(True, False),
    )  # fmt: skip

    sliding, full = seen(config, 0, 20, target), seen(config, 1, 20, target)

    expected = [set(range(15 + i, 21 + i)) for i in range(4)]  # W positions, the row's own the last
    assert expected == [set(row.nonzero().flatten().tolist()) for row in sliding]
    assert bool(full.all())


def test_a_sliding_layer_that_is_not_causal_sees_ahead_inside_the_block(target: Target) -> None:
    """With is_causal false the window is two-sided."""
    config = DraftConfig(
        layers=1, head_dim=16, eps=1e-6, theta=1e4, block_size=4, mask_token_id=99, target_layer_ids=(0,),
        window=3, sliding=(True,), causal=(False,),
    )  # fmt: skip

    rows = [set(row.nonzero().flatten().tolist()) for row in seen(config, 0, 20, target)]

    assert [{18, 19, 20, 21, 22}, {19, 20, 21, 22, 23}, {20, 21, 22, 23}, {21, 22, 23}] == rows


def test_causality_is_read_per_layer_where_the_config_is_silent() -> None:
    """is_causal absent: sliding layers are causal, full layers are not; declared: all layers follow it."""
    v1 = DraftConfig.read(tiny_pair.V1)
    v2 = DraftConfig.read(tiny_pair.V2)

    assert ((True, False), (True, False)) == (v1.sliding, v1.causal)
    assert ((True, True), (False, False)) == (v2.sliding, v2.causal)
    assert (4, 10000.0, 99) == (v2.block_size, v2.theta, v2.mask_token_id)


def test_rotation_turns_pairs_by_position_times_frequency() -> None:
    """Channels i and i + half are a complex number turned by position * theta^(-i / half)."""
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).double()
    positions = torch.tensor([0, 5, 900])
    turn = torch.exp(1j * positions[:, None].double() * 100.0 ** (-torch.arange(4).double() / 4.0))

    expected = (x[..., :4] + 1j * x[..., 4:]) * turn

    assert torch.allclose(torch.cat([expected.real, expected.imag], -1).float(), rope(x.float(), positions, 100.0), atol=1e-5)  # fmt: skip


def test_convolution_equals_the_index_formula(folder: Path, target: Target) -> None:
    """Both sides against spec-runtime 2.1, element by element, with zeros before the block."""
    draft = Draft.read(folder / "v2", target)
    rng = torch.Generator().manual_seed(3)
    u, x = torch.randn(4, 64, generator=rng), torch.randn(4, 64, generator=rng)
    base = draft.weights["layers.1.mlp_conv.base_kernel"].flatten()
    dyn = x @ draft.weights["layers.1.mlp_conv.kernel_projection.weight"].T
    for side in (0, 1):
        expected = torch.zeros(4, 64)
        for t in range(4):
            for ch in range(64):
                for tap in range(min(2, t + 1)):
                    weight = (
                        base[ch + 64 * (tap + 2 * side)] + dyn[t, side * 8 + tap * 4 + ch // 16]
                    )
                    expected[t, ch] += weight * u[t - tap, ch]

        assert torch.allclose(expected, draft.convolve("layers.1.mlp_conv", side, u, x), atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_guessing_along_the_text_equals_verifying_every_draft(
    folder: Path, target: Target, name: str
) -> None:
    """Rounds from the known text equal those of a loop that runs every draft through the target."""
    max_new = 24
    text = target.decode(PROMPT, max_new)
    draft = Draft.read(folder / name, target)
    plain = Draft.read(folder / name, target)
    tokens, rounds = [*PROMPT, text.new[0]], []
    while (left := max_new - (len(tokens) - len(PROMPT))) > 0:
        m = min(3, 2, left - 1)
        plain.reset()
        states, _ = target.forward(tokens[:-1], [])
        plain.extend(torch.cat([states[0], states[2]], -1))
        drafted = plain.propose(tokens[-1]).tokens[:m]
        _, logits = target.forward(tokens + drafted, [])
        chosen = logits[len(tokens) - 1 :].argmax(-1).tolist()
        a = next((i for i in range(m) if drafted[i] != chosen[i]), m)
        tokens += chosen[: a + 1]
        rounds += [(m, a)] if m else []

    found, margins = speculate(draft, text, n_max=2)

    assert text.new == tokens[len(PROMPT) :]
    assert rounds == found
    assert len(margins) == len(found) + 1


def test_text_ends_at_the_end_token_and_drafts_behind_it_do_not_count(
    folder: Path, target: Target
) -> None:
    """An end-of-text token is emitted and ends the text; the last round accepts up to it."""
    text = target.decode(PROMPT, 40)
    end = text.new[6]
    ended = Target(folder / "target")
    ended.eos = (end,)

    found = ended.decode(PROMPT, 40)
    rounds, _ = speculate(Draft.read(folder / "v1", target), found, n_max=3)

    assert ("eos", text.new[: text.new.index(end) + 1]) == (found.stop, found.new)
    assert sum(a + 1 for _, a in rounds) in (len(found.new) - 1, len(found.new))


def chosen(logits: torch.Tensor, bonus: torch.Tensor, top_k: int) -> tuple[int, Proposal]:
    """The token that a selector row with these logits and bonuses gives, and a proposal holding it."""
    candidates = torch.sort(logits, descending=True, stable=True).indices[:top_k]
    scores = logits + bonus
    token = int(candidates[scores[candidates].argmax()])
    return token, Proposal([token], torch.empty(0), logits[None], [scores], [candidates])


@pytest.mark.parametrize("seed", range(40))
def test_no_shift_below_half_the_margin_changes_a_decision(seed: int) -> None:
    """Logits moved by less than half the stated margin keep the outcome; the margin is not idle: some move flips it."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(12, generator=rng)
    bonus = torch.randn(12, generator=rng)
    token, proposal = chosen(logits, bonus, top_k=4)
    truth = token if seed % 2 else int(torch.randint(12, (1,), generator=rng))
    margin = decision_margin(proposal, logits, 0, truth)

    def outcome(shift: torch.Tensor) -> bool:
        return chosen(logits + shift, bonus, top_k=4)[0] == truth

    held = [outcome(0.499 * margin * (2 * torch.rand(12, generator=rng) - 1)) for _ in range(200)]
    moved = [
        outcome(8 * (margin + 0.2) * (2 * torch.rand(12, generator=rng) - 1)) for _ in range(2000)
    ]

    assert {token == truth} == set(held)
    assert {True, False} == set(moved)


def test_equal_logits_go_to_the_lower_id(folder: Path, target: Target) -> None:
    """Ties are decided by id, in the argmax and at the edge of the candidates."""
    draft = Draft.read(folder / "v2", target)

    order = draft.order(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0]))

    assert [1, 3, 2, 4, 0] == order.tolist()
