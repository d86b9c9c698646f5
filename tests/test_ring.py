"""The draft's ring equals a full recompute of the same window, bit for bit, at every fill level and across every wrap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import plain_model as plain
import pytest
from dflash_gguf import _native
from dflash_gguf.runtime.engine import Engine
from tiny_engine import SMALL, TEXT, open_pair
from tiny_gguf import V1, V2, DraftShape, Sizes, weights_of

COMMITS = [1, 4, 2, 3, 1, 1, 4, 4, 3, 2]  # rows a step keeps, repeated; a block has 4
FULL = replace(V1, sliding=(False, False), causal=(False, False))
ALL_SLIDING = replace(V2, window=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def pair(folder: Path, d: DraftShape, **options: object) -> Engine:
    """As `open_pair`, with F16 caches unless `options` say otherwise."""
    return open_pair(folder, d, **({"kv_type": "f16"} | options))


def rebuilt(engine: Engine, length: int) -> tuple[list[bytes], bytes]:
    """Context rows and block after reset and bulk append of the first `length` tokens."""
    engine.native.reset()
    engine.native.extend(TEXT[:length])
    return state(engine, length)


def state(engine: Engine, length: int) -> tuple[list[bytes], bytes]:
    """The K/V bytes of the context in position order, and the logits of the block behind it."""
    first, end, rows = engine.native.context_rows()
    assert (length, True) == (end, first >= end - engine.native.ring_cap)
    _, logits, _ = engine.native.propose(TEXT[length])
    return [r.tobytes() for r in rows], logits.tobytes()


def steps(limit: int) -> Iterator[tuple[int, int]]:
    """(length before, rows kept) of decoding TEXT with uneven commits, prompt 3."""
    at, i = 3, 0
    while at + 4 < limit:
        keep = COMMITS[i % len(COMMITS)]
        yield at, keep
        at, i = at + keep, i + 1


@pytest.mark.parametrize("cap", [4, 5, 7, 8, 13])
@pytest.mark.parametrize("d", [FULL, V1, ALL_SLIDING], ids=["full", "v1", "v2"])
def test_the_ring_equals_its_rebuild_at_every_length(folder: Path, d: DraftShape, cap: int) -> None:
    """Step by step with commits of 1 to 4 rows and the rest rejected, beyond five wraps: K/V and output are those of
    a fresh bulk append at the same length. Caps that are no multiple of the block and of the window minus one too."""
    stepped, fresh = pair(folder, d, ring=cap), pair(folder, d, ring=cap)
    stepped.native.extend(TEXT[:3])
    for length, keep in steps(max(30, 5 * cap)):
        assert rebuilt(fresh, length) == state(stepped, length), f"length {length}"
        kept = TEXT[length : length + keep]
        wrong = [(t + 1) % 99 for t in TEXT[length + keep : length + 4]]
        stepped.native.verify(kept + wrong, keep)


@pytest.mark.parametrize("cap", [4, 6, 9])
def test_a_full_layer_over_the_ring_equals_the_window_recomputed(folder: Path, cap: int) -> None:
    """A full-attention layer with a ring of N slots is the function of the last N positions, bit for bit: a sliding
    layer anchored at the end with window N, over a cache that never wraps."""
    ring = pair(folder, FULL, ring=cap)
    window = replace(FULL, sliding=(True, True), window=cap)
    linear = pair(folder, window, kv="full", swa="anchored")
    for length in (1, cap - 1, cap, cap + 1, cap + 4, 2 * cap, 3 * cap + 5, 64, 65, 70):
        expected = linear.propose(TEXT[: length + 1])
        found = ring.propose(TEXT[: length + 1])

        assert expected.logits.tobytes() == found.logits.tobytes(), f"length {length}"


@pytest.mark.parametrize("swa", ["per_row", "anchored"])
def test_an_all_sliding_draft_loses_nothing_in_a_ring_of_its_window(folder: Path, swa: str) -> None:
    """Cap W-1 (W where the window is anchored) gives the full cache's bits at every length; one slot less does not."""
    need = ALL_SLIDING.window - (swa == "per_row")
    full = pair(folder, ALL_SLIDING, kv="full", swa=swa)
    ring = pair(folder, ALL_SLIDING, ring=need, swa=swa)
    short = pair(folder, ALL_SLIDING, ring=need - 1, swa=swa)
    differs = []
    for length in range(1, 40):
        for engine in (full, ring, short):
            engine.native.extend([TEXT[length - 1]])
        expected, found, less = (e.native.propose(TEXT[length])[1] for e in (full, ring, short))
        assert np.array_equal(expected, found), f"length {length}"
        differs.append(not np.array_equal(expected, less))

    assert [False] * (need - 1) + [True] * (40 - need) == differs


@pytest.mark.parametrize("d", [V1, ALL_SLIDING], ids=["v1", "v2"])
def test_rejected_rows_leave_no_trace(folder: Path, d: DraftShape) -> None:
    """Rejecting 0 to 3 drafts at every fill level of a ring of 8: the state is that of a run that never saw them."""
    for rejects in range(4):
        rejecting, clean = pair(folder, d, ring=8), pair(folder, d, ring=8)
        for engine in (rejecting, clean):
            engine.native.extend(TEXT[:2])
        for length in range(2, 30):
            wrong = [(t + 3) % 99 for t in TEXT[length + 1 : length + 1 + rejects]]
            chosen = rejecting.native.verify([TEXT[length], *wrong], 1)
            assert chosen[:1] == clean.native.verify([TEXT[length]], 1)
            assert state(clean, length + 1) == state(rejecting, length + 1), f"length {length}"


def test_generation_does_not_depend_on_the_ring_below_its_capacity(folder: Path) -> None:
    """Full cache and any ring that never wraps: the same rounds, not only the same text."""
    small = replace(V1, sizes=SMALL)
    prompt = [t % 12 for t in TEXT[:9]]
    found = []
    for options in ({"kv": "full"}, {"ring": 49}, {"ring": 64}, {"ring": 0}):
        g = pair(folder, small, **options).generate(prompt, 40)
        found.append((g.tokens, g.rounds))

    assert [found[0]] * 3 == found[1:]


@pytest.mark.parametrize("back", [1, 3, 7, 8, 12])
def test_rewinding_shows_only_rows_that_are_still_there(folder: Path, back: int) -> None:
    """After a rewind the visible context is what no later row has overwritten, and it fills up again with new rows."""
    cap, length = 8, 21
    engine = pair(folder, FULL, ring=cap)
    engine.native.extend(TEXT[:length])
    engine.native.rewind(length - back)
    first, end, _ = engine.native.context_rows()

    assert (min(length - cap, length - back), length - back) == (first, end)

    engine.native.extend(TEXT[length - back : length + cap])
    assert rebuilt(pair(folder, FULL, ring=cap), length + cap) == state(engine, length + cap)


def reference_block(folder: Path, d: DraftShape, context: list[int], length: int) -> np.ndarray:
    """The plain block that sees exactly the positions `context`."""
    shared, weights = weights_of(Sizes()), weights_of(d)
    features = pair(folder, d, kv_type="f32").features(TEXT[:length])
    return plain.draft_block(
        weights, d, shared["token_embd.weight"], features[context], context, length, TEXT[length]
    )


def test_draft_kv_bytes_are_the_formula(folder: Path) -> None:
    """2 x layers x round_up(cap + q + 1, 32) x row bytes: 80.6 MiB at cap 4096 with 5 layers of 1024 in F16."""
    assert 80.625 == 2 * 5 * _native.kv_total(4096, 8) * 1024 * 2 / 2**20

    for options, cap, size in (
        ({"ring": 40, "kv_type": "f16"}, 40, 2),
        ({"ring": 0}, 2048, 2),
        ({"kv": "full", "kv_type": "f32"}, 256, 4),
    ):
        engine = pair(folder, V1, **options)
        rows = (cap + 4 + 1 + 31) // 32 * 32

        assert 2 * 2 * rows * 32 * size == engine.draft_kv_bytes
        assert (cap, rows) == (engine.describe()["ring"], engine.describe()["kv_total"])


def test_the_known_wrong_rings_differ(folder: Path) -> None:
    """Negative controls: evicting by positions that were only drafted, and a context that stops when it is full.

    The first drops cap rows behind a position that was later rejected, so the window is short by the rejects; the
    second keeps the first rows for ever. Both must be visible where the right ring agrees with the plain window.
    """
    cap, length, rejected = 8, 30, 3
    window = list(range(length - cap, length))
    found = pair(folder, FULL, ring=cap, kv_type="f32").propose(TEXT[: length + 1]).hidden
    size = np.abs(found).max()

    def distance(context: list[int]) -> float:
        return float(np.abs(reference_block(folder, FULL, context, length) - found).max() / size)

    assert distance(window) < 1e-4
    assert distance(window[rejected:]) > 1e-2
    assert distance(list(range(cap))) > 1e-2
