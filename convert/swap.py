"""Several finished siblings take their names together, also when the process is killed half way.

The last file of a set describes the others (a manifest), so its name is free from the first rename to the last: it never
stands beside a file it does not describe. What was there before waits as `.NAME.old`. Whoever opens the set next finds
a name missing that has an `.old`, knows that the swap was cut, and puts everything back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .files import same_file

if TYPE_CHECKING:
    from .output import OutputFile


def old_name(path: Path) -> Path:
    """Where the file of that name waits while it is replaced."""
    return path.with_name(f".{path.name}.old")


def swap(files: Sequence[OutputFile]) -> None:
    """Give every sibling its name; if a step fails all are undone.

    Raises EnvironmentFault where a rename fails or the folder cannot be flushed.
    """
    if not files:
        return
    try:
        for file in files[:-1]:
            keep_old(file.path)
        set_aside(files[-1].path, alone=len(files) == 1)
        for file in files:
            file.temporary.replace(file.path)
        sync_folders(files)
    except OSError as error:
        put_back(files)
        raise files[0].fault(error) from error
    drop_old(files)


def set_aside(path: Path, *, alone: bool) -> None:
    """Free the name of the set's last file before any other is replaced; a file that is alone is replaced at once."""
    if alone:
        keep_old(path)
    elif os.path.lexists(path):
        path.replace(old_name(path))
        sync_folder(path.parent)


def keep_old(path: Path) -> None:
    """Give the file that is about to be replaced a second name.

    Where the file system has no hard links the file is renamed instead, and its own name is free for a moment.
    """
    if not os.path.lexists(path):
        return
    try:
        os.link(path, old_name(path), follow_symlinks=False)
    except OSError:
        path.replace(old_name(path))


def recover(files: Sequence[OutputFile]) -> None:
    """Undo what a killed run left half done, and drop what it left when all was done."""
    waiting = [f for f in files if os.path.lexists(old_name(f.path))]
    named = {f.path for f in files if os.path.lexists(f.path)}
    if waiting and (files[-1].path not in named or any(f.path not in named for f in waiting)):
        put_back(files)
    drop_old(files)


def put_back(files: Sequence[OutputFile]) -> None:
    """Give every old file its name again and take away the new ones."""
    last_waits = os.path.lexists(
        old_name(files[-1].path)
    )  # then every file without an old one is new
    for file in files:
        if os.path.lexists(old_name(file.path)):
            old_name(file.path).replace(file.path)
            # renaming one name of a file to another of its names does nothing
            old_name(file.path).unlink(missing_ok=True)
        elif last_waits or same_file(os.fstat(file.fd), file.path):
            file.path.unlink(missing_ok=True)


def drop_old(files: Sequence[OutputFile]) -> None:
    """Remove what waits."""
    for file in files:
        old_name(file.path).unlink(missing_ok=True)


def sync_folders(files: Sequence[OutputFile]) -> None:
    """The renames of all files on the disk."""
    for folder in {file.path.parent for file in files}:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """The renames of a folder on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
