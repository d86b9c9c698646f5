"""A repository id as the source: offline, from a cache of the hub's own layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import tiny
from dflash_gguf.convert.errors import InputError, UsageError
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.hub import LARGE, SMALL, check_blob, fetch, is_repository, patterns
from hub_server import COMMIT, blob_name, hub_of
from huggingface_hub.utils import filter_repo_objects


def cached(home: Path, spoil: bool = False) -> None:
    """The tiny v2 draft as the hub's cache holds x/tiny-DFlash2."""
    cache(home, "tiny-DFlash2", tiny.write_draft(home / "source", True), spoil)


def cache(home: Path, name: str, source: Path, spoil: bool = False) -> None:
    """The files of `source` as the hub's cache holds x/`name`: links to blobs, of large files by their sha256."""
    root = home / "hub" / f"models--x--{name}"
    snapshot = root / "snapshots" / COMMIT
    for folder in ("refs", "blobs"):
        (root / folder).mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    for file in (p for p in source.rglob("*") if p.is_file()):
        raw, blob = file.read_bytes(), root / "blobs" / blob_name(file)
        blob.write_bytes(raw[:-1] + b"\xff" if spoil and file.suffix == ".safetensors" else raw)
        link = snapshot / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))


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
    folder = name.rpartition("/")[0]
    allowed = patterns((*SMALL, *LARGE), folder)
    assert [name] * wanted == list(filter_repo_objects([name], allow_patterns=allowed))


def target_with_draft(home: Path) -> Path:
    """A repository like MiMo's: a target at its top, another thing below, and its draft in shards in `dflash/`."""
    top = tiny.write_target(home / "repository")
    tiny.write_safetensors(top / "model.safetensors", {"lm_head.weight": ("BF16", tiny.bf16(np.zeros((8, 8))))})  # fmt: skip
    (top / "vision").mkdir()
    (top / "vision" / "config.json").write_text('{"architectures": ["VisionModel"]}')
    (top / "vision" / "model.safetensors").write_bytes(b"not the draft's")
    draft = tiny.write_draft(top / "dflash", True)
    (draft / "old").mkdir()
    (draft / "old" / "model.safetensors").write_bytes(b"not the draft's")
    shard = draft / "dflash_draft_model-00001-of-00001.safetensors"
    (draft / "model.safetensors").rename(shard)
    names = tiny.draft_tensors(True)
    index = {"weight_map": dict.fromkeys(names, shard.name)}
    (draft / "dflash_draft_model.safetensors.index.json").write_text(json.dumps(index))
    return top


def test_draft_in_a_subfolder_is_taken_by_every_command(tmp_path: Path) -> None:
    """Offline: the same file as from the folder itself, with the commit; and the other commands take it too."""
    top = target_with_draft(tmp_path)
    cache(tmp_path, "MiMo", top)
    target = tiny.write_target_gguf(tmp_path / "t.gguf")
    more = ("x/MiMo", "--subfolder", "dflash", "--target", target)
    done = run(tmp_path, *more, "o.gguf")
    assert 0 == done.returncode, done.stderr
    assert 0 == run(tmp_path, top / "dflash", "p.gguf", "--target", target).returncode
    ours, plain = read_gguf(tmp_path / "o.gguf"), read_gguf(tmp_path / "p.gguf")
    assert COMMIT == ours.kv["general.source.revision"]
    assert ours.kv.keys() - {"general.source.revision"} == set(plain.kv)
    names = [json.loads((tmp_path / f"{x}.manifest.json").read_text())["tensors"] for x in "op"]
    assert [t["sha256"] for t in names[0]] == [t["sha256"] for t in names[1]]

    done = run(tmp_path, *more, "q.gguf", "--scheme", "q8_0", command="dflash-quantize")
    assert 0 == done.returncode, done.stderr
    shown = run(tmp_path, *more, "--json", command="dflash-inspect")
    assert "dflash2" == json.loads(shown.stdout)["inspection"]["spec"]["variant"]


def test_only_the_subfolder_is_fetched_and_its_size_said(tmp_path: Path) -> None:
    """From a hub: not one byte of the target, of the folder beside the draft's or of the one below it; the note says how much."""
    top = target_with_draft(tmp_path)
    shard = next((top / "dflash").glob("*.safetensors"))
    with hub_of("x/MiMo", top) as hub:
        online = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.address}
        words = ("x/MiMo", "--subfolder", "dflash")
        done = run(tmp_path, *words, command="dflash-inspect", **online)
        again = run(tmp_path, *words, command="dflash-inspect", **online)
        served = sorted(hub.served)

    wanted = [shard, top / "dflash" / "config.json", *(top / "dflash").glob("*.index.json")]
    assert 0 == done.returncode, done.stderr
    assert sorted(str(p.relative_to(top)) for p in wanted) == served
    assert f"fetching 1 files, {shard.stat().st_size} bytes: dflash/{shard.name}" in done.stderr
    assert (0, False) == (again.returncode, "fetching" in again.stderr), again.stderr


def test_weights_of_a_target_are_never_fetched(tmp_path: Path) -> None:
    """Its repository without --subfolder is refused by its config, and the fix names the folder that holds a draft."""
    top = target_with_draft(tmp_path)
    with hub_of("x/MiMo", top) as hub:
        online = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.address}
        done = run(tmp_path, "x/MiMo", command="dflash-inspect", **online)
        other = run(tmp_path, "x/MiMo", "--subfolder", "vision", command="dflash-inspect", **online)
        served = list(hub.served)

    assert (3, True, False) == (
        done.returncode, "--subfolder dflash" in done.stderr, "--subfolder vision" in done.stderr
    ), done.stderr  # fmt: skip
    assert (3, True) == (other.returncode, "VisionModel" in other.stderr), other.stderr
    assert [] == [name for name in served if name.endswith(".safetensors")]


def test_index_of_a_whole_target_stops_before_its_weights(tmp_path: Path) -> None:
    """A draft's config over a target's shards (DeepSeek-V4 keeps its stages in the target's): refused by the index."""
    source = tiny.write_draft(tmp_path / "source")
    index = {"weight_map": {"fc.weight": "model.safetensors", "mtp.0.attn.wq.weight": "model.safetensors"}}  # fmt: skip
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with hub_of("x/V4", source) as hub:
        done = run(tmp_path, "x/V4", command="dflash-inspect", HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.address)  # fmt: skip
        served = list(hub.served)

    assert (3, True) == (done.returncode, "mtp.0.attn.wq.weight" in done.stderr), done.stderr
    assert "model.safetensors" not in served


@pytest.mark.parametrize("name", ["..", "a/../b", "/dflash", "dflash/", "a\\b", "*", "[d]flash", "./dflash"])  # fmt: skip
def test_subfolder_is_a_path_inside_the_repository(tmp_path: Path, name: str) -> None:
    """Nothing that leads out of it, and no pattern."""
    with pytest.raises(UsageError, match="--subfolder"):
        fetch("x/y", None, name)


def test_subfolder_of_a_folder_is_a_usage_error(tmp_path: Path) -> None:
    """A path names its folder itself."""
    source = tiny.write_draft(tmp_path / "d")
    done = run(tmp_path, source, "--subfolder", "dflash", command="dflash-inspect")

    assert (2, True) == (done.returncode, "--subfolder" in done.stderr), done.stderr


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
