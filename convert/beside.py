"""What lies beside a checkpoint's weights: the files of its heads, and the embedding of its mask token.

A file is taken for a head's by its name (`dflash_aux_heads.pt`, `markov_head.safetensors`, ...), so that the state of an
optimiser is never opened. Its tensors join the others, and must all belong to the draft.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError
from .safetensors import SafetensorsFile, SourceTensor, read_safetensors
from .spec import DraftSpec
from .torch_file import read_torch
from .vocabulary import inside

HEADS = re.compile(r"(.*[_.-])?heads?([_.-].*)?\.(pt|pth|bin|safetensors)")
MASK_EMBEDDING = "mask_embedding.pt"


@dataclass(frozen=True, slots=True)
class MaskEmbedding:
    """A draft's own embedding of its mask token; the target's row is untrained."""

    token_id: int
    tensor: SourceTensor


def is_head(path: Path) -> bool:
    """Whether a file of this name holds heads."""
    return HEADS.fullmatch(path.name) is not None


def read_heads(folder: Path, taken: set[str]) -> tuple[SafetensorsFile, ...]:
    """The files of heads in `folder`, but for those that are `taken` already.

    Raises InputError where one is not sound, EnvironmentFault where PyTorch is needed and missing.
    """
    paths = [
        inside(p, folder) for p in sorted(folder.iterdir()) if is_head(p) and p.name not in taken
    ]
    return tuple(
        read_safetensors(p) if p.suffix == ".safetensors" else torch_head(p) for p in paths
    )


def torch_head(path: Path) -> SafetensorsFile:
    """The tensors of a head in a PyTorch file; refused where anything else lies beside them."""
    file, numbers = read_torch(path)
    if numbers:
        raise InputError(
            "value is not a tensor", found=f"{next(iter(numbers))}, a number", where=path, expected="tensors only"
        )  # fmt: skip
    return file


def read_mask_embedding(folder: Path) -> MaskEmbedding | None:
    """The mask token's embedding in `folder`, None where there is none.

    Raises InputError where the file is not a dictionary of `embedding` and `mask_token_id`.
    """
    if not (folder / MASK_EMBEDDING).exists():
        return None
    file, numbers = read_torch(inside(folder / MASK_EMBEDDING, folder))
    if set(file.tensors) != {"embedding"} or set(numbers) != {"mask_token_id"}:
        raise InputError(
            "mask embedding is not the dictionary it should be", found=" ".join([*file.tensors, *numbers]), where=file.path,
            expected="a tensor `embedding` and a number `mask_token_id`",
        )  # fmt: skip
    return MaskEmbedding(numbers["mask_token_id"], file.tensors["embedding"])


def check_mask_embedding(mask: MaskEmbedding | None, spec: DraftSpec) -> None:
    """Refuse a mask embedding of another token or width."""
    if mask is not None and (mask.token_id, mask.tensor.shape) != (
        spec.mask_token_id,
        (spec.hidden_size,),
    ):
        raise InputError(
            "mask embedding belongs to another draft", found=f"token {mask.token_id}, {list(mask.tensor.shape)}", where=mask.tensor.file,
            expected=f"token {spec.mask_token_id}, [{spec.hidden_size}]",
        )  # fmt: skip
