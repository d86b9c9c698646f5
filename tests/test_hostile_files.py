"""What must be refused of places and the moment: hostile-inputs 75 to 79, for both commands that write models."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import drafts
import pytest
from click.testing import CliRunner
from dflash_gguf.convert.cli import main as convert
from dflash_gguf.convert.output import OutputFile
from dflash_gguf.quantize.cli import main as quantize
from hostile import refused, run_alone

COMMANDS: dict[str, tuple[click.Command, tuple[str, ...]]] = {
    "convert": (convert, ("--overwrite",)),
    "quantize": (quantize, ("--scheme", "q8_0", "--overwrite")),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A canonical draft."""
    return drafts.write_draft(tmp_path_factory.mktemp("source") / "draft.gguf")


def itself(source: Path, folder: Path) -> tuple[Path, Path]:
    """One file under one name."""
    return source, source


def hard_link(source: Path, folder: Path) -> tuple[Path, Path]:
    """Two names of one file."""
    os.link(source, folder / "hard.gguf")
    return source, folder / "hard.gguf"


def link_to_source(source: Path, folder: Path) -> tuple[Path, Path]:
    """The output is a link to the input."""
    (folder / "soft.gguf").symlink_to(source)
    return source, folder / "soft.gguf"


def link_from_source(source: Path, folder: Path) -> tuple[Path, Path]:
    """The input is a link to the output."""
    (folder / "soft.gguf").symlink_to(source)
    return folder / "soft.gguf", source


def around(source: Path, folder: Path) -> tuple[Path, Path]:
    """The same place by way of another folder."""
    return source, folder / ".." / source.name


def folder_there(source: Path, folder: Path) -> tuple[Path, Path]:
    """The output is a folder."""
    (folder / "out.gguf").mkdir()
    return source, folder / "out.gguf"


def pipe_there(source: Path, folder: Path) -> tuple[Path, Path]:
    """The output is a pipe."""
    os.mkfifo(folder / "out.gguf")
    return source, folder / "out.gguf"


def device_there(source: Path, folder: Path) -> tuple[Path, Path]:
    """The output is a link to a device."""
    (folder / "out.gguf").symlink_to("/dev/null")
    return source, folder / "out.gguf"


def folder_missing(source: Path, folder: Path) -> tuple[Path, Path]:
    """The folder of the output does not exist."""
    return source, folder / "none" / "out.gguf"


def file_for_folder(source: Path, folder: Path) -> tuple[Path, Path]:
    """The folder of the output is a file."""
    (folder / "file").write_bytes(b"")
    return source, folder / "file" / "out.gguf"


def takes_no_files(source: Path, folder: Path) -> tuple[Path, Path]:
    """A folder in which nobody may create a file, not even root."""
    return source, Path("/proc/out.gguf")


def name_too_long(source: Path, folder: Path) -> tuple[Path, Path]:
    """No file system takes such a name."""
    return source, folder / ("x" * 300 + ".gguf")


PLACES: list[tuple[str, int, Callable[[Path, Path], tuple[Path, Path]]]] = [
    ("75 output equals input", 2, itself),
    ("75 output is a hard link of the input", 2, hard_link),
    ("75 output is a link to the input", 2, link_to_source),
    ("75 input is a link to the output", 2, link_from_source),
    ("75 output equals input by another way", 2, around),
    ("76 output is a folder", 2, folder_there),
    ("76 output is a pipe", 2, pipe_there),
    ("76 output is a device", 2, device_there),
    ("76 folder missing", 5, folder_missing),
    ("76 a file in place of the folder", 5, file_for_folder),
    ("76 folder that takes no files", 5, takes_no_files),
    ("76 name too long", 5, name_too_long),
]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("code", "place"), [p[1:] for p in PLACES], ids=[p[0] for p in PLACES])
def test_place_that_cannot_be_written_is_refused(
    tmp_path: Path, source: Path, name: str, code: int, place: Any
) -> None:
    """Exit 2 for what cannot be meant, 5 for what the machine lacks; the input keeps its bytes, nothing new appears."""
    own = tmp_path / "own.gguf"
    own.write_bytes(source.read_bytes())
    work = tmp_path / "work"
    work.mkdir()
    command, options = COMMANDS[name]
    given, out = place(own, work)
    before = sorted(p.name for p in work.iterdir())
    refused(command, given, out, *options, code=code)

    assert source.read_bytes() == own.read_bytes()
    assert before == sorted(p.name for p in work.iterdir())


@pytest.mark.parametrize("name", COMMANDS)
def test_76_existing_output_needs_overwrite(tmp_path: Path, source: Path, name: str) -> None:
    """Exit 2 and the old bytes; so for the manifest beside it."""
    command, options = COMMANDS[name]
    plain = tuple(o for o in options if o != "--overwrite")
    for existing in ("o.gguf", "o.manifest.json"):
        folder = tmp_path / existing
        folder.mkdir()
        (folder / existing).write_bytes(b"old")
        refused(command, source, folder / "o.gguf", *plain, code=2)
        assert {existing: b"old"} == {p.name: p.read_bytes() for p in folder.iterdir()}


LIMITED = """
import resource, signal, sys
from dflash_gguf.{module} import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
main()
"""


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("limit", [0, 100, 50_000])
def test_76_disk_that_takes_no_more_is_told_and_leaves_the_old(
    tmp_path: Path, source: Path, name: str, limit: int
) -> None:
    """A file size limit stands for a full disk: exit 5 with the errno, the old output as it was, nothing new."""
    _, options = COMMANDS[name]
    (tmp_path / "o.gguf").write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(module=f"{name}.cli", limit=limit), source, tmp_path / "o.gguf", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (5, True) == (done.returncode, "errno" in done.stderr), done.stderr
    assert {"o.gguf": b"old"} == {p.name: p.read_bytes() for p in tmp_path.iterdir()}


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
@pytest.mark.parametrize("name", COMMANDS)
def test_76_read_only_folder_is_told(tmp_path: Path, source: Path, name: str) -> None:
    """Exit 5."""
    command, options = COMMANDS[name]
    tmp_path.chmod(0o500)
    refused(command, source, tmp_path / "o.gguf", *options, code=5)


@pytest.mark.parametrize("name", COMMANDS)
def test_78_source_that_changes_between_check_and_use_is_noticed(
    tmp_path: Path, source: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is cut the moment the output is opened: exit 3, the place named, the old output as it was."""
    own = tmp_path / "own.gguf"
    own.write_bytes(source.read_bytes())
    (tmp_path / "o.gguf").write_bytes(b"old")
    command, options = COMMANDS[name]
    real = OutputFile.reserve

    def reserve(self: OutputFile, size: int) -> None:
        real(self, size)
        os.truncate(own, own.stat().st_size - 5000)

    monkeypatch.setattr(OutputFile, "reserve", reserve)
    done = CliRunner().invoke(command, [str(own), str(tmp_path / "o.gguf"), *options])

    assert (3, True) == (done.exit_code, "became shorter" in done.output), done.output
    assert {"own.gguf", "o.gguf"} == {p.name for p in tmp_path.iterdir()}
    assert b"old" == (tmp_path / "o.gguf").read_bytes()


@pytest.mark.parametrize("name", COMMANDS)
def test_79_second_run_to_one_output_stops_at_once(tmp_path: Path, source: Path, name: str) -> None:
    """While another process holds the lock on the sibling: exit 5, and its file is left alone."""
    command, options = COMMANDS[name]
    partial = tmp_path / ".o.gguf.partial"
    fd = os.open(partial, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        assert "another run" in refused(command, source, tmp_path / "o.gguf", *options, code=5)
    finally:
        os.close(fd)
    assert partial.exists()
    assert not (tmp_path / "o.gguf").exists()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name
)
def test_79_stopped_run_leaves_the_old_output_and_no_wrong_one(
    tmp_path: Path, source: Path, name: str, number: int
) -> None:
    """A signal at the fifth write: the output is the old one, and only SIGKILL leaves a sibling, which the next run takes over."""
    (tmp_path / "o.gguf").write_bytes(b"old")
    command, options = COMMANDS[name]
    code = (
        f"import os; from dflash_gguf.{name}.cli import main\n"
        "real, left = os.pwrite, [5]\n"
        "def pwrite(*a):\n"
        "    left[0] -= 1\n"
        f"    if left[0] == 0: os.kill(os.getpid(), {int(number)})\n"
        "    return real(*a)\n"
        "os.pwrite = pwrite\n"
        "main()"
    )
    words = [source, tmp_path / "o.gguf", *options]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=False)

    assert done.returncode != 0
    assert b"old" == (tmp_path / "o.gguf").read_bytes()
    if number != signal.SIGKILL:
        assert ["o.gguf"] == [p.name for p in tmp_path.iterdir()]
    again = CliRunner().invoke(command, [str(w) for w in words])
    assert 0 == again.exit_code, again.output
    assert {"o.gguf", "o.manifest.json"} == {p.name for p in tmp_path.iterdir()}


def test_72_glob_that_backtracks_is_matched_in_time(tmp_path: Path, source: Path) -> None:
    """A hundred stars, in an option and in a scheme file: nothing matches, and it is known within the second."""
    glob = "*t" * 100 + "z"
    refused(
        quantize, source, tmp_path / "o.gguf", "--scheme", "q8_0", "--tensor-type", f"{glob}=q8_0", code=2,
    )  # fmt: skip
    (tmp_path / "s.toml").write_text(
        f'default = "q8_0"\nrules = [{{ match = "{glob}", type = "keep" }}]'
    )
    done = run_alone(
        "dflash-quantize", source, tmp_path / "o.gguf", "--scheme", tmp_path / "s.toml"
    )

    assert 0 == done.code, done.output
    assert done.seconds < 1
