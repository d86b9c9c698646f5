"""dflash-validate: what it prints, what it writes, and the exit code that is the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_pair
from click.testing import CliRunner, Result
from dflash_gguf.runtime.cli import main
from dflash_gguf.runtime.record import Record, record_from_json
from trained_pair import PROMPTS, TARGET, draft_gguf

FIELDS = {
    "schema", "verdict", "exit_code", "acceptance_rate", "mean_accepted_length", "rounds", "drafted", "accepted",
    "per_position", "per_position_conditional", "lossless", "first_difference", "draft_kv_bytes", "domains",
    "tokens_per_second", "speed_up",
}  # fmt: skip


def validate(draft: Path, *options: object, target: Path = TARGET) -> Result:
    """The command run in this process."""
    return CliRunner().invoke(
        main, [str(draft), "--target", str(target), "--threads", "1", *map(str, options)]
    )


def short_set(folder: Path, count: int = 8) -> Path:
    """The first prompts of the smoke set."""
    path = folder / "set.jsonl"
    lines = (PROMPTS / "pair-smoke.jsonl").read_text().splitlines()[:count]
    path.write_text("\n".join(lines) + "\n")
    return path


def report(done: Result) -> dict[str, Any]:
    """The one object on stdout."""
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def record(path: Path) -> Record:
    return record_from_json(path.read_bytes(), path.name)


@pytest.fixture(params=["v1", "v2"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Result]:
    """`validate` for each trained draft on a short set, 24 new tokens."""
    prompts = short_set(tmp_path)

    def go(*options: object, converted: tuple[str, ...] = ()) -> Result:
        return validate(
            draft_gguf(request.param, *converted), "--prompts", prompts, "--max-new", 40, *options
        )

    return go


def test_json_has_every_figure_and_nothing_else_is_printed(run: Callable[..., Result]) -> None:
    """One object with the promised fields, consistent with itself; stderr is silent when no terminal listens."""
    done = run("--json")
    body = report(done)

    assert (0, "") == (done.exit_code, done.stderr)
    assert set() == FIELDS - set(body)
    assert body["acceptance_rate"] == body["accepted"] / body["drafted"]
    assert body["accepted"] == sum(d["accepted"] for d in body["domains"].values())
    assert (True, None) == (body["lossless"], body["first_difference"])
    assert body["draft_kv_bytes"] > 0
    assert body["mean_accepted_length"] > 1.2


def test_text_shows_rates_by_domain_memory_speed_and_verdict(run: Callable[..., Result]) -> None:
    """The table a person reads has the same figures."""
    done = run()
    body = report(run("--json"))

    assert f"{body['acceptance_rate']:.3f}" in done.stdout
    assert f"{body['mean_accepted_length']:.3f}" in done.stdout
    assert all(domain in done.stdout for domain in body["domains"])
    assert all(
        word in done.stdout for word in ("draft KV", "tokens/s", "speed-up", "verdict      pass")
    )


def test_full_cache_and_ring_give_the_same_rounds(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    """Every token and every round, and the ring needs no more memory."""
    run("--kv", "full", "--out", tmp_path / "full.json")
    run("--kv", "ring", "--out", tmp_path / "ring.json")

    full, ring = record(tmp_path / "full.json"), record(tmp_path / "ring.json")

    assert full.runs == ring.runs
    assert full.conditions == ring.conditions
    assert ring.draft_kv_bytes <= full.draft_kv_bytes


def test_a_reference_is_written_and_then_passed_with_its_own_limits(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    """n_max and max_new come from the reference; the same draft passes exactly."""
    reference = tmp_path / "ref.json"
    written = run("--reference", reference, "--update-reference", "--n-max", 5)

    body = report(run("--reference", reference, "--json"))

    assert 0 == written.exit_code
    assert ("pass", "exact", 5) == (
        body["verdict"],
        body["comparison"]["mode"],
        body["conditions"]["n_max"],
    )


def test_other_limits_than_the_reference_are_not_comparable(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    """Another n_max or another causality gives exit 6 and the name of what differs."""
    reference = tmp_path / "ref.json"
    run("--reference", reference, "--update-reference")

    for option, value, name in (
        ("--n-max", 3, "n_max"),
        ("--causal", "all", "causal"),
        ("--swa", "anchored", "swa"),
    ):
        done = run("--reference", reference, option, value, "--json")
        assert (6, "not comparable") == (done.exit_code, report(done)["verdict"])
        assert any(name in reason for reason in report(done)["reasons"])


def test_a_small_ring_over_a_full_layer_is_not_comparable(tmp_path: Path) -> None:
    """v1 has a full layer, so a ring shorter than the context is another function; v2 slides everywhere and is not."""
    words = {}
    for variant in ("v1", "v2"):
        common = [
            "--prompts",
            short_set(tmp_path),
            "--max-new",
            40,
            "--reference",
            tmp_path / f"{variant}.json",
        ]
        validate(draft_gguf(variant), *common, "--update-reference")
        words[variant] = report(validate(draft_gguf(variant), *common, "--ring", 64, "--json"))[
            "verdict"
        ]

    assert {"v1": "not comparable", "v2": "pass"} == words


def test_a_wrong_rope_base_fails_and_is_named(run: Callable[..., Result], tmp_path: Path) -> None:
    """The same tensors under another base: exit 4, the differing field in the notes."""
    reference = tmp_path / "ref.json"
    run("--reference", reference, "--update-reference")

    done = run("--reference", reference, "--json", converted=("--rope-theta", "12345"))

    assert (4, "fail") == (done.exit_code, report(done)["verdict"])
    assert any("rope_theta" in note for note in report(done)["notes"])


def test_limit_runs_the_first_prompts_and_compares_them_with_the_same(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    """--limit shortens set and reference alike."""
    reference = tmp_path / "ref.json"
    run("--reference", reference, "--update-reference")

    body = report(run("--reference", reference, "--limit", 2, "--json"))

    assert ("pass", 2) == (body["verdict"], body["prompts"])


# --- no trained pair needed --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random pair as GGUFs and a set of token prompts; its draft is right next to never."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_pair.write_target(folder / "target", eos_token_id=None)
    tiny_pair.write_target_gguf(folder / "target.gguf", folder / "target")
    tiny_pair.write_draft(folder / "draft", tiny_pair.V1)
    tiny_pair.write_draft_gguf(folder / "draft.gguf", folder / "draft")
    lines = [{"id": f"p{i}", "domain": "code", "tokens": list(range(i, i + 9))} for i in range(8)]
    (folder / "set.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def on_tiny(tiny: Path, *options: object, **changes: Path) -> Result:
    """The command on the random pair, with some of its files changed."""
    names = {
        "draft": tiny / "draft.gguf",
        "target": tiny / "target.gguf",
        "prompts": tiny / "set.jsonl",
    } | changes
    return validate(
        names["draft"],
        "--prompts",
        names["prompts"],
        "--max-new",
        40,
        *options,
        target=names["target"],
    )


def test_a_draft_that_is_never_right_is_broken_not_slow(tiny: Path, tmp_path: Path) -> None:
    """Exit 4 without any reference, the text still lossless, and no reference is made of it."""
    done = on_tiny(tiny, "--json", "--reference", tmp_path / "ref.json", "--update-reference")
    body = report(done)

    assert (4, True) == (done.exit_code, body["lossless"])
    assert "numerically broken" in body["reasons"][0]
    assert not (tmp_path / "ref.json").exists()


HOSTILE_SETS = {
    "missing": None,
    "empty": b"",
    "not JSON lines": b"{\n",
    "token outside the vocabulary": b'{"id": "a", "domain": "d", "tokens": [100]}',
    "longer than the context": json.dumps({"id": "a", "domain": "d", "tokens": [1] * 512}).encode(),
    "text without a tokenizer": b'{"id": "a", "domain": "d", "prompt": "x"}',
}


@pytest.mark.parametrize("name", HOSTILE_SETS)
def test_a_hostile_prompt_set_is_refused(tiny: Path, tmp_path: Path, name: str) -> None:
    """Exit 3, the error as the one JSON object, and no record on the disk."""
    path, raw = tmp_path / "set.jsonl", HOSTILE_SETS[name]
    if raw is not None:
        path.write_bytes(raw)

    done = on_tiny(tiny, "--json", "--out", tmp_path / "out.json", prompts=path)

    assert 3 == done.exit_code
    assert (False, 3) == (report(done)["ok"], report(done)["exit_code"])
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("which", ["draft", "target"])
@pytest.mark.parametrize("cut", [0, 10, 3000])
def test_a_truncated_model_is_refused(tiny: Path, tmp_path: Path, which: str, cut: int) -> None:
    """A file that ends early is not what it claims."""
    path = tmp_path / "cut.gguf"
    path.write_bytes((tiny / f"{which}.gguf").read_bytes()[:cut])

    assert 3 == on_tiny(tiny, **{which: path}).exit_code


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"schema": 1}', b'{"schema": 1, "schema": 1}', b"\xff"]
)
def test_a_hostile_reference_is_refused(tiny: Path, tmp_path: Path, raw: bytes) -> None:
    """Exit 3 before anything runs."""
    path = tmp_path / "ref.json"
    path.write_bytes(raw)

    assert 3 == on_tiny(tiny, "--reference", path).exit_code


CONFLICTS = {
    "ring with a full cache": ("--kv", "full", "--ring", "64"),
    "update without a reference": ("--update-reference",),
    "loss below zero": ("--max-loss", "-1"),
    "loss above all": ("--max-loss", "101"),
    "loss NaN": ("--max-loss", "nan"),
    "ring beyond reason": ("--ring", str(1 << 57)),
    "ring beyond 63 bits": ("--ring", str((1 << 63) - 1)),
    "ring beyond 64 bits": ("--ring", "99999999999999999999"),
    "threads 0": ("--threads", "0"),
    "threads a word": ("--threads", "abc"),
    "threads beyond reason": ("--threads", "1000000000"),
    "n_max 0": ("--n-max", "0"),
    "no such cache": ("--kv", "paged"),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_cannot_be_meant_is_refused_before_a_file_is_opened(tmp_path: Path, name: str) -> None:
    """Exit 2 although no file exists."""
    done = validate(
        tmp_path / "no.gguf",
        "--prompts",
        tmp_path / "no.jsonl",
        *CONFLICTS[name],
        target=tmp_path / "no",
    )

    assert 2 == done.exit_code


def test_an_existing_record_is_kept_unless_overwrite_is_asked_for(
    tiny: Path, tmp_path: Path
) -> None:
    """--out refuses, then replaces; never a model."""
    out = tmp_path / "out.json"
    out.write_text("old")

    refused = on_tiny(tiny, "--out", out)
    assert (2, "old") == (refused.exit_code, out.read_text())

    on_tiny(tiny, "--out", out, "--overwrite")
    assert 8 == len(record(out).runs)

    before = (tiny / "draft.gguf").read_bytes()
    assert 2 == on_tiny(tiny, "--out", tiny / "draft.gguf", "--overwrite").exit_code
    assert before == (tiny / "draft.gguf").read_bytes()


@pytest.mark.parametrize("option", ["--out", "--reference"])
def test_no_output_replaces_the_prompt_set(tiny: Path, option: str) -> None:
    """--out with --overwrite and --update-reference refuse the prompts: exit 2, the set as it was."""
    prompts = tiny / "set.jsonl"
    before = prompts.read_bytes()
    way = "--overwrite" if option == "--out" else "--update-reference"

    assert (2, before) == (on_tiny(tiny, option, prompts, way).exit_code, prompts.read_bytes())


@pytest.mark.parametrize("update", [(), ("--update-reference",)])
def test_the_record_does_not_replace_the_reference(
    tiny: Path, tmp_path: Path, update: tuple[str, ...]
) -> None:
    """One file cannot be both the record of this run and what it is judged by."""
    reference = tmp_path / "ref.json"
    on_tiny(tiny, "--out", reference)
    before = reference.read_bytes()

    done = on_tiny(tiny, "--out", reference, "--overwrite", "--reference", reference, *update)

    assert (2, before) == (done.exit_code, reference.read_bytes())


def test_a_record_names_what_ran_and_no_place(tiny: Path, tmp_path: Path) -> None:
    """Digests and options are there; folders are not."""
    on_tiny(tiny, "--out", tmp_path / "out.json", "--kv", "full", "--kv-type", "f32")
    found = record(tmp_path / "out.json")

    assert ("full", 0, "f32", "cpu", "draft.gguf") == (
        found.subject.kv, found.subject.ring, found.subject.kv_type, found.subject.backend, found.subject.draft_name,
    )  # fmt: skip
    assert str(tiny).encode() not in (tmp_path / "out.json").read_bytes()
