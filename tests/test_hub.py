"""A repository id as the source: offline, from a cache of the hub's own layout."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.hub import check_blob, is_repository

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(home: Path, spoil: bool = False) -> None:
    """The tiny v2 draft as the hub's cache holds x/tiny-DFlash2: large files as blobs named by their sha256."""
    source = tiny.write_draft(home / "source", True)
    root = home / "hub" / "models--x--tiny-DFlash2"
    for folder in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (root / folder).mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    for file in source.iterdir():
        raw = file.read_bytes()
        large = file.suffix == ".safetensors"
        name = (
            hashlib.sha256(raw).hexdigest()
            if large
            else hashlib.sha1(raw, usedforsecurity=False).hexdigest()
        )
        (root / "blobs" / name).write_bytes(raw[:-1] + b"\xff" if spoil and large else raw)
        (root / "snapshots" / COMMIT / file.name).symlink_to(f"../../blobs/{name}")


def run(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """dflash-convert in offline mode with that cache."""
    code = "from dflash_gguf.convert.cli import main; main()"
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        cwd=home,
    )


def test_repository_is_converted_from_the_cache_and_its_commit_recorded(tmp_path: Path) -> None:
    """Offline, by branch: the file has the commit, the manifest too, and neither has a path."""
    cached(tmp_path)
    target = tiny.write_target_gguf(tmp_path / "t.gguf")
    done = run(tmp_path, "x/tiny-DFlash2", tmp_path / "o.gguf", "--target", target)

    assert 0 == done.returncode, done.stderr
    assert COMMIT == read_gguf(tmp_path / "o.gguf").kv["general.source.revision"]
    assert COMMIT == json.loads((tmp_path / "o.manifest.json").read_text())["source"]["revision"]
    assert str(tmp_path).encode() not in (tmp_path / "o.gguf").read_bytes()
    again = run(
        tmp_path, "x/tiny-DFlash2", tmp_path / "p.gguf", "--target", target, "--revision", COMMIT
    )
    assert 0 == again.returncode, again.stderr
    assert (tmp_path / "o.gguf").read_bytes() == (tmp_path / "p.gguf").read_bytes()


def test_wrong_bytes_in_the_cache_are_refused(tmp_path: Path) -> None:
    """A blob that is not what its name says ends with 3 and no output."""
    cached(tmp_path, spoil=True)
    done = run(
        tmp_path,
        "x/tiny-DFlash2",
        tmp_path / "o.gguf",
        "--target",
        tiny.write_target_gguf(tmp_path / "t.gguf"),
    )

    assert (3, True) == (done.returncode, "wrong bytes" in done.stderr), done.stderr
    assert not (tmp_path / "o.gguf").exists()


@pytest.mark.parametrize(("name", "revision"), [("x/other", None), ("x/tiny-DFlash2", "nobranch")])
def test_what_is_not_in_the_cache_is_the_environments_fault_offline(
    tmp_path: Path, name: str, revision: str | None
) -> None:
    """An unknown repository or revision ends with 5 and says what to do."""
    cached(tmp_path)
    done = run(
        tmp_path,
        name,
        tmp_path / "o.gguf",
        "--target",
        "t",
        *(["--revision", revision] if revision else []),
    )

    assert (5, True) == (done.returncode, "the hub did not give" in done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_paths_are_no_repositories(tmp_path: Path) -> None:
    """Only owner/name that is no file is looked up: a typing error in a path is not sent to the hub."""
    found = [
        is_repository(Path(p))
        for p in ("x/y", "/x/y", "../x/y", "x", "x/y/z", "x/y.z", "./x", "~/x", "x/..")
    ]

    assert [True, False, False, False, False, True, False, False, False] == found


def test_small_files_are_not_hashed(tmp_path: Path) -> None:
    """A name that is no sha256 promises nothing; one that is, does."""
    plain, named = tmp_path / "config.json", tmp_path / ("0" * 64)
    plain.write_bytes(b"{}")
    named.write_bytes(b"{}")
    check_blob(plain)
    with pytest.raises(InputError, match="wrong bytes"):
        check_blob(named)
