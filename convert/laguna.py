"""Poolside's variant of llama.cpp's draft GGUF (`dflash.decoder_arch = laguna`), taken as input. Pure.

It is llama.cpp's dialect with a gate in each layer and the norms of the captured states stacked in one tensor.
"""

from __future__ import annotations

from dataclasses import replace

from .errors import InputError
from .ggml import FLOATS, tensor_bytes
from .gguf import GgufFile
from .spelling import spellings

STACK, SINGLE = "enc.aux_norm.weight", "dflash_aux_hidden_norm.{i}.weight"
NAME = "laguna"


def is_laguna(file: GgufFile) -> bool:
    """Whether the file says that its decoder is Laguna's.

    Raises InputError for any other decoder: the tensors of a plain draft may be computed with otherwise.
    """
    keys = spellings("decoder_arch", file.architecture)
    found = {key: value for key in keys if (value := file.ask.text(key)) is not None}
    for key, value in found.items():
        if value != NAME:
            raise InputError(
                "decoder of the draft is not known", found=value, where=f"{file.path}: {key}", expected=f"{NAME}, or no such key",
                fix="convert the original checkpoint",
            )  # fmt: skip
    return bool(found)


def unstacked(file: GgufFile) -> GgufFile:
    """The file with one norm for each captured layer where it has a stack of them; no byte moves."""
    stack = file.tensors.get(STACK)
    if stack is None or len(stack.shape) != 2 or stack.type not in FLOATS:
        return file
    width, rows = stack.shape
    size = tensor_bytes(stack.type, (width,), STACK)
    tensors = dict(file.tensors)
    del tensors[STACK]
    for i in range(rows):
        name = SINGLE.format(i=i)
        if name in tensors:
            raise InputError("tensor is there under two names", found=f"{STACK} and {name}", where=file.path, expected="one of them")  # fmt: skip
        tensors[name] = replace(
            stack, name=name, shape=(width,), nbytes=size, offset=stack.offset + i * size
        )
    return replace(file, tensors=tensors)
