"""The definitions of acceptance, and records that cannot be wrong without being refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from dflash_gguf.convert.errors import InputError, NotComparableError
from dflash_gguf.runtime.record import (
    PromptRun,
    Record,
    Timings,
    record_from_json,
    tally,
    tokens_sha256,
)
from hypothesis import given
from hypothesis import strategies as st
from records import HAND_LOG, make_record, make_run

ROUNDS = st.lists(
    st.integers(1, 7).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), max_size=30
)


def test_the_hand_made_log_gives_the_published_figures() -> None:
    """Three rounds of 3 with 3, 1, 0 accepted, and a draft that was never verified: rate 4/9, mean length 7/3."""
    found = tally([*HAND_LOG, (0, 0)])

    assert (3, 9, 4) == (found.rounds, found.drafted, found.accepted)
    assert 4 / 9 == found.acceptance_rate
    assert 7 / 3 == found.mean_accepted_length
    assert (2 / 3, 1 / 3, 1 / 3) == found.per_position
    assert (2 / 3, 1 / 2, 1) == found.per_position_conditional


def test_no_rounds_are_not_measured_rather_than_zero() -> None:
    """Without a verified draft there is no rate and no mean length."""
    found = tally([(0, 0)])

    assert (None, None, ()) == (
        found.acceptance_rate,
        found.mean_accepted_length,
        found.per_position,
    )


@given(ROUNDS, ROUNDS)
def test_figures_are_of_sums_not_means_of_means(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    """Two logs together give what the one long log gives, and the marginal rates sum to the accepted tokens."""
    a, b, both = tally(left), tally(right), tally(left + right)

    assert (a.rounds + b.rounds, a.drafted + b.drafted, a.accepted + b.accepted) == (both.rounds, both.drafted, both.accepted)  # fmt: skip
    assert both.accepted == sum(both.kept)
    assert list(both.kept) == sorted(both.kept, reverse=True)
    assert all(k <= r for k, r in zip(both.kept, both.reached, strict=True))


def test_a_token_after_the_first_reject_counts_nowhere() -> None:
    """A longer budget alone never raises the accepted count: only the leading run enters."""
    assert tally([(3, 1)]).accepted == tally([(7, 1)]).accepted
    assert tally([(7, 1)]).acceptance_rate < tally([(3, 1)]).acceptance_rate  # type: ignore[operator]


def test_domains_add_up_to_the_total() -> None:
    """Each domain's counts are the sums over its prompts, in the order of the set."""
    record = make_record([make_run("a", HAND_LOG, "json"), make_run("bb", [(7, 7)], "code"), make_run("ccc", [(2, 0)], "json")])  # fmt: skip

    assert ["json", "code"] == list(record.domains)
    assert (11, 4) == (record.domains["json"].drafted, record.domains["json"].accepted)
    assert record.total.accepted == sum(t.accepted for t in record.domains.values())


def full_record() -> Record:
    """A record with every optional part present."""
    runs = [
        make_run("a", HAND_LOG, margins=(0.5, 1.0, 0.0, 2.5)),
        make_run("bb", [(7, 7)], "prose", stop="eos"),
    ]
    return replace(make_record(runs), lossless=True, draft_kv_bytes=4096, timings=Timings(0.1, 0.2, 0.3, 0.7, 0.1, 1.2, 20))  # fmt: skip


def test_a_record_survives_json_unchanged() -> None:
    """Writing and reading gives an equal record, and the same bytes again."""
    record = full_record()

    again = record_from_json(record.to_json().encode(), "r.json")

    assert record == again
    assert record.to_json() == again.to_json()


def mutated(change: Any) -> bytes:
    """The full record's JSON after `change(body)`."""
    body = json.loads(full_record().to_json())
    change(body)
    return json.dumps(body).encode()


HOSTILE = {
    "unknown field": lambda b: b.update(extra=1),
    "missing field": lambda b: b.pop("lossless"),
    "unknown field inside": lambda b: b["subject"].update(extra=1),
    "wrong type": lambda b: b["conditions"].update(n_max="7"),
    "bool as a count": lambda b: b["conditions"].update(n_max=True),
    "digest not hex": lambda b: b["conditions"].update(target_sha256="z" * 64),
    "digest too short": lambda b: b["conditions"].update(target_sha256="a" * 63),
    "digest of other prompts": lambda b: b["conditions"].update(prompts_sha256="a" * 64),
    "block size 0": lambda b: b["conditions"].update(block_size=0),
    "n_max of the whole block": lambda b: b["conditions"].update(n_max=8),
    "accepted more than drafted": lambda b: b["runs"][0]["rounds"].__setitem__(0, [3, 4]),
    "accepted below zero": lambda b: b["runs"][0]["rounds"].__setitem__(0, [3, -1]),
    "drafted more than n_max": lambda b: b["runs"][0]["rounds"].__setitem__(0, [8, 0]),
    "drafted nothing": lambda b: b["runs"][0]["rounds"].__setitem__(0, [0, 0]),
    "round of three numbers": lambda b: b["runs"][0]["rounds"].__setitem__(0, [3, 3, 3]),
    "more tokens than max_new": lambda b: b["conditions"].update(max_new=3),
    "fewer tokens than the rounds gave": lambda b: b["runs"][0].update(new_tokens=[1]),
    "margins of another length": lambda b: b["runs"][0].update(margins=[1.0]),
    "negative margin": lambda b: b["runs"][0]["margins"].__setitem__(0, -1.0),
    "prompt twice": lambda b: b["runs"].append(b["runs"][0]),
    "totals that do not sum": lambda b: b["totals"].update(accepted=99),
    "mean length above the block": lambda b: b["totals"].update(mean_accepted_length=9.5),
    "per-position rates that do not sum": lambda b: b["totals"]["per_position"].__setitem__(0, 1.0),
    "negative bad drafts": lambda b: b.update(bad_drafts=-1),
    "no schema": lambda b: b.pop("schema"),
    "half a surrogate pair": lambda b: b["subject"].update(draft_name="\ud800"),
    "schema is a string": lambda b: b.update(schema="1"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_that_contradicts_itself_is_refused(name: str) -> None:
    """Each wrong field is refused with the file and a place in the message."""
    with pytest.raises(InputError) as caught:
        record_from_json(mutated(HOSTILE[name]), "r.json")

    assert caught.value.where


TEXTS = {
    "empty": "",
    "not JSON": "{",
    "a list": "[]",
    "NaN": '{"schema": NaN}',
    "infinity": '{"schema": 1, "totals": 1e999}',
    "duplicate key": '{"schema": 1, "schema": 1}',
    "nested deep": "[" * 100_000,
    "huge integer": '{"schema": 1, "totals": ' + "9" * 10_000 + "}",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_record_is_refused(name: str) -> None:
    """JSON that two readers could read differently is no record."""
    with pytest.raises(InputError, match=r"r\.json"):
        record_from_json(TEXTS[name].encode(), "r.json")


def test_a_record_of_another_schema_is_not_comparable() -> None:
    """Another version of the rules gives exit 6, not a number."""
    with pytest.raises(NotComparableError, match="schema 2"):
        record_from_json(mutated(lambda b: b.update(schema=2)), "r.json")


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20))
def test_a_token_digest_depends_on_every_token(tokens: list[int]) -> None:
    """Appending one token always changes the digest."""
    assert tokens_sha256(tokens) != tokens_sha256([*tokens, 0])


def test_limiting_a_record_equals_having_run_fewer_prompts() -> None:
    """The first prompts of a record are the record of the first prompts."""
    runs: list[PromptRun] = [make_run("a", HAND_LOG), make_run("bb", [(7, 7)])]

    assert make_record(runs[:1]) == make_record(runs).limited(1)
    assert make_record(runs) == make_record(runs).limited(5)
