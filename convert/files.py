"""Files of strangers: only regular ones are opened, so that a pipe or a device can neither block nor flood; and which is which."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from .errors import InputError

KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
"""What is found in place of a file."""


def open_regular(path: Path) -> BufferedReader:
    """The file at `path`, open for reading.

    Raises InputError where it is absent or no regular file, OSError where the system refuses.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe may have no writer
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise InputError(
            "file is missing", found="nothing of that name", where=path, expected="an existing file"
        ) from error
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        raise InputError(
            "not a regular file",
            found=KINDS.get(kind, "something else"),
            where=path,
            expected="a file on a disk",
        )
    return os.fdopen(fd, "rb")


def read_limited(path: Path, limit: int) -> bytes:
    """The bytes of the file at `path`. Raises as `open_regular`, and InputError where it has more than `limit` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise InputError(
                "file is too large", found=f"{size} bytes", where=path, expected=f"at most {limit}"
            )
        return file.read(limit)


def same_file(known: os.stat_result, path: Path) -> bool:
    """Whether `path` still names the file with status `known`."""
    try:
        found = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (known.st_dev, known.st_ino)
