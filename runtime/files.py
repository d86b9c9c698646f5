"""Small text files from and to the disk: prompt sets, records and references; and where packaged ones lie."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ..convert.errors import InputError, UsageError
from ..convert.output import OutputSet


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of the regular file `path`.

    Raises InputError where it is absent, no regular file, or larger than `limit` bytes.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO may have no writer
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise InputError("file is missing", where=path) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InputError("not a regular file", where=path)
        if status.st_size > limit:
            raise InputError(
                "file is too large", found=f"{status.st_size} bytes", where=path, expected=f"at most {limit}"
            )  # fmt: skip
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(fd)


def write_text(
    path: Path, text: str, *, overwrite: bool, inputs: Sequence[str | os.PathLike[str]] = ()
) -> None:
    """Write `text` so that `path` appears whole or not at all; see `OutputSet` for what is refused."""
    with OutputSet([path], overwrite=overwrite, inputs=inputs) as (file,):
        file.write(text.encode(), 0)


def find(name: str, folder: str, suffix: str) -> Path:
    """The file `name`, or the packaged manifests/`folder`/`name``suffix` when no such file exists.

    Raises UsageError with the packaged names where there is neither.
    """
    path = Path(name)
    if path.exists() or path.name != name or path.suffix:
        return path
    packaged = Path(str(resources.files("dflash_gguf.manifests"))) / folder
    found = packaged / f"{name}{suffix}"
    if found.is_file():
        return found
    names = sorted(p.name.removesuffix(suffix) for p in packaged.glob(f"*{suffix}"))
    raise UsageError(
        f"no file and no packaged set of this name in {folder}", found=name, expected=", ".join(names) or "a path"
    )  # fmt: skip
