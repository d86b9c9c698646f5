"""A draft's matrices in other types, each quantised once: what a search over types replaces in a running engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..convert.errors import UsageError
from ..convert.ggml import fit_row
from ..convert.gguf import GgufFile, TensorInfo, read_gguf
from ..quantize.native import quantize_rows
from ..quantize.qtypes import BY_ID, QType, qtype
from .engine import StoredTensor

DTYPES = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}


@dataclass(frozen=True)
class Candidates:
    """The tensors of the draft GGUF `file`; `importance` is the mean square of each column, by tensor, or empty."""

    file: GgufFile
    importance: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    made: dict[tuple[str, str], StoredTensor] = field(default_factory=dict)
    """What was quantised so far, by tensor and type."""

    @classmethod
    def read(
        cls, draft: Path, importance: Mapping[str, NDArray[np.float32]] | None = None
    ) -> Candidates:
        """The candidates of the draft at `draft`."""
        return cls(read_gguf(draft), importance or {})

    def rows(self, tensor: TensorInfo) -> NDArray[np.generic]:
        """The tensor's weights as `quantize_rows` takes them. Raises UsageError where it is quantised already."""
        kind = BY_ID[tensor.type]
        if not kind.is_float:
            raise UsageError(
                "candidates are made from floats", found=kind.name, where=tensor.name, expected="f32, f16 or bf16"
            )  # fmt: skip
        count = tensor.nbytes // np.dtype(DTYPES[kind.name]).itemsize
        flat = np.memmap(self.file.path, DTYPES[kind.name], "r", tensor.offset, (count,))
        return np.ascontiguousarray(flat.reshape(-1, tensor.shape[0]))

    def kind(self, name: str, wanted: str) -> QType:
        """The type that `name` gets where `wanted` was asked for: another where its rows do not divide."""
        return BY_ID[fit_row(qtype(wanted).id, self.file.tensors[name].shape[0])]

    def tensor(self, name: str, wanted: str) -> StoredTensor:
        """The tensor `name` as `dflash-quantize` writes it where `wanted` was asked for; made once."""
        kind = self.kind(name, wanted)
        key = (name, kind.name)
        if key not in self.made:
            weights = self.importance.get(name) if kind.searches else None
            blocks = quantize_rows(
                self.rows(self.file.tensors[name]),
                kind.name,
                None if weights is None else weights[0],
            )
            self.made[key] = StoredTensor(kind.id, blocks.tobytes())
        return self.made[key]

    def of(self, types: Mapping[str, str]) -> dict[str, StoredTensor]:
        """The tensors of a candidate, for `Engine.replace_tensors`: type wanted by name; others stay as they are."""
        return {name: self.tensor(name, wanted) for name, wanted in types.items()}

    def size(self, types: Mapping[str, str]) -> int:
        """Bytes of all tensors of the draft under `types`."""
        return sum(
            len(self.tensor(name, types[name]).data) if name in types else t.nbytes
            for name, t in self.file.tensors.items()
        )
