"""A draft from the Hugging Face hub: a repository id becomes a folder of one exact commit, its bytes checked.

Only one folder of the repository is fetched: its top, or `--subfolder`. First its small files; where they are no draft's (the
repository is a target's, say), nothing large is. Then safetensors files and the PyTorch files of heads, and no code. The hub's own
cache and its offline mode are honoured. A download can end well with the wrong bytes, so large files are hashed against their names.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import click

from .dialects import ARCHITECTURE
from .errors import EnvironmentFault, InputError, UsageError
from .files import open_regular
from .names import known, shorten
from .strict_json import Section, read_json

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
SUBFOLDER = re.compile(r"\w[\w.-]{0,95}(/\w[\w.-]{0,95}){0,7}")
SMALL = ("*.json", "*.jinja")
"""Config, index and tokenizer."""
LARGE = ("*.safetensors", "*head*.pt", "*head*.pth", "*head*.bin", "*mask_embedding.pt")
"""Weights, and the files of heads."""
MAX_INDEX = 8 << 20
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
FILE_SUFFIXES = (".gguf", ".safetensors", ".json")
"""What the name of a file ends in: a path with such a name is a path, also where it is misspelled."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository, on the disk."""

    folder: Path
    """Where the draft lies: the commit's folder, or the subfolder in it."""
    commit: str


def is_repository(source: Path) -> bool:
    """Whether the source is a repository id: `owner/name`, no file of that name, and no file's name."""
    named = REPOSITORY.fullmatch(str(source)) is not None and source.suffix not in FILE_SUFFIXES
    return named and not source.exists()


def resolve(
    source: Path, revision: str | None, subfolder: str | None = None, *, quiet: bool = False
) -> tuple[Path, str]:
    """The source on the disk, and its commit where it came from the hub (else an empty text).

    Raises UsageError for a revision or subfolder of what is no repository, and what `fetch` raises.
    """
    if is_repository(source):
        snapshot = fetch(str(source), revision, subfolder or "", quiet=quiet)
        return snapshot.folder, snapshot.commit
    for option, value in (("--revision", revision), ("--subfolder", subfolder)):
        if value:
            raise UsageError(
                f"{option} belongs to a hub repository, and the source is none", found=value, where=source,
                expected="owner/name", fix=f"leave {option} out and name the folder itself, or name the repository",
            )  # fmt: skip
    return source, ""


def fetch(
    repository: str, revision: str | None, subfolder: str = "", *, quiet: bool = False
) -> Snapshot:
    """The draft in `repository` at `revision` (a branch, tag or commit; the default branch where None), in its `subfolder`.

    Raises UsageError for a subfolder that is no path inside it, InputError where the hub has no such repository or revision, the
    folder is no draft's or a file's bytes are wrong, EnvironmentFault where the hub cannot be reached or says no.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if subfolder and not SUBFOLDER.fullmatch(subfolder):
        raise UsageError(
            "--subfolder is no folder of a repository", found=subfolder, expected="a path inside it, like dflash"
        )  # fmt: skip
    if quiet or not sys.stderr.isatty():
        disable_progress_bars()
    where = f"{repository} at {revision or 'its default branch'}"
    root = download(repository, revision, patterns(SMALL, subfolder), (), where)
    if not COMMIT.fullmatch(root.name):
        raise EnvironmentFault(
            "the hub's cache names no commit", found=root.name, where=root, expected="40 hex digits"
        )
    folder = root / subfolder
    check_folder(folder, root, f"{where}{', ' if subfolder else ''}{subfolder}")
    if not quiet:
        say_sizes(repository, root, subfolder)
    deeper = f"{subfolder}/*/*" if subfolder else "*/*"
    download(repository, root.name, patterns(LARGE, subfolder), (deeper,), where)
    for file in sorted(folder.iterdir()):
        if file.is_file():
            check_blob(file)
    return Snapshot(folder, root.name)


def patterns(names: Sequence[str], subfolder: str) -> list[str]:
    """The patterns of files, in the subfolder. The hub's `*` matches `/` too."""
    return [f"{subfolder}/{name}" if subfolder else name for name in names]


def download(
    repository: str, revision: str | None, wanted: Sequence[str], unwanted: Sequence[str], where: str
) -> Path:  # fmt: skip
    """The folder of the commit, with the files of `wanted` but for those of `unwanted` in it."""
    from huggingface_hub import snapshot_download

    with hub_errors(repository, where):
        return Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=list(wanted), ignore_patterns=list(unwanted) or None
            )
        )  # fmt: skip


@contextmanager
def hub_errors(repository: str, where: str) -> Iterator[None]:
    """What the hub's library raises, as InputError or EnvironmentFault."""
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    path = f"there is no file or folder {repository} here either; if a path was meant, correct it"
    try:
        yield
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


def is_drafts(config: Path) -> bool:
    """Whether a config.json names a draft's architecture; not where it cannot be read."""
    try:
        names = Section(read_json(config), config).texts("architectures")
    except InputError:
        return False
    return any(ARCHITECTURE.search(name) for name in names or ())


def check_folder(folder: Path, root: Path, where: str) -> None:
    """Refuse a folder whose config or index is no draft's, with the subfolders that may be one, before its weights are fetched."""
    config = folder / "config.json"
    if not config.is_file() or not is_drafts(config):
        said = Section(read_json(config), config).texts("architectures") if config.is_file() else ()
        others = sorted(p.parent for p in root.rglob("*/config.json") if p.parent != folder and is_drafts(p))  # fmt: skip
        names = [str(other.relative_to(root)) for other in others]
        raise InputError(
            "the repository holds no draft here, and its weights were not fetched",
            found=f"architectures {said}" if said else "no config.json that names one", where=where, expected="a draft's config.json",
            fix=f"name the folder with --subfolder {' or '.join(names)}" if names
            else "name the draft's own repository, or its folder in this one with --subfolder",
        )  # fmt: skip
    for index in sorted(folder.glob("*.safetensors.index.json")):
        placed = Section(read_json(index, limit=MAX_INDEX), index).section("weight_map")
        strange = [name for name in (placed.values if placed else ()) if not known(name)]
        if strange:
            raise InputError(
                f"index names {len(strange)} tensors that no draft has, and the weights were not fetched", found=shorten(strange), where=where,
                expected="only a draft's tensors", fix="name the draft's own repository, or its folder in this one with --subfolder",
            )  # fmt: skip


def say_sizes(repository: str, root: Path, subfolder: str) -> None:
    """What is about to be fetched, on stderr; nothing where the hub is not asked or all of it is here."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import RepoFile

    try:
        listed = HfApi().list_repo_tree(repository, subfolder or None, revision=root.name)
        sizes = {item.path: item.size for item in listed if isinstance(item, RepoFile)}
    except (HfHubHTTPError, OSError):
        return  # offline: whether the files are here is the download's question
    wanted = patterns(LARGE, subfolder)
    missing = [name for name in sizes if any(fnmatch(name, p) for p in wanted) and not (root / name).exists()]  # fmt: skip
    if missing:
        total = sum(sizes[name] for name in missing)
        click.echo(f"note: fetching {len(missing)} files, {total} bytes: {shorten(missing)}", err=True)  # fmt: skip


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
