"""Outputs appear whole or not at all, whatever the system refuses and whenever it does."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from click.testing import CliRunner
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.errors import EnvironmentFault, InputError, InterruptedRun, UsageError
from dflash_gguf.convert.ggml import F32
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufOutput
from dflash_gguf.convert.output import OutputFile, OutputSet, check_output
from dflash_gguf.convert.signals import held, interruptible


def failing(real: Callable[..., Any], at: int, number: int) -> Callable[..., Any]:
    """The system call `real`, which fails with errno `number` from its call `at` on."""
    calls = 0

    def call(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > at:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **more)

    return call


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("pwrite", errno.EIO),
        ("pwrite", errno.ENOSPC),
        ("fsync", errno.EIO),
        ("ftruncate", errno.EIO),
        ("posix_fallocate", errno.ENOSPC),
    ],
)
def test_io_error_at_any_call_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """The n-th call fails, for every n until none does: exit 5 with the errno, old outputs untouched, nothing new."""
    target = tiny.write_target_gguf(tmp_path / "t.gguf")
    draft = tiny.write_draft(tmp_path / "d")
    out = tmp_path / "o.gguf"
    assert 0 == CliRunner().invoke(main, [str(draft), str(out), "--target", str(target)]).exit_code
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    arguments = [str(draft), str(out), "--target", str(target), "--overwrite", "--outtype", "f32"]
    real = getattr(os, name)
    at = 0
    while True:
        monkeypatch.setattr(os, name, failing(real, at, number))
        result = CliRunner().invoke(main, arguments)
        monkeypatch.setattr(os, name, real)
        if result.exit_code == 0:
            break
        assert (5, True) == (result.exit_code, f"errno {number}" in result.output), result.output
        assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
        at += 1
    assert at >= 1
    assert before["o.gguf"] != out.read_bytes()


def write_both(folder: Path, text: bytes, **more: Any) -> None:
    """Two files in one set."""
    with OutputSet([folder / "a", folder / "b"], **more) as (a, b):
        a.write(text)
        b.write(text)


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_files_of_a_set_are_replaced_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """When the second rename fails the first is undone, for new files and for old ones, also without hard links."""
    real = Path.replace
    if not links:
        monkeypatch.setattr(os, "link", failing(os.link, 0, errno.EPERM))

    def replace(self: Path, to: Path) -> Path:
        if to.name == "b" and self.name.endswith(".partial"):
            raise OSError(errno.EIO, "no")
        return real(self, to)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(EnvironmentFault, match="errno 5"):
        write_both(tmp_path, b"new")
    assert [] == list(tmp_path.iterdir())
    monkeypatch.setattr(Path, "replace", real)
    write_both(tmp_path, b"old")
    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(EnvironmentFault, match="errno 5"):
        write_both(tmp_path, b"new", overwrite=True)

    assert {"a": b"old", "b": b"old"} == {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.setattr(Path, "replace", real)
    write_both(tmp_path, b"new", overwrite=True)
    assert {"a": b"new", "b": b"new"} == {p.name: p.read_bytes() for p in tmp_path.iterdir()}


STEPS = ("link", "replace", "unlink", "fsync", "pwrite", "ftruncate", "open")
"""System calls that change what another process finds."""


def killed(step: int, work: Callable[[], None]) -> bool:
    """Whether `work`, in a child process, was killed (SIGKILL) before its system call number `step`."""
    child = os.fork()
    if child == 0:
        left = [step]

        def dying(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **more)

            return call

        for name in STEPS:
            setattr(os, name, dying(getattr(os, name)))
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def refuse_links(*_: Any, **__: Any) -> None:
    """A file system without hard links."""
    raise OSError(errno.EPERM, "no links")


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
@pytest.mark.parametrize("before", ["neither", "both", "first", "second"])
def test_kill_at_any_step_never_leaves_a_file_beside_another_ones_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, links: bool
) -> None:
    """SIGKILL at every system call of writing two files: each is whole, the second stands only beside its own first, and
    the next run finds the old pair again (or the new one) and leaves nothing hidden, also when it fails itself."""
    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    kept = {"neither": "", "both": "ab", "first": "a", "second": "b"}[before]
    old, new = dict.fromkeys(kept, b"old"), {"a": b"new", "b": b"new"}
    step, seen = 0, set()
    while True:
        folder = tmp_path / str(step)
        folder.mkdir()
        for name, text in old.items():
            (folder / name).write_bytes(text)
        if not killed(step, lambda folder=folder: write_both(folder, b"new", overwrite=True)):
            break
        now = {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.startswith(".")}
        assert set(now.values()) <= {b"old", b"new"}
        assert now.get("b") in (None, now.get("a", now.get("b"))), (step, now)
        with pytest.raises(KeyError), OutputSet([folder / "a", folder / "b"], overwrite=True):
            raise KeyError
        found = {p.name: p.read_bytes() for p in folder.iterdir()}
        assert found in ([old, new] if old else [old, new, {"a": b"new"}]), (step, found)
        seen.add(str(sorted(found.items())))
        write_both(folder, b"last", overwrite=True)
        assert {"a": b"last", "b": b"last"} == {p.name: p.read_bytes() for p in folder.iterdir()}
        step += 1
    assert step > 8
    assert {str(sorted(state.items())) for state in (old, new)} <= seen


def test_what_a_killed_run_left_is_named(tmp_path: Path) -> None:
    """An output that exists, beside what waited when a run was killed: the refusal says so."""
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / ".a.old").write_bytes(b"")
    with pytest.raises(UsageError, match=r"\.a\.old of a run that was killed"):
        check_output(tmp_path / "a", overwrite=False, inputs=[])


def test_second_file_that_cannot_be_created_takes_the_first_back(tmp_path: Path) -> None:
    """A folder that is no folder for the second output: nothing of the first stays."""
    (tmp_path / ".b.partial").mkdir()
    with pytest.raises(EnvironmentFault, match="cannot create"):
        write_both(tmp_path, b"x")
    assert [".b.partial"] == [p.name for p in tmp_path.iterdir()]


def test_sibling_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """A link planted under the sibling's name does not make us write elsewhere."""
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / ".a.partial").symlink_to(tmp_path / "victim")
    with pytest.raises(EnvironmentFault):
        write_both(tmp_path, b"x")
    assert b"mine" == (tmp_path / "victim").read_bytes()


def test_sibling_renamed_between_open_and_lock_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run that finishes in that moment does not lend us its finished file."""
    import fcntl

    real = fcntl.flock
    moved = []

    def flock(fd: int, how: int) -> None:
        if not moved:
            moved.append((tmp_path / ".a.partial").rename(tmp_path / "theirs"))
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with OutputSet([tmp_path / "a"]) as (a,):
        a.write(b"ours")
    assert (b"ours", b"") == ((tmp_path / "a").read_bytes(), (tmp_path / "theirs").read_bytes())


def test_disk_that_does_not_keep_the_bytes_is_noticed(tmp_path: Path) -> None:
    """The head and the size are read back before the rename."""
    fields = {"general.architecture": f.text("dflash")}
    output = GgufOutput(tmp_path / "x.gguf", fields, [("a", F32, (4,))])
    writer = output.__enter__()
    writer.write("a", bytes(16))
    os.pwrite(writer.file.fd, b"XXXX", 0)
    with pytest.raises(EnvironmentFault, match="did not keep"):
        output.__exit__(None, None, None)
    assert [] == list(tmp_path.iterdir())


def test_no_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    """A size beyond the disk is refused by the numbers."""
    with (
        pytest.raises(EnvironmentFault, match="no space left"),
        OutputSet([tmp_path / "a"]) as (a,),
    ):
        a.reserve(1 << 62)
    assert [] == list(tmp_path.iterdir())


def test_huge_layout_is_refused_before_its_header_is_written(tmp_path: Path) -> None:
    """GgufOutput takes its sibling back when the disk is too small for the plan."""
    with (
        pytest.raises(EnvironmentFault, match="no space left"),
        GgufOutput(tmp_path / "x.gguf", {}, [("a", F32, (1 << 50,))]),
    ):
        pass
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("data", "what"), [(bytes(12), "too few"), (bytes(20), "wants 16")])
def test_tensor_of_another_size_than_planned_is_our_mistake(
    tmp_path: Path, data: bytes, what: str
) -> None:
    """Too little and too much raise ValueError, and no file appears."""
    with (
        pytest.raises(ValueError, match=what),
        GgufOutput(tmp_path / "x.gguf", {}, [("a", F32, (4,))]) as writer,
    ):
        writer.write("a", data)
    assert [] == list(tmp_path.iterdir())


def test_file_without_tensors_is_never_written(tmp_path: Path) -> None:
    """A conversion that found nothing is an error, not a small file (bugs 4)."""
    with pytest.raises(InputError, match="no tensors"):
        GgufOutput(tmp_path / "x.gguf", {}, [])


def test_names_that_the_system_refuses_are_told(tmp_path: Path) -> None:
    """A name that is too long is the environment's fault, with its reason."""
    with pytest.raises(EnvironmentFault, match="cannot look at"):
        check_output(tmp_path / ("x" * 300), overwrite=False, inputs=[])
    with pytest.raises(EnvironmentFault, match="folder of the output"):
        check_output(tmp_path / "none" / "x", overwrite=False, inputs=[])
    with pytest.raises(UsageError, match="not a regular file"):
        check_output(tmp_path, overwrite=True, inputs=[])
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(UsageError, match="exists already"):
        check_output(tmp_path / "x", overwrite=False, inputs=[tmp_path / "missing"])


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    """The second close finds nothing to do."""
    file = OutputFile(tmp_path / "a")
    file.close()
    file.close()
    assert [] == list(tmp_path.iterdir())


def test_dangling_link_as_output_is_replaced_by_the_file(tmp_path: Path) -> None:
    """A link to nothing is no existing output; the file takes its name."""
    (tmp_path / "a").symlink_to(tmp_path / "nothing")
    with OutputSet([tmp_path / "a"]) as (a,):
        a.write(b"x")
    assert b"x" == (tmp_path / "a").read_bytes()
    assert not (tmp_path / "a").is_symlink()


def test_signal_is_raised_where_it_comes_and_put_off_where_it_must_not() -> None:
    """Inside `held` it waits for the end; nested sections wait for the outermost."""
    steps = []

    def work(number: int, *, protected: bool) -> None:
        with interruptible():
            if protected:
                with held(), held():
                    signal.raise_signal(number)
                    steps.append("inner")
            else:
                signal.raise_signal(number)
            steps.append("never")

    for number, protected in (
        (signal.SIGTERM, True),
        (signal.SIGHUP, False),
        (signal.SIGINT, True),
    ):
        with pytest.raises(InterruptedRun, match=number.name):
            work(number, protected=protected)
    assert ["inner", "inner"] == steps


def test_kill_at_any_write_leaves_no_readable_wrong_file(tmp_path: Path) -> None:
    """SIGKILL at a write: the name does not exist or is the old file, and the next run mends everything."""
    target = tiny.write_target_gguf(tmp_path / "t.gguf")
    draft = tiny.write_draft(tmp_path / "d")
    out = tmp_path / "o.gguf"
    for at in (0, 3, 20):
        script = (
            "import os, signal; from dflash_gguf.convert.cli import main\n"
            f"real, left = os.pwrite, [{at}]\n"
            "def pwrite(*a):\n"
            "    left[0] -= 1\n"
            "    if left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    return real(*a)\n"
            "os.pwrite = pwrite\n"
            "main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, draft, out, "--target", target],
            check=False,
            capture_output=True,
        )

        assert -signal.SIGKILL == done.returncode
        assert not out.exists()
    assert 0 == CliRunner().invoke(main, [str(draft), str(out), "--target", str(target)]).exit_code
    assert 25 == len(read_gguf(out).tensors)
    assert {"d", "t.gguf", "o.gguf", "o.manifest.json"} == {p.name for p in tmp_path.iterdir()}


def test_a_set_of_no_files_writes_nothing(tmp_path: Path) -> None:
    """A command whose outputs are all optional opens an empty set, and ends well."""
    with OutputSet([]) as opened:
        assert [] == opened
    assert [] == list(tmp_path.iterdir())


def test_an_old_output_that_waits_is_not_replaced_unasked(tmp_path: Path) -> None:
    """Where a killed run left only the old file's other name, --overwrite is still needed."""
    waiting = tmp_path / ".o.gguf.old"
    waiting.write_bytes(b"old")
    with pytest.raises(UsageError, match="an old output waits"):
        check_output(tmp_path / "o.gguf", overwrite=False, inputs=[])
    check_output(tmp_path / "o.gguf", overwrite=True, inputs=[])

    assert waiting.read_bytes() == b"old"


@pytest.mark.parametrize("flags", [(0, 1, 2), (-1,)])
def test_layer_numbers_are_no_flags(flags: tuple[int, ...]) -> None:
    """`--sliding-layers` takes a flag for each layer; a list of layers is refused, not taken as true."""
    from dflash_gguf.convert.options import PLAIN, own_fields

    with pytest.raises(UsageError, match="not a flag for each layer"):
        own_fields(dict.fromkeys(PLAIN) | {"sliding_layers": flags, "causal": None})
