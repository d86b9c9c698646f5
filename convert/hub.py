"""A draft from the Hugging Face hub: a repository id becomes a folder of one exact commit, its bytes checked.

Only config, tokenizer, index and safetensors files are fetched, and the PyTorch files of heads: no code. The hub's own cache and
its offline mode are honoured. A download can end well with the wrong bytes, so every large file is hashed against its name.
"""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import EnvironmentFault, InputError, UsageError
from .files import open_regular

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
FILES = (
    "*.json", "*.safetensors", "*.jinja", "*head*.pt", "*head*.pth", "*head*.bin", "*mask_embedding.pt",
)  # fmt: skip
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
FILE_SUFFIXES = (".gguf", ".safetensors", ".json")
"""What the name of a file ends in: a path with such a name is a path, also where it is misspelled."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository, on the disk."""

    folder: Path
    commit: str


def is_repository(source: Path) -> bool:
    """Whether the source is a repository id: `owner/name`, no file of that name, and no file's name."""
    named = REPOSITORY.fullmatch(str(source)) is not None and source.suffix not in FILE_SUFFIXES
    return named and not source.exists()


def resolve(source: Path, revision: str | None, *, quiet: bool = False) -> tuple[Path, str]:
    """The source on the disk, and its commit where it came from the hub (else an empty text).

    Raises UsageError for a revision of what is no repository, and what `fetch` raises.
    """
    if not is_repository(source):
        if revision:
            raise UsageError(
                "--revision belongs to a hub repository, and the source is none", found=revision, where=source,
                expected="owner/name", fix="leave --revision out, or name the repository",
            )  # fmt: skip
        return source, ""
    snapshot = fetch(str(source), revision, quiet=quiet)
    return snapshot.folder, snapshot.commit


def fetch(repository: str, revision: str | None, *, quiet: bool = False) -> Snapshot:
    """The snapshot of `repository` at `revision` (a branch, tag or commit; the default branch where None).

    Raises InputError where the hub has no such repository or revision or a file's bytes are wrong, EnvironmentFault
    where the hub cannot be reached or says no.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if quiet or not sys.stderr.isatty():
        disable_progress_bars()
    where = f"{repository} at {revision or 'its default branch'}"
    path = f"there is no file or folder {repository} here either; if a path was meant, correct it"
    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=list(FILES)))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise InputError(
            "the hub has no such repository or revision, or does not show it", found=type(error).__name__, where=where,
            expected="owner/name of a repository, or a path", fix=f"{path}; or check name and revision, and log in for a gated one",
        ) from error  # fmt: skip
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError, OSError) as error:
        raise EnvironmentFault(
            "the hub did not give the draft", found=f"{type(error).__name__}: {error}", where=where,
            expected="a repository that can be read, or its files in the local cache",
            fix=f"{path}; or check name, revision and network, or download it and give the folder",
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
