"""dflash-quantize --scheme auto on the example pair: what it finds, writes, repeats and refuses."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.quantize.cli import main
from dflash_gguf.quantize.found import scheme_of, toml
from dflash_gguf.quantize.schemes import parse_file
from dflash_gguf.quantize.search import Goal, Group, most_measurements
from dflash_gguf.quantize.tradeoffs import groups_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_search import problems
from trained_pair import PROMPTS, TARGET, draft_gguf


@cache
def prompt_file(folder: Path) -> Path:
    """Two prompts, so that a search takes seconds."""
    lines = (PROMPTS / "pair-smoke.jsonl").read_text().splitlines()
    path = folder / "two.jsonl"
    path.write_text("\n".join([lines[0], lines[4]]) + "\n")
    return path


def run(*arguments: Any) -> Result:
    """dflash-quantize with these arguments."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def search(folder: Path, output: Path, *more: Any) -> Result:
    """A search on the DFlash 2 draft of the pair."""
    return run(
        draft_gguf("v2"), output, "--scheme", "auto", "--target", TARGET, "--prompts", prompt_file(folder), *more
    )  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with q.gguf, found by a search for 22 % of the draft's size."""
    folder = tmp_path_factory.mktemp("search")
    result = search(folder, folder / "q.gguf", "--max-size", "22%", "--json")
    assert 0 == result.exit_code, result.output
    (folder / "stdout.json").write_text(result.stdout)
    return folder


def test_the_search_keeps_its_size_and_says_what_it_found(searched: Path) -> None:
    """The file is no larger than asked; log, summary and manifest tell of one and the same result."""
    whole = draft_gguf("v2").stat().st_size
    nbytes = (searched / "q.gguf").stat().st_size
    body = json.loads((searched / "stdout.json").read_text())["outcome"]
    log = json.loads((searched / "q.search.json").read_text())
    manifest = json.loads((searched / "q.manifest.json").read_text())

    assert nbytes <= 0.22 * whole
    assert nbytes > 0.21 * whole
    assert nbytes == body["search"]["bytes"] == log["found"]["bytes"] == manifest["total"]["bytes"]
    judged = [t for t in log["trials"] if t["stage"].startswith("judge")]
    assert log["found"]["loss"] == pytest.approx(min(t["loss"] for t in judged), abs=1e-5)
    assert {"scheme": "auto", "max_size": "22%"}.items() <= manifest["options"].items()
    assert len(log["trials"]) + 3 == log["found"]["measurements"]


def test_the_scheme_file_makes_the_same_file_again(searched: Path, tmp_path: Path) -> None:
    """`--scheme q.scheme.toml` gives the bytes of the search; so does the search itself, at another number of threads."""
    first = (searched / "q.gguf").read_bytes()
    result = run(
        draft_gguf("v2"),
        tmp_path / "s.gguf",
        "--scheme",
        searched / "q.scheme.toml",
        "--threads",
        1,
    )
    assert 0 == result.exit_code, result.output
    assert first == (tmp_path / "s.gguf").read_bytes()

    result = search(tmp_path, tmp_path / "a.gguf", "--max-size", "22%", "--threads", 1)
    assert 0 == result.exit_code, result.output
    assert first == (tmp_path / "a.gguf").read_bytes()
    assert (searched / "q.scheme.toml").read_bytes() == (tmp_path / "a.scheme.toml").read_bytes()


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path) -> None:
    """It names the measurements and what sizes there are, and leaves no file."""
    prompt_file(tmp_path)
    before = set(tmp_path.iterdir())
    result = search(tmp_path, tmp_path / "q.gguf", "--max-loss", "1%", "--dry-run", "--json")

    plan = json.loads(result.stdout)["search"]
    groups = groups_of(read_gguf(draft_gguf("v2")), {})
    assert most_measurements(groups, Goal(max_loss=0.01)) == (plan["probes"], plan["solutions"])
    assert plan["source_bytes"] == draft_gguf("v2").stat().st_size
    assert plan["seconds"] > 0
    assert before == set(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheme", "q4-mix", "--max-size", "40%"], "only --scheme auto searches"),
        (["--scheme", "auto", "--max-size", "40%"], "one limit, the target and prompts"),
        (["--scheme", "auto", "--target", TARGET, "--prompts", "pair"], "one limit"),
        (["--scheme", "auto", "--target", TARGET, "--prompts", "pair", "--max-size", "9%", "--max-loss", "1%"], "one limit"),
        (["--scheme", "auto", "--target", TARGET, "--prompts", "pair", "--max-size", "5%"], "at least"),
        (["--scheme", "auto", "--target", TARGET, "--prompts", "pair", "--max-size", "much"], "not a size"),
        (["--scheme", "auto", "--target", TARGET, "--prompts", "pair", "--max-loss", "2"], "not a percentage"),
        (["--scheme", "auto", "--target", TARGET, "--prompts", "pair", "--max-size", "9%", "--tensor-type", "fc*=q8_0"], "contradicts"),
    ],
)  # fmt: skip
def test_a_limit_that_cannot_be_meant_is_refused(
    tmp_path: Path, arguments: list[Any], message: str
) -> None:
    """Exit 2 before anything is measured, and nothing is written."""
    result = run(draft_gguf("v2"), tmp_path / "q.gguf", *arguments)

    assert 2 == result.exit_code, result.output
    assert message in result.stderr
    assert [] == list(tmp_path.iterdir())


@settings(deadline=None)
@given(problems(), st.data())
def test_a_scheme_file_reads_back_as_the_scheme(groups: list[Group], data: st.DataObject) -> None:
    """What is written for --scheme says of every group what was chosen."""
    assignment = tuple(data.draw(st.integers(0, len(g.choices) - 1)) for g in groups)
    scheme = scheme_of(groups, assignment)

    read = parse_file(toml(scheme, 'a "quoted" summary'), "x.toml")

    assert (scheme.default, scheme.rules) == (read.default, read.rules)
    for group, i in zip(groups, assignment, strict=True):
        rule = next((r for r in read.rules if group.name in r.match), None)
        assert group.choices[i].type == (rule.type if rule else read.default)


def test_prompts_are_an_input_that_no_output_replaces(tmp_path: Path) -> None:
    """A prompt file with the log's name is refused even with --overwrite, and keeps its bytes."""
    prompts = tmp_path / "q.search.json"
    before = prompt_file(tmp_path).read_bytes()
    prompts.write_bytes(before)
    result = run(
        draft_gguf("v2"), tmp_path / "q.gguf", "--scheme", "auto", "--target", TARGET, "--prompts", prompts,
        "--max-size", "60%", "--overwrite",
    )  # fmt: skip

    assert 2 == result.exit_code, result.output
    assert before == prompts.read_bytes()


def test_nothing_that_was_found_names_a_folder(searched: Path) -> None:
    """Manifest and log have the prompts' file name alone, so that they are the same wherever the prompts lie."""
    for name in ("q.manifest.json", "q.search.json", "q.scheme.toml"):
        assert str(searched) not in (searched / name).read_text()


def test_a_manifest_in_the_way_is_told_before_the_search(tmp_path: Path) -> None:
    """No measurement is made for an output that cannot be written."""
    (tmp_path / "q.manifest.json").write_text("{}")
    result = search(tmp_path, tmp_path / "q.gguf", "--max-size", "60%", "--dry-run", "--json")
    assert 0 == result.exit_code  # a dry run writes nothing
    result = search(tmp_path, tmp_path / "q.gguf", "--max-size", "bad", "--json")

    assert 2 == result.exit_code
    assert "exists already" in result.stdout  # and not that the size is no size


def test_a_checkpoint_is_to_be_converted_first(tmp_path: Path) -> None:
    """The search runs the draft; the fix names the command, not an option that was given."""
    folder = Path(__file__).parent.parent / "examples" / "pair" / "draft-v1"
    result = run(
        folder, tmp_path / "q.gguf", "--scheme", "auto", "--target", TARGET, "--prompts", prompt_file(tmp_path),
        "--max-size", "60%",
    )  # fmt: skip

    assert 2 == result.exit_code
    assert "dflash-convert it first" in result.output


def test_a_size_beyond_every_number_is_refused(tmp_path: Path) -> None:
    """As a size, not as a fault of ours."""
    result = search(tmp_path, tmp_path / "q.gguf", "--max-size", "9" * 400 + "KB")

    assert 2 == result.exit_code, result.output


@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "blk.1.ffn_norm.weight"])
def test_a_weight_that_is_not_finite_is_named_before_anything_runs(
    tmp_path: Path, name: str
) -> None:
    """In a matrix or in a norm: exit 3 and the tensor's name, and not a verdict on the prompts."""
    source = tmp_path / "nan.gguf"
    raw = bytearray(draft_gguf("v2").read_bytes())
    info = read_gguf(draft_gguf("v2")).tensors[name]
    raw[info.offset : info.offset + 4] = b"\xff" * 4  # a NaN in F32, two in BF16
    source.write_bytes(raw)
    result = run(
        source, tmp_path / "q.gguf", "--scheme", "auto", "--target", TARGET, "--prompts", prompt_file(tmp_path),
        "--max-size", "60%",
    )  # fmt: skip

    assert 3 == result.exit_code, result.output
    assert name in result.output


def test_a_deeply_nested_scheme_file_is_refused(tmp_path: Path) -> None:
    """Exit 3, not a recursion error."""
    scheme = tmp_path / "deep.toml"
    scheme.write_text("x=" + "[" * 5000)
    result = run(draft_gguf("v2"), tmp_path / "q.gguf", "--scheme", scheme, "--dry-run")

    assert 3 == result.exit_code, result.output
