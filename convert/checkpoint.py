"""A Hugging Face checkpoint on disk: its config and where each tensor's bytes lie. Lazy: no weights are read.

A folder with one safetensors file, or with shards and their index; or a safetensors file with its config.json beside
it; and the heads beside them (`beside.py`). Code in the folder and `auto_map` are never looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .beside import MaskEmbedding, is_head, read_heads, read_mask_embedding
from .errors import InputError, one_line
from .safetensors import SafetensorsFile, SourceTensor, read_safetensors
from .strict_json import Section, read_json
from .vocabulary import inside


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Config and tensor table of a draft."""

    path: Path
    config: Section
    files: tuple[SafetensorsFile, ...]
    tensors: dict[str, SourceTensor]
    mask_embedding: MaskEmbedding | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name to shape in PyTorch order."""
        return {name: t.shape for name, t in self.tensors.items()}


def open_checkpoint(
    path: str | os.PathLike[str], config: str | os.PathLike[str] | None = None
) -> Checkpoint:
    """The checkpoint at `path`, a folder or a .safetensors file; `config` overrides where config.json lies.

    Raises InputError where config, index or a shard is missing or not what it claims.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    config_path = Path(config) if config else inside(folder / "config.json", folder)
    section = Section(read_json(config_path), config_path)
    files = read_folder(path) if path.is_dir() else (read_safetensors(path),)
    files += read_heads(folder, {file.path.name for file in files})
    tensors: dict[str, SourceTensor] = {}
    for file in files:
        twice = sorted(tensors.keys() & file.tensors)  # read_shards refused one in two shards
        if twice:
            raise InputError(
                "tensor is in two files", found=one_line(twice[0]), where=file.path, expected=f"only in {tensors[twice[0]].file.name}",
                fix="remove the file that does not belong to the draft",
            )  # fmt: skip
        tensors |= file.tensors
    tensors = unfused(tensors, section)
    if not tensors:
        raise InputError("checkpoint has no tensors", where=path, expected="a draft's weights")
    return Checkpoint(path, section, files, tensors, read_mask_embedding(folder))


def read_folder(folder: Path) -> tuple[SafetensorsFile, ...]:
    """The safetensors files of a folder, by its index where it has one."""
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if len(indexes) > 1:
        raise InputError(
            "folder has several indexes",
            found=", ".join(p.name for p in indexes),
            where=folder,
            expected="one",
        )
    if indexes:
        return read_shards(folder, indexes[0])
    found = sorted(folder.glob("*.safetensors"))
    files = [file for file in found if not is_head(file)] or found
    if len(files) != 1:
        raise InputError(
            "folder has no safetensors file" if not files else "folder has several safetensors files and no index",
            found=", ".join(p.name for p in files[:4]) or "none", where=folder, expected="one file, or shards with an index",
            fix="point at the file itself",
        )  # fmt: skip
    return (read_safetensors(inside(files[0], folder)),)


def read_shards(folder: Path, index: Path) -> tuple[SafetensorsFile, ...]:
    """The shards an index names, checked against it."""
    raw = Section(read_json(inside(index, folder), limit=8 << 20), index)
    placed = raw.values.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise InputError(
            "index has no weight_map",
            found=one_line(placed),
            where=index,
            expected="tensor name to file name",
        )
    names = sorted({shard_name(v, index) for v in placed.values()})
    missing = [n for n in names if not (folder / n).is_file()]
    if missing:
        raise InputError(
            "shard is missing", found=f"{len(names) - len(missing)} of {len(names)} files", where=index, expected=", ".join(missing[:4]),
            fix="download the checkpoint again",
        )  # fmt: skip
    files = tuple(read_safetensors(inside(folder / n, folder)) for n in names)
    check_index(placed, files, raw, index)
    return files


def shard_name(value: Any, index: Path) -> str:
    """A file name in the index's own folder."""
    if (
        not isinstance(value, str)
        or not value.endswith(".safetensors")
        or "/" in value
        or "\\" in value
        or not value.isprintable()
    ):
        raise InputError(
            "index names a file that is not a shard", found=one_line(repr(value)), where=index, expected="a name ending in .safetensors"
        )  # fmt: skip
    return value


def check_index(
    placed: Mapping[str, Any], files: tuple[SafetensorsFile, ...], raw: Section, index: Path
) -> None:
    """Refuse unless the index and the shards say the same."""
    found = [(name, f.path.name) for f in files for name in f.tensors]
    wrong = sorted(set(found) ^ set(placed.items()))
    if wrong:
        name, file = wrong[0]
        raise InputError(
            f"index and shards disagree about {len(wrong)} places", found=one_line(f"{name} in {file}"), where=index,
            expected="every tensor in the file the index names, and no other",
        )  # fmt: skip
    metadata = raw.section("metadata")
    total = metadata.integer("total_size") if metadata else None
    held = sum(t.nbytes for f in files for t in f.tensors.values())
    if total is not None and total != held:
        raise InputError(
            "index has a wrong total_size", found=total, where=index, expected=f"{held} bytes"
        )


def unfused(tensors: Mapping[str, SourceTensor], config: Section) -> dict[str, SourceTensor]:
    """The tensors with every fused `qkv_proj` taken apart; its rows lie one after another, so no byte moves."""
    out: dict[str, SourceTensor] = {}
    for name, t in tensors.items():
        stem, mark, _ = name.partition("qkv_proj.weight")
        if not mark:
            out[name] = t
            continue
        heads, kv_heads, dim = (
            config.integer(k) or 0
            for k in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        rows = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
        if len(t.shape) != 2 or min(rows.values()) <= 0 or sum(rows.values()) != t.shape[0]:
            raise InputError(
                "fused qkv_proj does not fit the heads", found=f"{list(t.shape)}", where=f"{t.file}: {one_line(name)}", expected=f"{sum(rows.values())} rows"
            )  # fmt: skip
        offset = t.offset
        for letter, count in rows.items():
            nbytes = t.nbytes // t.shape[0] * count
            part = f"{stem}{letter}_proj.weight"
            out[part] = SourceTensor(part, t.file, offset, nbytes, t.dtype, (count, t.shape[1]))
            offset += nbytes
    return out
