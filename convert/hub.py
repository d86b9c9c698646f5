"""A draft from the Hugging Face hub: a repository id becomes a folder of one exact commit, its bytes checked.

Only config, tokenizer, index and safetensors files are fetched: no code, no pickles. The hub's own cache and its offline
mode are honoured. A download can end well with the wrong bytes, so every large file is hashed against its name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import EnvironmentFault, InputError
from .files import open_regular

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
FILES = ("*.json", "*.safetensors", "*.jinja")
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository, on the disk."""

    folder: Path
    commit: str


def is_repository(source: Path) -> bool:
    """Whether the source is a repository id: `owner/name`, and no file of that name."""
    return REPOSITORY.fullmatch(str(source)) is not None and not source.exists()


def fetch(repository: str, revision: str | None) -> Snapshot:
    """The snapshot of `repository` at `revision` (a branch, tag or commit; the default branch where None).

    Raises EnvironmentFault where the hub cannot be reached or says no, InputError where a file's bytes are wrong.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError, OSError) as error:
        raise EnvironmentFault(
            "the hub did not give the draft", found=f"{type(error).__name__}: {error}", where=f"{repository} at {revision or 'its default branch'}",
            expected="a repository that can be read, or its files in the local cache",
            fix="check the name and revision, log in for a gated repository, or download it and give the folder",
        ) from error  # fmt: skip
    if not COMMIT.fullmatch(folder.name):
        raise EnvironmentFault(
            "the hub's cache names no commit",
            found=folder.name,
            where=folder,
            expected="40 hex digits",
        )
    for file in sorted(folder.rglob("*")):
        check_blob(file)
    return Snapshot(folder, folder.name)


def check_blob(file: Path) -> None:
    """Refuse a file whose bytes are not those of its blob's name; the cache names large files by their sha256."""
    name = file.resolve().name
    if not SHA256.fullmatch(name):
        return
    with open_regular(file.resolve()) as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != name:
        raise InputError(
            "downloaded file has the wrong bytes", found=f"sha256 {found}", where=file, expected=name, fix="delete it and download again"
        )  # fmt: skip
