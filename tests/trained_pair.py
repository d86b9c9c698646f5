"""The trained pair (examples/pair) as the tests use it: real acceptance, drafts converted once a session."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner
from dflash_gguf.convert.cli import main as convert

ROOT = Path(__file__).resolve().parent.parent
PAIR = ROOT / "examples" / "pair"
TARGET = PAIR / "Pair-Target-BF16.gguf"
REFERENCES = ROOT / "manifests" / "references"
PROMPTS = ROOT / "manifests" / "prompts"
_folder = TemporaryDirectory(prefix="dflash-tests-")


@cache
def draft_gguf(variant: str, *options: str) -> Path:
    """The draft `v1` or `v2` converted by dflash-convert, with further options of it."""
    path = Path(_folder.name) / f"draft-{variant}-{abs(hash(options))}.gguf"
    done = CliRunner().invoke(convert, [str(PAIR / f"draft-{variant}"), str(path), "--target", str(TARGET), "--quiet", *options])  # fmt: skip
    assert done.exit_code == 0, done.output
    return path
