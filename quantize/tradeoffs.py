"""What each type would cost a matrix in bytes, and how much error it would leave: the choices of a search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from ..convert.errors import UsageError
from ..convert.floats import widened
from ..convert.ggml import FLOATS
from ..convert.gguf import GgufFile, TensorInfo
from ..convert.matrices import why_kept
from .native import dequantize_rows, quantize_rows
from .policy import file_order
from .qtypes import BY_ID, QUANTISED, QType
from .schemes import KEEP
from .search import Choice, Group, screened

CHUNK_WEIGHTS = 1 << 20
"""Weights that are tried at a time."""
MAX_GROUPS = 32
"""A draft with more matrices is searched by kind of matrix, all layers alike, so that the search stays short."""
ALIGNMENT = 32
"""Of tensors in a GGUF."""

Importance = Mapping[str, npt.NDArray[np.float32]]


def aligned(nbytes: int) -> int:
    """Bytes that a tensor takes in the file."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def matrices(file: GgufFile) -> list[TensorInfo]:
    """The tensors that may change, in file order. Raises UsageError where one is quantised already."""
    found = [t for t in file.tensors.values() if not why_kept(t.name, t.shape)]
    for tensor in found:
        if tensor.type not in FLOATS:
            raise UsageError(
                "a search starts from the unquantised draft", found=BY_ID[tensor.type].name if tensor.type in BY_ID else tensor.type,
                where=f"{file.path}: {tensor.name}", expected="F32, F16 or BF16",
            )  # fmt: skip
    return sorted(found, key=lambda t: file_order(t.name))


def kind_of(name: str) -> str:
    """The glob that names the same matrix of every layer."""
    parts = name.split(".")
    return ".".join(["blk", "*", *parts[2:]]) if parts[0] == "blk" else name


def groups_of(file: GgufFile, importance: Importance) -> list[Group]:
    """What a search over the draft `file` decides: one group a matrix, or a kind of matrix where there are many."""
    found = matrices(file)
    names: dict[str, list[TensorInfo]] = {}
    for tensor in found:
        name = tensor.name if len(found) <= MAX_GROUPS else kind_of(tensor.name)
        names.setdefault(name, []).append(tensor)
    return [
        Group(name, tuple(t.name for t in members), choices_of(file, members, importance))
        for name, members in names.items()
    ]


def choices_of(
    file: GgufFile, tensors: Iterable[TensorInfo], importance: Importance
) -> tuple[Choice, ...]:
    """The types worth having for `tensors` together, smallest first; the last keeps what they are."""
    tensors = list(tensors)
    power = sum(squares(file, t, importance, None) for t in tensors)
    choices = [Choice(KEEP, sum(aligned(t.nbytes) for t in tensors), 0.0)]
    for kind in QUANTISED:
        if any(t.shape[0] % kind.block_weights for t in tensors):
            continue
        nbytes = sum(aligned(kind.row_bytes(t.shape[0]) * rows_of(t)) for t in tensors)
        error = sum(squares(file, t, importance, kind) for t in tensors)
        choices.append(Choice(kind.name, nbytes, error / power if power else 0.0))
    return screened(choices)


def rows_of(tensor: TensorInfo) -> int:
    """Rows of a matrix, or of a stack of them."""
    return int(np.prod(tensor.shape[1:]))


def squares(
    file: GgufFile, tensor: TensorInfo, importance: Importance, kind: QType | None
) -> float:
    """The sum of squared errors that `kind` leaves, each column weighted by its importance; of the weights for None."""
    cols, source = tensor.shape[0], BY_ID[tensor.type]
    weights = importance.get(tensor.name)
    vector = None if weights is None or len(weights) != 1 else weights[0]
    factor = np.ones(cols) if vector is None or not vector.any() else vector.astype(np.float64)
    raw = np.memmap(file.path, np.uint8, "r", tensor.offset, (tensor.nbytes,))
    step = max(1, CHUNK_WEIGHTS // cols) * source.row_bytes(cols)
    total = 0.0
    for start in range(0, tensor.nbytes, step):
        x = np.array(widened(raw[start : start + step].data, tensor.type)).reshape(-1, cols)
        e = x.astype(np.float64)
        if kind is not None:
            used = vector if kind.searches else None
            e -= dequantize_rows(quantize_rows(x, kind.name, used), kind.name, cols)
        total += float(np.square(e).sum(0) @ factor)
    return total
