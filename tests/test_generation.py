"""Greedy generation: speculation changes no token, and every limit is met exactly."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from dflash_gguf.convert.cli import main as convert
from dflash_gguf.convert.errors import InputError, UsageError
from dflash_gguf.runtime.engine import Engine, EngineOptions
from tiny_engine import EXACT, SMALL, TEXT, open_pair
from tiny_gguf import V1, V2, Sizes, once, write_draft, write_target
from tokenizers import Tokenizer

PAIR = Path(__file__).resolve().parent.parent / "examples" / "pair"
TARGET = PAIR / "Pair-Target-BF16.gguf"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


LOOPS = {
    "v1": V1,
    "v2": V2,
    "v1-two-sided": replace(V1, causal=(False, False)),
}


@pytest.mark.parametrize("n_max", [None, 2, 1])
@pytest.mark.parametrize(
    "options", [{}, {"ring": 5}, {"kv": "full"}, {"kv_type": "f16", "ring": 4}], ids=str
)
@pytest.mark.parametrize("name", LOOPS)
def test_any_draft_changes_no_token(
    folder: Path, name: str, options: dict[str, object], n_max: int | None
) -> None:
    """Greedy text with a draft is the text without one, token for token, at every block length and ring."""
    engine = open_pair(folder, replace(LOOPS[name], sizes=SMALL), **options)
    for start in range(2):
        prompt = [t % 12 for t in TEXT[start : start + 9]]
        expected = engine.generate(prompt, 40, n_max=0)

        found = engine.generate(prompt, 40, n_max=n_max)

        assert expected.tokens == found.tokens
        assert expected.margins == found.margins
        assert 40 == 1 + found.steps + sum(a for _, a in found.rounds)
        assert {d for d, _ in found.rounds} <= set(range(1, (n_max or 3) + 1))


def text_of(engine: Engine, prompt: list[int], n: int = 30) -> list[int]:
    """What the target alone says."""
    return engine.generate(prompt, n, n_max=0).tokens


class GuessedRight:
    """Drives verify by hand along a known text, as a draft that always knows it would."""

    def __init__(self, engine: Engine, prompt: list[int], text: list[int]) -> None:
        self.native, self.text = engine.native, text
        self.native.reset()
        self.native.extend(prompt)

    def round(self, at: int, drafted: list[int], keep: int) -> list[int]:
        """Verify text[at] and `drafted` behind it, commit `keep` rows; gives what the target chose."""
        return self.native.verify([self.text[at], *drafted], keep)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_verifying_many_rows_chooses_what_decoding_chooses(folder: Path, rows: int) -> None:
    """Along the target's own text every verified row chooses the next token of it, accepted wholly or in part."""
    engine = open_pair(folder, V1)
    prompt = TEXT[:7]
    text = text_of(engine, prompt)
    guess = GuessedRight(engine, prompt, text)
    at, keep = 0, 1
    while at + rows < len(text):
        chosen = guess.round(at, text[at + 1 : at + rows], keep)

        assert text[at + 1 : at + rows + 1] == chosen
        at, keep = at + keep, keep % rows + 1


def test_an_end_token_inside_a_block_ends_the_text_there(folder: Path) -> None:
    """For every end token the text stops at its first place in it, with a draft as without."""
    engine = open_pair(folder, replace(V2, sizes=SMALL))
    inside = 0
    for start in range(8):
        prompt = [t % 12 for t in TEXT[start : start + 9]]
        whole = text_of(engine, prompt, 25)
        for eos in sorted(set(whole)):
            found = engine.generate(prompt, 25, eos=[eos])

            assert whole[: whole.index(eos) + 1] == found.tokens
            assert ("eos", len(found.tokens)) == (found.stop, len(found.margins))
            inside += len(found.tokens) < 1 + found.steps + sum(a for _, a in found.rounds)
    assert inside > 0, "no end token was an accepted draft: the case did not occur"


@pytest.mark.parametrize("max_new", [0, 1, 2, 3, 4, 5])
def test_a_length_limit_is_met_exactly(folder: Path, max_new: int) -> None:
    """No round drafts more than can still be emitted, and the text is the longer one's beginning."""
    engine = open_pair(folder, V1)
    expected = text_of(engine, TEXT[:5], 8)[:max_new]

    found = engine.generate(TEXT[:5], max_new)

    assert (expected, "length") == (found.tokens, found.stop)
    assert all(d <= max_new - 2 for d, _ in found.rounds)


@pytest.mark.parametrize("n_max", [0, None])
def test_the_context_limit_ends_the_text(folder: Path, n_max: int | None) -> None:
    """Prompt and text together fill the context and no more; a prompt that fills it alone is refused."""
    engine = open_pair(folder, V1, max_context=20)
    found = engine.generate(TEXT[:13], 100, n_max=n_max)

    assert (7, "context") == (len(found.tokens), found.stop)
    with pytest.raises(UsageError, match="no room"):
        engine.generate(TEXT[:20], 1)


def test_a_draft_that_is_not_finite_costs_speed_only(folder: Path) -> None:
    """NaN and overflow in a draft: the text is the target's, every proposal is dropped and counted."""
    expected = text_of(open_pair(folder, V1), TEXT[:9], 20)
    for base in (V1, V2):
        for bad in (np.nan, 3e38):

            def poison(weights: dict[str, np.ndarray], bad: float = bad) -> None:
                weights["blk.1.ffn_down.weight"][:] = bad

            write_draft(folder / "poisoned.gguf", base, change=poison)
            engine = Engine(once(folder, Sizes()), folder / "poisoned.gguf", EXACT)

            found = engine.generate(TEXT[:9], 20)

            assert (expected, []) == (found.tokens, found.rounds)
            assert found.steps - 1 == found.bad_drafts
            assert [] == engine.propose(TEXT).tokens


def test_a_target_that_is_not_finite_is_refused(folder: Path) -> None:
    """A broken target has no text to be faithful to."""

    def poison(weights: dict[str, np.ndarray]) -> None:
        weights["output_norm.weight"][:] = np.nan

    write_target(folder / "bad.gguf", change=poison)

    with pytest.raises(InputError, match="not finite"):
        Engine(folder / "bad.gguf", options=EXACT).generate(TEXT[:4], 3)


def test_requests_leave_nothing_behind(folder: Path) -> None:
    """Two prompts in one engine, longer and shorter, give what fresh engines give."""
    used = open_pair(folder, V2, ring=5)
    prompts = [TEXT[:30], TEXT[5:9], TEXT[10:40], TEXT[:30]]
    for prompt in prompts:
        expected = open_pair(folder, V2, ring=5).generate(prompt, 25)
        found = used.generate(prompt, 25)

        assert (expected.tokens, expected.rounds) == (found.tokens, found.rounds)


def test_two_threads_on_one_engine_wait_for_each_other(folder: Path) -> None:
    """Calls from two Python threads give what calls in a row give."""
    engine = open_pair(folder, V1)
    prompts = [TEXT[:9], TEXT[9:30]]
    expected = [engine.generate(p, 30).tokens for p in prompts]
    found: list[list[int]] = [[], []]

    def work(i: int) -> None:
        found[i] = engine.generate(prompts[i], 30).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert expected == found


def test_a_signal_stops_a_generation_between_steps(folder: Path) -> None:
    """Ctrl-C reaches Python while the engine computes, and the engine is good for the next request."""
    sizes = replace(SMALL, context=1 << 16)
    write_target(folder / "long.gguf", replace(sizes, layers=4))
    engine = Engine(folder / "long.gguf", options=EXACT)
    expected = engine.generate([1, 2, 3], 5).tokens
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.generate([1, 2, 3], 60000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert expected == engine.generate([1, 2, 3], 5).tokens


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained pair's drafts, converted."""
    folder = tmp_path_factory.mktemp("trained")
    for name in ("v1", "v2"):
        args = [
            str(PAIR / f"draft-{name}"),
            str(folder / f"{name}.gguf"),
            "--target",
            str(TARGET),
            "--quiet",
        ]
        done = CliRunner().invoke(convert, args)
        assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_a_trained_draft_pays_and_changes_no_token(trained: Path, name: str) -> None:
    """On the real pair, beyond twice the window and through many wraps of a ring as small as a block: same text."""
    prompt = (
        Tokenizer.from_file(str(PAIR / "target" / "tokenizer.json")).encode("1, 2, 3, 4, 5, 6,").ids
    )
    plain = Engine(TARGET, options=EngineOptions(threads=1)).generate(prompt, 150)
    rounds, blocks = {}, {}
    for ring in (0, 63, 8):
        engine = Engine(TARGET, trained / f"{name}.gguf", EngineOptions(threads=1, ring=ring))
        found = engine.generate(prompt, 150)

        assert (plain.tokens, plain.margins) == (found.tokens, found.margins)
        rounds[ring], blocks[ring] = (
            found.rounds,
            engine.propose(prompt + found.tokens).logits.tobytes(),
        )

    assert sum(a for _, a in rounds[0]) > 0.3 * len(rounds[0])
    assert blocks[8] != blocks[0], "a ring shorter than the window is another function"
    if name == "v2":  # every layer slides with window 64: 63 slots are all it can see
        assert (rounds[0], blocks[0]) == (rounds[63], blocks[63])
