"""The gate says no where something is lost, yes where nothing is, and neither where it cannot know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dflash_gguf.runtime.gate import FAIL, INCONCLUSIVE, NOT_COMPARABLE, PASS, Rules, judge
from dflash_gguf.runtime.record import Difference, PromptRun, Record
from records import HAND_LOG, drawn_runs, make_record, make_run

SAME = {"draft_values_sha256": "c" * 64}


def test_a_record_passes_against_itself() -> None:
    """The same rounds lose nothing."""
    record = make_record(drawn_runs(0.7))

    verdict = judge(record, record)

    assert (PASS, 0) == (verdict.word, verdict.exit_code)
    assert 0 == verdict.figures["loss"]["value"]


@pytest.mark.parametrize(
    "change",
    [
        {"target_sha256": "d" * 64}, {"variant": "dflash2"}, {"n_max": 7}, {"block_size": 32}, {"max_new": 1000}, {"template": "chatml"},
        {"thinking": "on"}, {"sampler": "t=1"}, {"causal": "none"}, {"swa": "anchored"}, {"hidden_rows_after": 64},
        {"context_length": 4096}, {"cut_rule": "other"},
    ],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_other_conditions_are_not_comparable(change: dict[str, Any]) -> None:
    """One changed condition gives exit 6 and is named, however good the figures are."""
    runs = drawn_runs(0.7)

    verdict = judge(make_record(runs, **{"block_size": 16} | change), make_record(runs, 16))

    assert (NOT_COMPARABLE, 6) == (verdict.word, verdict.exit_code)
    assert any(next(iter(change)) in reason for reason in verdict.reasons)


def test_other_prompts_are_not_comparable() -> None:
    """One other prompt token is another prompt set."""
    runs = drawn_runs(0.7)
    other = [replace(runs[0], prompt_sha256="e" * 64), *runs[1:]]

    assert NOT_COMPARABLE == judge(make_record(other), make_record(runs)).word


def test_a_file_a_backend_or_a_cache_type_may_differ() -> None:
    """What is under test does not make two records incomparable."""
    runs = drawn_runs(0.7)
    subject = {
        "draft_sha256": "f" * 64,
        "backend": "cuda",
        "kv": "ring",
        "ring": 2048,
        "kv_type": "f16",
        "threads": 2,
    }

    assert PASS == judge(make_record(runs, subject=subject), make_record(runs)).word


def test_a_draft_whose_every_proposal_is_dropped_is_broken_not_unmeasured() -> None:
    """No round at all because no logit was finite is a fault of the draft: fail, not inconclusive."""
    record = replace(make_record([make_run("a", []), make_run("b", [])]), bad_drafts=40)

    assert (FAIL, 4) == (judge(record, None).word, judge(record, None).exit_code)
    assert FAIL == judge(record, make_record(record.runs)).word


def test_no_round_without_a_fault_is_not_measured() -> None:
    """Nothing drafted and nothing wrong: inconclusive, with and without a reference."""
    record = make_record([make_run("a", [])])

    assert INCONCLUSIVE == judge(record, None).word == judge(record, record).word


def test_too_few_prompts_are_inconclusive() -> None:
    """Below the minimum nothing passes, not even an equal record."""
    record = make_record(drawn_runs(0.7, prompts=Rules().min_prompts - 1))

    assert (INCONCLUSIVE, 6) == (judge(record, record).word, judge(record, record).exit_code)


def test_no_rounds_are_not_measured() -> None:
    """A run that never drafted is neither good nor bad."""
    record = make_record([make_run("a", []), make_run("bb", [])])

    assert 6 == judge(record, None).exit_code
    assert 6 == judge(record, record).exit_code


def thinned(runs: list[PromptRun], share: float, seed: int = 3) -> list[PromptRun]:
    """The runs with about `share` of the rounds accepting one token less."""
    rng = np.random.default_rng(seed)

    def less(d: int, a: int) -> tuple[int, int]:
        return (d, a - 1) if a and rng.random() < share else (d, a)

    return [replace(run, rounds=tuple(less(d, a) for d, a in run.rounds)) for run in runs]


def test_a_loss_above_the_limit_fails_and_below_it_passes() -> None:
    """The limit divides: a little less passes, clearly more fails, and raising the limit lets it pass."""
    runs = drawn_runs(0.7)
    reference, worse = make_record(runs), make_record(thinned(runs, 0.3))
    loss = judge(worse, reference).figures["loss"]["value"]

    assert 0.03 < loss < 0.12
    assert PASS == judge(make_record(thinned(runs, 0.05)), reference).word
    assert FAIL == judge(worse, reference).word
    assert PASS == judge(worse, reference, Rules(max_loss=loss + 0.001)).word


def test_no_false_alarm_in_a_hundred_reruns_of_an_equal_draft() -> None:
    """Rounds that differ by accident, with nothing lost on average, never fail."""
    runs = drawn_runs(0.7)
    reference = make_record(runs)
    rng = np.random.default_rng(5)

    def jitter(run: PromptRun) -> PromptRun:
        steps = rng.choice([-1, 0, 1], p=[0.05, 0.9, 0.05], size=len(run.rounds))
        moved = [
            (d, a + s if 0 <= a + s <= d else a)
            for (d, a), s in zip(run.rounds, steps.tolist(), strict=True)
        ]
        return replace(
            run, rounds=tuple(moved), new_tokens=tuple(range(1 + sum(a + 1 for _, a in moved)))
        )

    words = [judge(make_record([jitter(r) for r in runs]), reference).word for _ in range(100)]

    assert 0 == words.count(FAIL)
    assert 95 <= words.count(PASS)


def test_a_loss_in_one_domain_is_not_hidden_by_the_others() -> None:
    """Half of one domain's acceptance lost: fails by the domain's name."""
    runs = drawn_runs(0.7)
    worse = [thinned([r], 0.6)[0] if r.domain == "prose" else r for r in runs]

    verdict = judge(make_record(worse), make_record(runs))

    assert FAIL == verdict.word
    assert any("domain prose" in reason for reason in verdict.reasons)


def test_a_cliff_at_one_position_is_named() -> None:
    """A draft that never accepts beyond position 4 falls below the reference's band there."""
    runs = drawn_runs(0.8)
    cut = [replace(r, rounds=tuple((d, min(a, 4)) for d, a in r.rounds)) for r in runs]

    verdict = judge(make_record(cut), make_record(runs))

    assert FAIL == verdict.word
    assert any("position 5" in reason for reason in verdict.reasons)


def test_next_to_nothing_accepted_is_broken_not_slow() -> None:
    """Near-zero acceptance fails without a reference, and says where to look."""
    verdict = judge(make_record([make_run("a", [(7, 0)] * 50)]), None)

    assert (FAIL, 4) == (verdict.word, verdict.exit_code)
    assert "numerically broken" in verdict.reasons[0]


def test_a_lost_token_fails_whatever_is_accepted() -> None:
    """Output that differs from the target's own fails, with place and margin."""
    record = make_record(drawn_runs(0.9))
    first = Difference("p3", 17, 5, 6, 2.5)

    verdict = judge(replace(record, lossless=False, first_difference=first), record)

    assert FAIL == verdict.word
    assert "p3" in verdict.reasons[0]
    assert "17" in verdict.reasons[0]
    assert "2.5" in verdict.reasons[0]


def test_drafts_that_are_not_finite_fail() -> None:
    """A draft dropped for NaN or infinity is a broken draft."""
    assert FAIL == judge(replace(make_record(drawn_runs(0.7)), bad_drafts=1), None).word


def with_margins(runs: list[PromptRun], margin: float) -> list[PromptRun]:
    return [replace(r, margins=(margin,) * (len(r.rounds) + 1)) for r in runs]


def moved(runs: list[PromptRun], prompt: int, index: int) -> list[PromptRun]:
    """The runs with one round of one prompt accepting one token less."""
    rounds = list(runs[prompt].rounds)
    d, a = rounds[index]
    rounds[index] = (d, a - 1)
    return [replace(r, rounds=tuple(rounds)) if i == prompt else r for i, r in enumerate(runs)]


def exact_pair(margin: float) -> tuple[Record, Record]:
    """A reference with margins, and a record of the same draft that differs in one round of one prompt."""
    runs = [make_run(f"p{'x' * i}", HAND_LOG * 5) for i in range(9)]
    return make_record(moved(runs, 4, 3), subject=SAME), make_record(
        with_margins(runs, margin), subject=SAME
    )


def test_one_round_of_the_same_draft_that_differs_fails() -> None:
    """The same values in another container must give every round; the statistics alone would not see one."""
    record, reference = exact_pair(margin=0.5)
    stranger = replace(record, subject=replace(record.subject, draft_values_sha256=""))

    verdict = judge(record, reference)

    assert FAIL == verdict.word
    assert "pxxxx, round 3" in verdict.reasons[0]
    assert PASS == judge(stranger, reference).word


def test_a_round_decided_inside_the_tie_band_may_fall_either_way() -> None:
    """Below the band a differing round is noted, not judged."""
    record, reference = exact_pair(margin=5e-5)

    verdict = judge(record, reference)

    assert PASS == verdict.word
    assert 1 == verdict.figures["ties"]


def test_the_tie_band_depends_on_the_cache_type() -> None:
    """A margin that an F16 cache may flip excuses nothing in an F32 run."""
    record, reference = exact_pair(margin=5e-3)
    half = replace(record, subject=replace(record.subject, kv_type="f16"))

    assert (FAIL, PASS) == (judge(record, reference).word, judge(half, reference).word)


def test_a_differing_token_is_a_differing_round() -> None:
    """Equal lengths with another token are not equal."""
    record, reference = exact_pair(margin=0.5)
    same = reference.runs[2]
    other = replace(same, new_tokens=(*same.new_tokens[:5], 999, *same.new_tokens[6:]))
    runs = tuple(other if r.id == same.id else r for r in reference.runs)

    assert FAIL == judge(replace(record, runs=runs), reference).word


@pytest.mark.parametrize("change", [{"new_tokens": (0, 1, 2, 3, 4, 9)}, {"stop": "eos"}])
def test_what_follows_the_last_round_must_be_equal_too(change: dict[str, Any]) -> None:
    """A last token decoded without a draft, or another stop, parts two runs whose rounds all agree."""
    runs = [make_run(f"p{'x' * i}", [(3, 3)], new_tokens=tuple(range(6))) for i in range(9)]
    other = [*runs[:4], replace(runs[4], **change), *runs[5:]]
    reference = make_record(with_margins(runs, 0.5), subject=SAME)

    verdict = judge(make_record(other, subject=SAME), reference)

    assert PASS == judge(make_record(runs, subject=SAME), reference).word
    assert FAIL == verdict.word
    assert "pxxxx, round 1" in verdict.reasons[0]


def test_a_spec_that_differs_is_noted_beside_the_verdict() -> None:
    """Another RoPE base is not a condition but a suspect."""
    runs = drawn_runs(0.7)

    verdict = judge(
        make_record(runs, subject={"draft_spec": {"rope_theta": 1e4}}), make_record(runs)
    )

    assert any("rope_theta" in note for note in verdict.notes)


def test_the_verdict_is_the_same_every_time() -> None:
    """The bootstrap is seeded: equal records, equal figures."""
    runs = drawn_runs(0.7)
    pair = make_record(thinned(runs, 0.2)), make_record(runs)

    assert judge(*pair) == judge(*pair)
