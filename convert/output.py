"""Output files that appear whole or not at all.

Every file is written to a hidden sibling, flushed, checked and renamed; several files of one set are renamed
together (`swap.py`). A failure of any kind leaves the old files as they were. The sibling is locked while a run writes
it, so a second run to the same output stops at once, and one that a killed run left behind is taken over, never trusted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from .errors import EnvironmentFault, UsageError
from .files import same_file
from .signals import held
from .swap import old_name, recover, swap

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class OutputFile:
    """One open sibling."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.partial")
        self.fd = self._open()

    def _open(self) -> int:
        """The sibling, locked and empty."""
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self.temporary, flags, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if same_file(os.fstat(fd), self.temporary):
                    os.ftruncate(fd, 0)
                    return fd
            except BlockingIOError:
                os.close(fd)
                raise EnvironmentFault(
                    "another run is writing this output",
                    where=self.path,
                    fix="wait for it, or choose another name",
                ) from None
            except OSError:
                self.temporary.unlink()
                os.close(fd)
                raise
            os.close(fd)  # another run renamed or removed it between open and lock: try again

    def reserve(self, size: int) -> None:
        """Give the file its final size and its place on the disk, all zero; refuse early when there is no room."""
        room = os.fstatvfs(self.fd)
        free = room.f_bavail * room.f_frsize
        if size > free:
            raise EnvironmentFault(
                "no space left for the output", found=f"{free} bytes free", where=self.path, expected=f"{size} bytes"
            )  # fmt: skip
        try:
            os.posix_fallocate(self.fd, 0, size)
        except OSError as error:
            raise self.fault(error) from error

    def write(self, data: Buffer, offset: int = 0) -> None:
        """All of `data` at `offset`; several threads may write different places."""
        view = memoryview(data).cast("B")
        while view:
            try:
                count = os.pwrite(self.fd, view, offset)
            except OSError as error:
                raise self.fault(error) from error
            offset += count
            view = view[count:]

    def start_writing(self, offset: int, size: int) -> None:
        """Let the disk begin with these bytes while others are made, so that `sync` has less to wait for."""
        os.posix_fadvise(self.fd, offset, size, os.POSIX_FADV_DONTNEED)

    def check(self, size: int, head: bytes) -> None:
        """Refuse unless the file has `size` bytes and starts with `head`."""
        found = os.fstat(self.fd).st_size
        if found != size or os.pread(self.fd, len(head), 0) != head:
            raise EnvironmentFault(
                "the disk did not keep what was written", found=f"{found} bytes", where=self.path, expected=f"{size} bytes"
            )  # fmt: skip

    def sync(self) -> None:
        """Everything on the disk."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise self.fault(error) from error

    def fault(self, error: OSError) -> EnvironmentFault:
        """The system's refusal, with the file and how far it came."""
        return EnvironmentFault(
            f"cannot write the output: {os.strerror(error.errno or errno.EIO)}",
            found=f"errno {error.errno}",
            where=self.path,
            expected="room and permission to write",
            fix="nothing was changed; free space or choose another place, then run again",
        )

    def close(self) -> None:
        """Give the lock back; remove the sibling if it still is ours."""
        if self.fd >= 0:
            if same_file(os.fstat(self.fd), self.temporary):
                self.temporary.unlink()
            os.close(self.fd)
            self.fd = -1


class OutputSet:
    """Files that appear together when the `with` block ends well, and not at all otherwise.

    Raises UsageError, before anything is created, when an output exists without `overwrite`, is no regular file, or is
    one of `inputs` (links are looked through); EnvironmentFault when it cannot be written.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        overwrite: bool = False,
        inputs: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self.paths = [Path(p) for p in paths]
        self.files: list[OutputFile] = []
        for path in self.paths:
            check_output(path, overwrite=overwrite, inputs=inputs)

    def __enter__(self) -> list[OutputFile]:
        """The open files, in the order of the paths."""
        try:
            for path in self.paths:
                with held():
                    self.files.append(OutputFile(path))
            with held():
                recover(self.files)
        except OSError as error:
            self.abandon()
            raise EnvironmentFault(
                f"cannot create the output: {error.strerror}", found=f"errno {error.errno}", where=path,
                expected="a folder that can be written",
            ) from error  # fmt: skip
        except BaseException:
            self.abandon()
            raise
        return self.files

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush all, rename all; or remove all."""
        try:
            if kind is None:
                for file in self.files:
                    file.sync()
                with held():
                    swap(self.files)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Remove the siblings that have not taken their names."""
        with held():
            for file in self.files:
                file.close()
            self.files = []


def check_output(path: Path, *, overwrite: bool, inputs: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse an output that must not be written."""
    try:
        status = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise EnvironmentFault(
                "the folder of the output does not exist", where=path, fix="create it first"
            ) from None
        if not overwrite and os.path.lexists(old_name(path)):
            raise UsageError(
                "an old output waits, of a run that was killed", found=old_name(path).name, where=path,
                fix="pass --overwrite, or rename it back",
            ) from None  # fmt: skip
        return
    except OSError as error:
        raise EnvironmentFault(
            f"cannot look at the output: {error.strerror}", where=path
        ) from error
    for source in inputs:
        other = Path(source)
        if other.exists() and other.samefile(path):
            raise UsageError(
                "input and output are the same file", found=str(other), where=path, expected="two files",
                fix="write to another name",
            )  # fmt: skip
    if not stat.S_ISREG(status.st_mode):
        raise UsageError("the output is not a regular file", where=path, expected="a file name")
    if not overwrite:
        left = old_name(path)
        raise UsageError(
            "the output exists already", found=f"{left.name} of a run that was killed, too" if left.exists() else "",
            where=path, fix="pass --overwrite, or choose another name",
        )  # fmt: skip
