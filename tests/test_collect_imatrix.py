"""Importance matrices from real speculation: the sums are PyTorch's, no thread moves a bit, and nothing else changes."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_pair
import torch
from click.testing import CliRunner, Result
from dflash_gguf.convert.errors import InputError, UsageError
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.quantize.cli import main as quantize
from dflash_gguf.quantize.imatrix import merge, read_imatrix
from dflash_gguf.runtime.cli import main
from dflash_gguf.runtime.engine import Engine, EngineOptions, Generation, InputSquares
from dflash_gguf.runtime.identity import canonical_name
from dflash_gguf.runtime.importance import importance_of
from dflash_gguf.runtime.oracle_draft import Draft, Proposal
from dflash_gguf.runtime.oracle_target import Target
from dflash_gguf.runtime.prompts import read_prompts
from dflash_gguf.runtime.record import record_from_json
from dflash_gguf.runtime.tokenizer import target_ids
from safetensors.torch import load_file, save_file
from trained_pair import PAIR, PROMPTS, TARGET, draft_gguf

EXACT = EngineOptions(kv="full", kv_type="f32", threads=1)


class Watched(Draft):
    """The oracle's draft, which sums the squares of what its matrices are multiplied with, in F64."""

    def start(self) -> None:
        """From nothing."""
        self.squares: dict[str, Any] = defaultdict(float)
        self.counted: dict[str, int] = defaultdict(int)
        self.watching = True
        self.drafted = 0

    def see(self, name: str, x: torch.Tensor) -> None:
        if self.watching:
            rows = x.double().reshape(-1, x.shape[-1])
            self.squares[canonical_name(name)] += rows.square().sum(0)
            self.counted[canonical_name(name)] += len(rows)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        self.see(f"{name}.weight", x)
        return super().linear(x, name)

    def convolve(self, name: str, side: int, u: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """One product gives the coefficients of both sides; the oracle takes it twice."""
        self.watching = side == 0
        out = super().convolve(name, side, u, x)
        self.watching = True
        return out

    def choose(self, proposal: Proposal, row: int, predecessor: int) -> None:
        """The rows behind the drafts are not looked at."""
        if row > self.drafted:
            return
        super().choose(proposal, row, predecessor)
        if self.config.top_k:
            stem, w = "candidate_selector", self.weights
            gate = proposal.hidden[row] @ w[f"{stem}.hidden_projection.weight"].T
            before = w[f"{stem}.predecessor_codebook"][predecessor]
            after = w[f"{stem}.successor_codebook"][proposal.candidates[row - 1]]
            self.see(f"{stem}.successor_codebook", before * gate)
            self.see(f"{stem}.predecessor_codebook", after * gate)

    def follow(self, prompt: list[int], g: Generation) -> None:
        """Draft what the engine drafted; what it committed after its last step, nobody reads."""
        self.reset()
        tokens, at = prompt + g.tokens, len(prompt)
        states, _ = self.target.forward(tokens, [])
        features = torch.cat([states[i] for i in self.config.target_layer_ids], -1)
        for drafted, accepted in g.rounds:
            self.extend(features[self.committed : at])
            self.drafted = drafted
            self.propose(tokens[at])
            at += accepted + 1
        if g.steps > len(g.rounds):
            self.extend(features[self.committed : at])


def agree(found: dict[str, InputSquares], expected: Watched) -> None:
    """Every tensor, its rows, and each sum within 1e-5."""
    assert dict(expected.counted) == {name: seen.rows for name, seen in found.items()}
    for name, seen in found.items():
        np.testing.assert_allclose(seen.sums, expected.squares[name].numpy(), rtol=1e-5, atol=0)


def tiny(folder: Path, config: dict[str, Any]) -> tuple[Path, Path]:
    """A random pair as F32 GGUFs; checkpoints beside them."""
    tiny_pair.write_target(folder / "target", eos_token_id=None)
    tiny_pair.write_draft(folder / "draft", config)
    target = tiny_pair.write_target_gguf(folder / "target.gguf", folder / "target", "f32")
    return target, tiny_pair.write_draft_gguf(folder / "draft.gguf", folder / "draft", "f32")


CONFIGS = {"v1": tiny_pair.V1, "v2": tiny_pair.V2}


@pytest.mark.parametrize("n_max", [2, 3])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_sums_are_pytorchs_on_a_random_pair(
    tmp_path: Path, config: dict[str, Any], n_max: int
) -> None:
    """Context and noise rows, all matrices and both codebooks, over two prompts, with the block cut and whole."""
    engine = Engine(*tiny(tmp_path, config), EXACT)
    oracle = Watched.read(tmp_path / "draft", Target(tmp_path / "target"))
    oracle.start()
    engine.collect_inputs()
    for seed in (1, 2):
        prompt = torch.randint(0, 96, (21,), generator=torch.Generator().manual_seed(seed)).tolist()
        oracle.follow(prompt, engine.generate(prompt, 25, n_max=n_max))
        engine.generate(prompt, 25, n_max=0)  # no draft, nothing to count

    agree(engine.collected(), oracle)


@cache
def calibration() -> dict[str, list[int]]:
    prompts = read_prompts(PROMPTS / "pair-calibration.jsonl")
    ids = target_ids(TARGET, prompts, 1024, 2048)
    return {p.id: tokens for p, tokens in zip(prompts, ids, strict=True)}


@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_the_sums_are_pytorchs_on_the_trained_pair(variant: str) -> None:
    """A calibration prompt of 160 tokens and 60 new ones, window 64."""
    engine = Engine(TARGET, draft_gguf(variant), replace(EXACT, max_context=512))
    oracle = Watched.read(PAIR / f"draft-{variant}", Target(PAIR / "target"))
    oracle.start()
    engine.collect_inputs()

    oracle.follow(calibration()["code-05"], engine.generate(calibration()["code-05"], 60))

    agree(engine.collected(), oracle)


@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_no_bit_depends_on_threads_instruction_set_or_micro_batch(variant: str) -> None:
    """Sums of a prompt of 240 tokens are equal in every bit."""
    found = []
    changes: list[dict[str, Any]] = [{}, {"threads": 3}, {"isa": "scalar"}, {"micro_batch": 7}]
    for change in changes:
        options = replace(EXACT, max_context=512, **change)
        engine = Engine(TARGET, draft_gguf(variant), options)
        engine.collect_inputs()
        engine.generate(calibration()["json-07"], 24)
        found.append({n: (s.rows, s.sums.tobytes()) for n, s in engine.collected().items()})

    assert all(found[0] == other for other in found[1:])


def test_two_halves_merge_to_the_whole() -> None:
    """Prompts collected apart and merged give the sums of one run, to float32."""
    engine = Engine(TARGET, draft_gguf("v2"), replace(EXACT, max_context=512))
    names, parts = ["counting-01", "prose-02"], []
    for group in (names, names[:1], names[1:]):
        engine.collect_inputs()
        for name in group:
            engine.generate(calibration()[name], 24)
        parts.append(importance_of(engine, "a set"))

    whole, both = parts[0], merge(parts[1:])

    assert set(whole.sums) == set(both.sums)
    assert whole.chunk_count == both.chunk_count
    for name in whole.sums:
        np.testing.assert_allclose(whole.sums[name], both.sums[name], rtol=1e-6)
        np.testing.assert_array_equal(whole.counts[name], both.counts[name])


def test_a_draft_with_a_head_of_its_own_sees_its_final_states(tmp_path: Path) -> None:
    """`output.weight` is multiplied with the final-normed rows, the embeddings with nothing."""
    target, draft = tiny(tmp_path, tiny_pair.V1)
    weights = load_file(tmp_path / "draft" / "model.safetensors")
    theirs = load_file(tmp_path / "target" / "model.safetensors")
    weights |= {n: theirs[n].clone() for n in ("lm_head.weight", "model.embed_tokens.weight")}
    save_file(weights, tmp_path / "draft" / "model.safetensors")
    draft = tiny_pair.write_draft_gguf(tmp_path / "own.gguf", tmp_path / "draft", "f32")
    engine = Engine(target, draft, EXACT)
    engine.collect_inputs()

    hidden = engine.propose([5, 17, 42, 8]).hidden.astype(np.float64)

    found = engine.collected()
    assert "token_embd.weight" not in found
    np.testing.assert_allclose(found["output.weight"].sums, (hidden**2).sum(0), rtol=1e-12)


def test_nothing_collected_is_an_error(tmp_path: Path) -> None:
    """Before `collect_inputs`, without a draft, and without a round."""
    target, draft = tiny(tmp_path, tiny_pair.V1)
    engine = Engine(target, draft, EXACT)
    with pytest.raises(UsageError):
        engine.collected()
    with pytest.raises(UsageError):
        Engine(target, None, EXACT).collect_inputs()
    engine.collect_inputs()
    engine.generate([1, 2, 3], 8, n_max=0)
    with pytest.raises(InputError, match="nothing was drafted"):
        importance_of(engine, "a set")


def validate(draft: Path, prompts: Path, *options: object) -> Result:
    """dflash-validate on the trained pair."""
    common = ["--target", TARGET, "--prompts", prompts, "--max-new", 16, "--threads", 1]
    return CliRunner().invoke(main, [str(a) for a in (draft, *common, *options)])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Four calibration prompts, one a domain."""
    lines = (PROMPTS / "pair-calibration.jsonl").read_text().splitlines()[::8]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_collecting_changes_nothing_and_the_file_weighs_the_quantiser(
    tmp_path: Path, prompts: Path, variant: str
) -> None:
    """The record of a run that collects is that of one that does not; every matrix of the draft has its entry."""
    draft = draft_gguf(variant)
    plain = validate(draft, prompts, "--out", tmp_path / "plain.json")
    done = validate(draft, prompts, "--out", tmp_path / "r.json", "--collect-imatrix", tmp_path / "i.gguf", "--json")  # fmt: skip
    quantised = CliRunner().invoke(quantize, [str(a) for a in (draft, tmp_path / "q.gguf", "--scheme", "q2_k", "--imatrix", tmp_path / "i.gguf")])  # fmt: skip

    assert (0, 0) == (plain.exit_code, done.exit_code), done.output
    matrix, body = read_imatrix(tmp_path / "i.gguf"), json.loads(done.stdout)
    a, b = (record_from_json((tmp_path / n).read_bytes(), n) for n in ("plain.json", "r.json"))
    assert replace(a, timings=None) == replace(b, timings=None)
    assert ("some.jsonl",) == matrix.datasets
    assert body["imatrix"]["blocks"] == matrix.chunk_count == body["rounds"]
    assert body["imatrix"]["tensors"] == len(matrix.sums)
    assert 0 == quantised.exit_code, quantised.output
    tensors = json.loads((tmp_path / "q.manifest.json").read_text())["tensors"]
    weighted = {t["name"] for t in tensors if t.get("importance")}
    assert (
        weighted
        == {t["name"] for t in tensors if not t["why"].startswith("kept")}
        == set(matrix.sums)
    )


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--collect-imatrix", "DRAFT", "--overwrite"], 2),
        (["--collect-imatrix", "i.gguf"], 2),
        (["--collect-imatrix", "new.gguf", "--out", "./new.gguf"], 2),
        (["--collect-imatrix", "nowhere/i.gguf"], 5),
        (["--collect-imatrix", "new.gguf", "--out", "nowhere/r.json"], 5),
    ],
)
def test_an_output_that_must_not_be_written_stops_the_run_before_it_starts(
    tmp_path: Path, prompts: Path, options: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft itself, a file that exists, one name for two outputs, a folder that is not there."""
    monkeypatch.chdir(tmp_path)
    Path("i.gguf").write_bytes(b"old")
    draft = draft_gguf("v1")

    done = validate(draft, prompts, *[draft if o == "DRAFT" else o for o in options])

    assert code == done.exit_code, done.output
    assert b"old" == Path("i.gguf").read_bytes()
    assert {"i.gguf", "some.jsonl"} == {p.name for p in tmp_path.iterdir()}


def test_a_run_that_fails_writes_neither_file(tmp_path: Path, prompts: Path) -> None:
    """A draft that the engine cannot run: exit 3, the old matrix intact."""
    (tmp_path / "i.gguf").write_bytes(b"old")
    (tmp_path / "bad.gguf").write_bytes(draft_gguf("v1").read_bytes()[:100_000])

    done = validate(tmp_path / "bad.gguf", prompts, "--collect-imatrix", tmp_path / "i.gguf", "--out", tmp_path / "r.json", "--overwrite")  # fmt: skip

    assert 3 == done.exit_code, done.output
    assert b"old" == (tmp_path / "i.gguf").read_bytes()
    assert not (tmp_path / "r.json").exists()


def test_activations_that_are_not_finite_are_refused_by_tensor(
    tmp_path: Path, prompts: Path
) -> None:
    """A draft whose first layer overflows: exit 3 names a tensor, and nothing is written."""
    raw = bytearray(draft_gguf("v1").read_bytes())
    info = read_gguf(draft_gguf("v1")).tensors["blk.1.attn_norm.weight"]
    raw[info.offset : info.offset + info.nbytes] = np.full(info.nbytes // 4, 3e38, "<f4").tobytes()
    (tmp_path / "hot.gguf").write_bytes(raw)

    done = validate(tmp_path / "hot.gguf", prompts, "--collect-imatrix", tmp_path / "i.gguf")

    assert 3 == done.exit_code, done.output
    assert "blk." in done.stderr
    assert not (tmp_path / "i.gguf").exists()


def test_no_prompt_is_in_two_packaged_sets() -> None:
    """The calibration set shares no prompt, no document and no token string with the held-out gate, nor the smoke set."""
    sets = {n: read_prompts(PROMPTS / f"{n}.jsonl") for n in ("pair", "pair-smoke", "pair-calibration")}  # fmt: skip
    held_out = {p.text for n in ("pair", "pair-smoke") for p in sets[n]}
    documents = {str(text).split("\n")[0] for text in held_out}

    ours = sets["pair-calibration"]

    assert [p.domain for p in ours] == [p.domain for p in sets["pair"]]
    assert len({p.text for p in ours}) == len(ours) == 32
    for p in ours:
        assert p.text is not None
        if len(p.text.splitlines()) > 1:  # the first line names the document
            assert p.text.split("\n")[0] not in documents
        assert not any(str(other).startswith(p.text) or p.text.startswith(str(other)) for other in held_out)  # fmt: skip
