"""What all four commands owe their caller: one JSON object whatever happens, one spelling of a usage error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dflash_gguf.convert.cli import main as convert
from dflash_gguf.convert.inspect_cli import main as inspect
from dflash_gguf.quantize.cli import main as quantize
from dflash_gguf.runtime.cli import main as validate

COMMANDS = {
    "dflash-convert": convert, "dflash-inspect": inspect, "dflash-quantize": quantize, "dflash-validate": validate,
}  # fmt: skip

MISTAKES: dict[str, tuple[str, ...]] = {
    "unknown option": ("--no-such-option", "a", "b"),
    "too many arguments": ("a", "b", "c", "d"),
    "option without its value": ("a", "b", "--target"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_usage_error_is_one_json_object(name: str, mistake: str) -> None:
    """Under --json click's own complaints have the shape of every other error: schema, command, ok, exit_code 2, error."""
    done = CliRunner().invoke(COMMANDS[name], ["--json", *MISTAKES[mistake]])
    body: dict[str, Any] = json.loads(done.stdout)

    assert (2, 1, name, False, 2) == (done.exit_code, body["schema"], body["command"], body["ok"], body["exit_code"])  # fmt: skip
    assert body["error"]["what"]
    assert f"{name} --help" == body["error"]["fix"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dflash-convert", ("a", "b.gguf", "--outtype", "q9")),
        ("dflash-convert", ("a", "b.gguf", "--target-layer-ids", "1,x")),
        ("dflash-inspect", ()),
        ("dflash-quantize", ("a", "b.gguf", "--threads", "0")),
        ("dflash-quantize", ("a", "b.gguf", "--threads", "-5")),
        ("dflash-quantize", ("a", "b.gguf", "--threads", "abc")),
        ("dflash-quantize", ("a", "b.gguf", "--threads", "1000000000")),
        ("dflash-validate", ("a", "--target", "b", "--prompts", "pair", "--threads", "0")),
        ("dflash-validate", ("a", "--target", "b", "--prompts", "pair", "--threads", "-5")),
        ("dflash-validate", ("a", "--target", "b", "--prompts", "pair", "--threads", "abc")),
        ("dflash-validate", ("a", "--target", "b", "--prompts", "pair", "--threads", "1000000000")),
        ("dflash-validate", ("a",)),
    ],
    ids=lambda v: v if isinstance(v, str) else " ".join(v),
)
def test_a_value_that_cannot_be_meant_is_a_usage_error(name: str, words: tuple[str, ...]) -> None:
    """Exit 2 in both forms, and what is wrong is named (hostile-inputs 77: threads 0, -5, abc, 10^9)."""
    text = CliRunner().invoke(COMMANDS[name], list(words))
    body = json.loads(CliRunner().invoke(COMMANDS[name], [*words, "--json"]).stdout)

    assert (2, 2) == (text.exit_code, body["exit_code"])
    assert body["error"]["what"] in text.output


@pytest.mark.parametrize("name", COMMANDS)
def test_an_error_of_the_body_has_the_same_head(name: str, tmp_path: Path) -> None:
    """A source that does not exist: exit 3 and the same keys as a usage error."""
    words = {
        "dflash-convert": ["none.gguf", "out.gguf"], "dflash-inspect": ["none.gguf"],
        "dflash-quantize": ["none.gguf", "out.gguf", "--scheme", "q8_0"],
        "dflash-validate": ["none.gguf", "--target", "none2.gguf", "--prompts", "pair"],
    }[name]  # fmt: skip
    done = CliRunner().invoke(COMMANDS[name], [*words, "--json"])
    body = json.loads(done.stdout)

    assert (3, {"schema", "command", "ok", "exit_code", "error"}) == (done.exit_code, set(body))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_help_with_json_too(name: str) -> None:
    """--help wins and exits with 0."""
    done = CliRunner().invoke(COMMANDS[name], ["--json", "--help"])

    assert (0, True) == (done.exit_code, "Usage:" in done.stdout)
