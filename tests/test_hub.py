"""A repository id as the source: offline, from a cache of the hub's own layout."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import tiny
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.hub import FILES, check_blob, is_repository
from huggingface_hub.utils import filter_repo_objects

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


COMMANDS = {
    "dflash-convert": "convert.cli",
    "dflash-inspect": "convert.inspect_cli",
    "dflash-quantize": "quantize.cli",
}


def run(
    home: Path, *arguments: object, command: str = "dflash-convert", **variables: str
) -> subprocess.CompletedProcess[str]:
    """A command in offline mode with that cache."""
    code = f"from dflash_gguf.{COMMANDS[command]} import main; main()"
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"} | variables
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


def test_repository_is_quantised_and_inspected_like_its_folder(tmp_path: Path) -> None:
    """The two other commands take the id, too: the same bytes as by way of the converted file, and the commit in them."""
    cached(tmp_path)
    target = tiny.write_target_gguf(tmp_path / "t.gguf")
    more = ("--target", target, "--revision", "main")
    assert 0 == run(tmp_path, "x/tiny-DFlash2", "o.gguf", *more).returncode
    steps = [
        ("x/tiny-DFlash2", "a.gguf", "--scheme", "q8_0", *more),
        ("o.gguf", "b.gguf", "--scheme", "q8_0"),
    ]
    for words in steps:
        done = run(tmp_path, *words, command="dflash-quantize")
        assert 0 == done.returncode, done.stderr
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert COMMIT == read_gguf(tmp_path / "a.gguf").kv["general.source.revision"]
    shown = run(tmp_path, "x/tiny-DFlash2", "--json", *more, command="dflash-inspect")
    assert (0, "dflash2") == (
        shown.returncode,
        json.loads(shown.stdout)["inspection"]["spec"]["variant"],
    )


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("dflash_aux_heads.pt", True), ("dflash/mask_embedding.pt", True), ("markov_head.safetensors", True),
     ("optimizer.pt", False), ("pytorch_model.bin", False), ("modeling_dflash.py", False)],
)  # fmt: skip
def test_files_of_heads_are_fetched_and_other_pickles_are_not(name: str, wanted: bool) -> None:
    """By the hub's own reading of the patterns."""
    assert [name] * wanted == list(filter_repo_objects([name], allow_patterns=list(FILES)))


class Nothing(BaseHTTPRequestHandler):
    """A hub that knows no repository, and counts who asks."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def empty_hub() -> Iterator[str]:
    """The address of such a hub on this machine."""
    server = HTTPServer(("127.0.0.1", 0), Nothing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("command", COMMANDS)
def test_mistyped_path_that_looks_like_an_id_is_told_so(
    tmp_path: Path, empty_hub: str, command: str
) -> None:
    """`drafts/Qwen3` without such a folder goes to the hub, which does not know it: exit 3, and both readings are named."""
    Nothing.asked = 0
    more = {"dflash-quantize": ("o.gguf", "--scheme", "q8_0"), "dflash-convert": ("o.gguf",)}
    done = run(
        tmp_path, "drafts/Qwen3", *more.get(command, ()), command=command, HF_HUB_OFFLINE="0", HF_ENDPOINT=empty_hub
    )  # fmt: skip

    assert 3 == done.returncode, done.stderr
    assert "drafts/Qwen3" in done.stderr
    assert "no file or folder drafts/Qwen3 here" in done.stderr
    assert Nothing.asked > 0


@pytest.mark.parametrize("name", ["drafts/x.gguf", "drafts/model.safetensors"])
def test_name_of_a_file_is_never_asked_of_the_hub(
    tmp_path: Path, empty_hub: str, name: str
) -> None:
    """A mistyped file name is refused here, without a word to anybody."""
    Nothing.asked = 0
    done = run(tmp_path, name, command="dflash-inspect", HF_HUB_OFFLINE="0", HF_ENDPOINT=empty_hub)

    assert (3, True, 0) == (done.returncode, "does not exist" in done.stderr, Nothing.asked)


@pytest.mark.parametrize("command", COMMANDS)
def test_revision_of_a_file_is_a_usage_error(tmp_path: Path, command: str) -> None:
    """A revision says nothing about a path."""
    source = tiny.write_draft(tmp_path / "d")
    more = {"dflash-quantize": ("o.gguf", "--scheme", "q8_0"), "dflash-convert": ("o.gguf",)}
    done = run(tmp_path, source, *more.get(command, ()), "--revision", "main", command=command)

    assert (2, True) == (done.returncode, "--revision" in done.stderr), done.stderr


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
