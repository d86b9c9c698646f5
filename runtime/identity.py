"""Digests that say whether two runs had the same target and the same draft, whatever file holds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..convert import ggml
from ..convert.gguf import GgufFile, TensorInfo
from ..convert.names import SPELLINGS, generic, lookup

CHUNK = 1 << 24

Floats = NDArray[np.float32]


def file_sha256(path: Path) -> str:
    """sha256 of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def target_sha256(file: GgufFile) -> str:
    """Digest of a target: the metadata of its architecture, and name, type, shape and bytes of each tensor.

    Name, tokenizer and other general metadata are left out: they change no logit.
    """
    digest = hashlib.sha256()
    arch = file.architecture
    keys = {k: plain(v) for k, v in file.kv.items() if k.startswith(f"{arch}.")}
    digest.update(json.dumps([arch, keys], sort_keys=True).encode())
    for name in sorted(file.tensors):
        tensor = file.tensors[name]
        digest.update(json.dumps([name, tensor.type, tensor.shape]).encode())
        for part in chunks(file.path, tensor):
            digest.update(part)
    return digest.hexdigest()


def plain(value: Any) -> Any:
    """A metadata value as JSON can spell it."""
    return value.tolist() if hasattr(value, "tolist") else value


def chunks(path: Path, tensor: TensorInfo) -> Iterator[bytes]:
    """The tensor's bytes, some MiB at a time."""
    with path.open("rb") as file:
        file.seek(tensor.offset)
        left = tensor.nbytes
        while left:
            part = file.read(min(left, CHUNK))
            if not part:
                raise OSError(f"{path} became shorter while it was read")
            left -= len(part)
            yield part


def tensor_values(path: Path, tensor: TensorInfo) -> Floats:
    """A tensor of plain floats as flat float32; its type is one of `ggml.FLOATS`."""
    raw = b"".join(chunks(path, tensor))
    if tensor.type == ggml.BF16:
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, "<f2" if tensor.type == ggml.F16 else "<f4").astype(np.float32)


def draft_values_sha256(file: GgufFile) -> str:
    """`values_sha256` of a draft GGUF in any dialect; empty where a tensor is quantised."""
    if any(t.type not in ggml.FLOATS for t in file.tensors.values()):
        return ""

    def value(tensor: TensorInfo) -> Callable[[], Floats]:
        return lambda: tensor_values(file.path, tensor)

    return values_sha256({name: value(t) for name, t in file.tensors.items()})


def values_sha256(tensors: Mapping[str, Callable[[], Floats]]) -> str:
    """Digest of tensor values as F32 under their canonical names, whatever the container called them and stored.

    BF16 and F16 become F32 exactly, so a checkpoint and its BF16 and F32 GGUFs agree.
    """
    digest = hashlib.sha256()
    names = {canonical_name(name): name for name in tensors}
    for name in sorted(names):
        values = tensors[names[name]]()
        digest.update(f"{name}\0{values.size}\0".encode())
        digest.update(np.ascontiguousarray(values, "<f4").tobytes())
    return digest.hexdigest()


def canonical_name(name: str) -> str:
    """The canonical GGUF name of a draft tensor in any spelling; the name itself where no table knows it."""
    pattern, layer = generic(name.removeprefix("model."))
    rule = next((r for column in SPELLINGS if (r := lookup(column).get(pattern))), None)
    return rule.gguf.format(i=layer) if rule else name
