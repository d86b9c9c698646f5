"""Replay gives the real loop's rounds from a recorded text, for the file's draft and for one with other tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny_pair
import torch
from click.testing import CliRunner
from dflash_gguf.convert.errors import InputError, UsageError
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.quantize.cli import main as quantize
from dflash_gguf.quantize.imatrix import read_imatrix, write_imatrix
from dflash_gguf.quantize.qtypes import BY_ID
from dflash_gguf.runtime import replay as module
from dflash_gguf.runtime.candidates import Candidates
from dflash_gguf.runtime.engine import Engine, EngineOptions, StoredTensor
from dflash_gguf.runtime.importance import importance_of
from dflash_gguf.runtime.oracle_draft import Draft
from dflash_gguf.runtime.oracle_target import Target
from dflash_gguf.runtime.prompts import read_prompts
from dflash_gguf.runtime.record import Limits
from dflash_gguf.runtime.replay import (
    Recording,
    Replay,
    accepted_length,
    estimate,
    expected_length,
    loop_length,
    loss,
    mean_log_probability,
    record_texts,
    replay_all,
)
from dflash_gguf.runtime.replay import replay as run
from dflash_gguf.runtime.tokenizer import target_ids
from trained_pair import PROMPTS, TARGET, draft_gguf

OPTIONS = EngineOptions(threads=1, max_context=512)
LIMITS = Limits(n_max=7, max_new=40, context_length=512)


@cache
def engine(variant: str) -> Engine:
    return Engine(TARGET, draft_gguf(variant), OPTIONS)


@cache
def recordings(variant: str) -> tuple[Recording, ...]:
    """Texts of 40 tokens behind four prompts, one a domain."""
    prompts = read_prompts(PROMPTS / "pair.jsonl")[3::8]
    ids = target_ids(TARGET, prompts, 1024, 512)
    return record_texts(engine(variant), zip(prompts, ids, strict=True), LIMITS)


@cache
def replays(variant: str) -> tuple[Replay, ...]:
    return replay_all(engine(variant), recordings(variant), 7)


def loop(e: Engine, r: Recording, n_max: int) -> list[tuple[int, int]]:
    """The real loop's rounds on the recording's prompt."""
    eos = e.target_spec.eos_token_ids
    return e.generate(r.tokens[: r.prompt], r.budget, n_max=n_max, eos=eos).rounds


@pytest.mark.parametrize("variant", ["v1", "v2"])
@pytest.mark.parametrize("n_max", [1, 4, 7])
def test_the_rounds_are_the_real_loops(variant: str, n_max: int) -> None:
    """From the anchors at every position, and from those alone at which the loop's rounds start."""
    e = engine(variant)
    for recording in recordings(variant):
        everywhere = run(e, recording, n_max)
        rounds = everywhere.rounds()
        starts = np.cumsum([0, *(a + 1 for _, a in rounds)])[: len(rounds)].tolist()
        alone = run(e, recording, n_max, starts)

        assert loop(e, recording, n_max) == rounds
        assert rounds == list(zip(alone.drafted.tolist(), alone.accepted.tolist(), strict=True))


def test_a_ring_that_wraps_and_a_full_cache_replay_as_they_run() -> None:
    """The context is the loop's, whatever holds it."""
    for options in (replace(OPTIONS, ring=24), replace(OPTIONS, kv="full", kv_type="f32")):
        e = Engine(TARGET, draft_gguf("v1"), options)
        for recording in recordings("v1"):
            assert loop(e, recording, 7) == run(e, recording, 7).rounds()


@pytest.mark.parametrize("end", ["eos", "context"])
def test_texts_that_end_early_replay_as_they_ran(tmp_path: Path, end: str) -> None:
    """An end token inside a draft, and a context that is full: the last rounds are cut as in the loop."""
    tiny_pair.write_target(tmp_path / "target", eos_token_id=None)
    tiny_pair.write_draft(tmp_path / "draft", tiny_pair.V1)
    draft = tiny_pair.write_draft_gguf(tmp_path / "d.gguf", tmp_path / "draft")
    target = tiny_pair.write_target_gguf(tmp_path / "t.gguf", tmp_path / "target")
    prompt, length = [5, 17, 42, 8, 3, 77], 40 if end == "context" else 512
    text = Engine(target, draft, EngineOptions(max_context=length)).generate(prompt, 60)
    tiny_pair.write_target(tmp_path / "target", eos_token_id=text.tokens[20] if end == "eos" else None)  # fmt: skip
    target = tiny_pair.write_target_gguf(tmp_path / "t2.gguf", tmp_path / "target")
    e = Engine(target, draft, EngineOptions(max_context=length))
    limits = Limits(n_max=3, max_new=60, context_length=length)
    prompts = [(read_prompts(PROMPTS / "pair-smoke.jsonl")[0], prompt)]

    (recording,) = record_texts(e, prompts, limits)
    new = recording.tokens[recording.prompt :]

    assert len(new) == (34 if end == "context" else 1 + text.tokens.index(text.tokens[20]))
    assert loop(e, recording, 3) == run(e, recording, 3).rounds()


@pytest.mark.parametrize("config", [tiny_pair.V1, tiny_pair.V2], ids=["v1", "v2"])
def test_probabilities_are_pytorchs(tmp_path: Path, config: dict[str, object]) -> None:
    """Of the text's tokens, each given the text before it: by the head among all, by the selector among its candidates."""
    tiny_pair.write_target(tmp_path / "target", eos_token_id=None)
    tiny_pair.write_draft(tmp_path / "draft", config)
    target = tiny_pair.write_target_gguf(tmp_path / "t.gguf", tmp_path / "target", "f32")
    draft = tiny_pair.write_draft_gguf(tmp_path / "d.gguf", tmp_path / "draft", "f32")
    e = Engine(target, draft, EngineOptions(kv="full", kv_type="f32"))
    oracle = Draft.read(tmp_path / "draft", Target(tmp_path / "target"))
    prompts = [(read_prompts(PROMPTS / "pair-smoke.jsonl")[0], [5, 17, 42, 8, 3, 77, 21])]
    (recording,) = record_texts(e, prompts, Limits(n_max=3, max_new=20, context_length=512))
    found = run(e, recording, 3)

    for i in recording.anchors:
        at = recording.prompt + i
        oracle.reset()
        oracle.extend(torch.from_numpy(recording.features[:at]))
        p = oracle.propose(recording.tokens[at])
        for j in range(found.drafted[i]):
            truth, before = recording.tokens[at + 1 + j], recording.tokens[at + j]
            logits, among = p.logits[j + 1], p.logits[j + 1].softmax(-1)
            if oracle.config.top_k:
                again = replace(p, tokens=[], scores=[], candidates=[])
                oracle.choose(again, j + 1, before)
                scores = torch.full_like(logits, -torch.inf)
                scores[again.candidates[-1]] = again.scores[-1][again.candidates[-1]]
                among = scores.softmax(-1)
            np.testing.assert_allclose(found.log_probability[i, j], logits.log_softmax(-1)[truth], rtol=1e-4)  # fmt: skip
            np.testing.assert_allclose(found.chosen[i, j], among[truth], rtol=1e-3, atol=1e-7)
        assert np.isnan(found.chosen[i, found.drafted[i] :]).all()


@pytest.fixture(scope="module", params=["v1", "v2"])
def quantised(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """Variant, its q2_k file, and the importance matrix that the file was made with."""
    folder = tmp_path_factory.mktemp("quantised")
    e = Engine(TARGET, draft_gguf(request.param), OPTIONS)
    e.collect_inputs()
    e.generate(list(range(40)), 20)
    write_imatrix(folder / "i.gguf", importance_of(e, "made up"))
    arguments = [draft_gguf(request.param), folder / "q.gguf", "--scheme", "q2_k", "--imatrix", folder / "i.gguf"]  # fmt: skip
    done = CliRunner().invoke(quantize, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return request.param, folder / "q.gguf", folder / "i.gguf"


def test_a_candidate_is_the_file_that_the_quantiser_writes(
    quantised: tuple[str, Path, Path],
) -> None:
    """Bytes, size, rounds and probabilities; and with nothing replaced the draft is the file's again."""
    variant, path, imatrix = quantised
    source, file, raw = read_gguf(draft_gguf(variant)), read_gguf(path), path.read_bytes()
    types = {n: BY_ID[t.type].name for n, t in file.tensors.items() if t.type != source.tensors[n].type}  # fmt: skip
    candidates = Candidates.read(draft_gguf(variant), read_imatrix(imatrix).importance())
    e = Engine(TARGET, draft_gguf(variant), OPTIONS)

    tensors = candidates.of(types)
    e.replace_tensors(tensors)
    replaced = replay_all(e, recordings(variant), 7)
    opened = replay_all(Engine(TARGET, path, OPTIONS), recordings(variant), 7)

    assert len(types) > 10
    for name, tensor in tensors.items():
        t = file.tensors[name]
        assert (t.type, raw[t.offset : t.offset + t.nbytes]) == (tensor.type, tensor.data)
    assert candidates.size(types) == sum(t.nbytes for t in file.tensors.values())
    for a, b in zip(replaced, opened, strict=True):
        assert a.rounds() == b.rounds()
        np.testing.assert_array_equal(a.log_probability, b.log_probability)
        np.testing.assert_array_equal(a.chosen, b.chosen)
    assert any((a.accepted != b.accepted).any() for a, b in zip(replaced, replays(variant), strict=True))  # fmt: skip
    e.replace_tensors({})
    for a, b in zip(replay_all(e, recordings(variant), 7), replays(variant), strict=True):
        np.testing.assert_array_equal(a.chosen, b.chosen)


def test_a_type_that_rows_forbid_becomes_what_the_quantiser_takes() -> None:
    """Rank 32 takes no K-quant: Q4_0 in its place, made once however it was asked for."""
    candidates = Candidates.read(draft_gguf("v2"))

    found = candidates.tensor("selector_successor.weight", "q2_k")

    assert found.type == 2
    assert found is candidates.tensor("selector_successor.weight", "q4_0")


def test_what_cannot_be_replaced_leaves_the_draft_as_it_was() -> None:
    """An unknown name, bytes of another size, a type without a decoder."""
    e = Engine(TARGET, draft_gguf("v1"), OPTIONS)
    name = "blk.0.attn_q.weight"
    for wrong, kind in (
        ({"blk.9.attn_q.weight": StoredTensor(0, b"")}, UsageError),
        ({name: StoredTensor(0, b"1234")}, InputError),
        ({name: StoredTensor(99, b"1234")}, InputError),
        ({"output_norm.weight": StoredTensor(0, b"")}, InputError),
    ):
        with pytest.raises(kind):
            e.replace_tensors(wrong)

    assert run(e, recordings("v1")[0], 7).rounds() == replays("v1")[0].rounds()


def test_a_draft_that_is_not_finite_drafts_nothing() -> None:
    """No round, as in the loop, which then decodes plainly."""
    e = Engine(TARGET, draft_gguf("v1"), OPTIONS)
    norm = np.full(256, 3e38, "<f4").tobytes()
    e.replace_tensors({"blk.1.attn_norm.weight": StoredTensor(0, norm)})

    found = run(e, recordings("v1")[0], 7)

    assert [] == found.rounds() == loop(e, recordings("v1")[0], 7)
    assert (found.drafted == 0).all()
    assert np.isnan(estimate([found], loop_length).value)


BAD: dict[str, Callable[[Recording], tuple[Recording, list[int]]]] = {
    "descending": lambda r: (r, [3, 2]),
    "twice": lambda r: (r, [2, 2]),
    "negative": lambda r: (r, [-1]),
    "the last token": lambda r: (r, [len(r.tokens) - r.prompt - 1]),
    "no prompt": lambda r: (replace(r, prompt=0), [0]),
    "no text": lambda r: (replace(r, prompt=len(r.tokens)), []),
    "more text than allowed": lambda r: (replace(r, budget=3), [0]),
    "a token outside the vocabulary": lambda r: (replace(r, tokens=[*r.tokens[:-1], 1024]), [0]),
    "too few states": lambda r: (replace(r, features=r.features[:-1]), [0]),
    "states of another draft": lambda r: (replace(r, features=np.ascontiguousarray(r.features[:, :256])), [0]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_recording_that_does_not_fit_is_refused(name: str) -> None:
    """Anchors and sizes are checked before the draft runs."""
    recording, anchors = BAD[name](recordings("v1")[0])

    with pytest.raises(UsageError):
        run(engine("v1"), recording, 7, anchors)


def test_a_recording_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of all positions that might come are counted before anything runs."""
    monkeypatch.setattr(module, "MAX_RECORDING", 4 * 1024 * (10 + 40) - 1)
    prompt = read_prompts(PROMPTS / "pair.jsonl")[0]

    with pytest.raises(UsageError, match="would not fit"):
        record_texts(engine("v1"), [(prompt, [1] * 10)], LIMITS)


def test_rounds_need_the_anchors_that_the_loop_visits() -> None:
    """A stride that leaves one out is told so, and gives the other figures all the same."""
    r = recordings("v1")[0]
    found = run(engine("v1"), r, 7, list(r.anchors)[::4])

    assert accepted_length(found)[1] == len(found.anchors[found.drafted > 0])
    np.testing.assert_array_equal(found.accepted, replays("v1")[0].accepted[::4])
    with pytest.raises(UsageError, match="left out"):
        found.rounds(1)


def made_up(name: str, accepted: list[int]) -> Replay:
    """A replay of a text of ten tokens with these accepted lengths."""
    recording = Recording(name, "code", list(range(11)), 1, 20, np.zeros((10, 1), np.float32))
    n = len(accepted)
    return Replay(
        recording, np.arange(n, dtype=np.int32), np.full(n, 3, np.int32), np.array(accepted, np.int32),
        np.tile(np.float32([0.5, 0.5, np.nan]), (n, 1)), np.tile(np.float32([-1.0, -3.0, np.nan]), (n, 1)),
    )  # fmt: skip


def test_figures_are_ratios_of_sums_with_errors_over_prompts() -> None:
    """Worked by hand: the loop visits 0, 3, 4, 6 in one text and every position in the other."""
    a, b = made_up("a", [2, 0, 0, 0, 1, 3, 3, 0, 0]), made_up("b", [0] * 9)

    assert [(3, 2), (3, 0), (3, 1), (3, 3)] == a.rounds()
    assert ((10.0, 4.0), (9.0, 9.0)) == (loop_length(a), loop_length(b))
    assert ((18.0, 9.0), (9.0, 9.0)) == (accepted_length(a), accepted_length(b))
    assert (9 * 1.75, 9.0) == expected_length(a)
    assert (-36.0, 18.0) == mean_log_probability(a)
    both = estimate([a, b], accepted_length)
    assert 1.5 == both.value
    assert both.error == pytest.approx(0.5)  # half the distance of the two means
    against = loss([a, b], [replace(a, accepted=a.accepted * 0), b], accepted_length)
    assert against.value == pytest.approx(1 / 3)
    assert loss([a, b], [a, b], accepted_length) == module.Estimate(0.0, 0.0)
    with pytest.raises(UsageError):
        loss([a], [b], accepted_length)
