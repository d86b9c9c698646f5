"""Tensors in a file that torch.save wrote: where their bytes lie. The one place that lets PyTorch read a stranger's pickle.

The file is looked at three times before it is believed. Its zip directory must hold plain, uncompressed members inside
the file; its pickle may name tensors and nothing else, which is seen by reading the opcodes, without executing them; and then
`torch.load(weights_only=True)` reads it for shapes alone, in fake mode, which allocates and reads no data. What comes
out are spans of the file, as of a safetensors file. PyTorch is optional, and must be 2.10 at least: older ones corrupt memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickletools
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from .errors import EnvironmentFault, InputError, one_line
from .files import open_regular
from .safetensors import SafetensorsFile, SourceTensor

MAX_FILE = 1 << 30
"""Bytes; the largest known head has 268 MB (a vocabulary of 262144 at rank 256, in F32)."""
MAX_PICKLE = 1 << 20
"""Bytes of the pickle inside."""
OLDEST = (2, 10)

STORAGES = ("BFloat16", "Half", "Float", "Double", "Long", "Int", "Short", "Char", "Byte", "Bool")
GLOBALS = frozenset({
    "collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter",
    *(f"torch {kind}Storage" for kind in STORAGES),
})  # fmt: skip
"""The only names that a pickle of tensors needs."""
OTHER_WAYS = frozenset(
    {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}
)
"""Opcodes that name or make an object otherwise; torch.save writes none of them."""

DTYPES = {
    "torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32", "torch.float64": "F64",
    "torch.int64": "I64", "torch.int32": "I32", "torch.int16": "I16", "torch.int8": "I8", "torch.uint8": "U8",
    "torch.bool": "BOOL",
}  # fmt: skip


def read_torch(path: str | os.PathLike[str]) -> tuple[SafetensorsFile, dict[str, int]]:
    """The tensor table of the file, and the whole numbers that lie beside the tensors.

    A `state_dict` inside is taken for the whole. Raises InputError for anything but a flat dictionary of dense tensors
    and whole numbers, EnvironmentFault where PyTorch is needed and missing or too old.
    """
    path = Path(path)
    container = check_container(path)
    check_pickle(container.pickle, path)
    content = load(path)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not content:
        raise InputError(
            "PyTorch file has no dictionary of tensors", found=type(content).__name__, where=path, expected="name to tensor"
        )  # fmt: skip
    tensors: dict[str, SourceTensor] = {}
    numbers: dict[str, int] = {}
    for name, value in content.items():
        if not (isinstance(name, str) and name and name.isprintable()):
            raise InputError(
                "tensor name is not usable", found=one_line(repr(name)), where=path, expected="printable text"
            )  # fmt: skip
        if isinstance(value, int) and not isinstance(value, bool):
            numbers[name] = value
        else:
            tensors[name] = located(name, value, path, container.members)
    digest = hashlib.sha256(container.pickle).hexdigest()
    return SafetensorsFile(path, container.size, digest, tensors), numbers


@dataclass(frozen=True, slots=True)
class Container:
    """The zip archive that a PyTorch file is."""

    size: int
    pickle: bytes
    members: Mapping[int, int]
    """Where the bytes of a member begin, and how many they are."""


def check_container(path: Path) -> Container:
    """The archive; refused where a member is compressed, or larger than the file."""

    def fault(what: str, found: object, expected: str) -> InputError:
        return InputError(what, found=one_line(found), where=path, expected=expected)

    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE:
            raise fault(
                "PyTorch file is too large for a head", f"{size} bytes", f"at most {MAX_FILE}"
            )
        if file.read(4) != b"PK\x03\x04":
            raise fault(
                "not a PyTorch file of version 1.6 or later",
                "no zip archive",
                "torch.save's own format",
            )
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                if sum(m.file_size for m in members) > size:
                    raise fault(
                        "members of the PyTorch file are larger than it",
                        "overlapping or compressed members",
                        f"{size} bytes in all",
                    )
                packed = [m.filename for m in members if m.compress_type != zipfile.ZIP_STORED]
                if packed:
                    raise fault(
                        "PyTorch file is compressed",
                        packed[0],
                        "stored members, as torch.save writes them",
                    )
                pickles = [m for m in members if m.filename.endswith("/data.pkl")]
                if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE:
                    raise fault(
                        "PyTorch file has no usable data.pkl",
                        f"{len(pickles)} of them",
                        f"one, of at most {MAX_PICKLE} bytes",
                    )
                orders = [archive.read(m) for m in members if m.filename.endswith("/byteorder")]
                if orders not in ([], [b"little"]):
                    raise fault("PyTorch file has another byte order", orders[0][:16], "little")
                spans = {begin_of(m, file): m.file_size for m in members}
                return Container(size, archive.read(pickles[0]), spans)
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            RuntimeError,
            EOFError,
            OSError,
            ValueError,
            struct.error,
        ) as error:
            raise fault("PyTorch file is damaged", error, "a whole zip archive") from error


def begin_of(member: zipfile.ZipInfo, file: BufferedReader) -> int:
    """Where the bytes of a stored member begin: behind its own header, whose length it says itself."""
    file.seek(member.header_offset)
    name, extra = struct.unpack("<26x2H", file.read(30))
    return member.header_offset + 30 + int(name) + int(extra)


MAX_TUPLES = 10_000
"""A head has some eight tuples for each of a few dozen tensors."""


def check_pickle(raw: bytes, path: Path) -> None:
    """Refuse a pickle that names anything but tensors, by reading its opcodes; nothing is executed."""
    tuples = 0
    try:
        for opcode, argument, position in pickletools.genops(raw):
            tuples += opcode.name.startswith("TUPLE")
            if tuples > MAX_TUPLES:  # nested, they would overflow the stack of whoever hashes them
                raise InputError(
                    "pickle has too many tuples", found=f"more than {MAX_TUPLES}", where=f"{path}: data.pkl, offset {position}",
                    expected="a few for each tensor of a head",
                )  # fmt: skip
            named = str(argument) if opcode.name == "GLOBAL" else ""
            if (named and named not in GLOBALS) or opcode.name in OTHER_WAYS:
                raise InputError(
                    "pickle names something that is not a tensor", found=one_line(named or opcode.name),
                    where=f"{path}: data.pkl, offset {position}", expected="tensors only", fix="do not open this file with anything else",
                )  # fmt: skip
    except ValueError as error:
        raise InputError(
            "pickle is damaged", found=one_line(error), where=f"{path}: data.pkl", expected="torch.save's own format"
        ) from error  # fmt: skip


def load(path: Path) -> Any:
    """What the file holds, its tensors without their data."""
    torch = need_torch(path)
    from torch._subclasses.fake_tensor import FakeTensorMode

    quiet = logging.root.manager.disable
    logging.disable()  # PyTorch logs a trace of what it then raises
    try:
        with FakeTensorMode():
            return torch.load(path, weights_only=True)
    except Exception as error:  # whatever PyTorch says of a stranger's file, it is the file's fault
        raise InputError(
            "PyTorch does not read the file", found=one_line(f"{type(error).__name__}: {error}"), where=path,
            expected="a dictionary of tensors that torch.save wrote",
        ) from error  # fmt: skip
    finally:
        logging.disable(quiet)


def need_torch(path: Path) -> Any:
    """The torch module. Raises EnvironmentFault where it is missing or too old."""
    try:
        import torch
    except ImportError as error:
        raise needed("no PyTorch", path) from error
    version = torch.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise needed(f"PyTorch {version}", path)
    return torch


def needed(found: str, path: Path) -> EnvironmentFault:
    """The fault of an environment that cannot read the file."""
    oldest = ".".join(map(str, OLDEST))
    return EnvironmentFault(
        "a head in a PyTorch file needs PyTorch", found=found, where=path, expected=f"PyTorch {oldest} or later",
        fix=f'pip install "torch>={oldest}", or save the head as .safetensors',
    )  # fmt: skip


def located(name: str, value: Any, path: Path, members: Mapping[int, int]) -> SourceTensor:
    """Where a tensor without data has its bytes; refused unless a member holds them, one after another."""

    def fault(what: str, found: object, expected: str) -> InputError:
        return InputError(
            what, found=one_line(found), where=f"{path}: {one_line(name)}", expected=expected
        )

    storage = value.untyped_storage() if hasattr(value, "untyped_storage") else None
    start = getattr(storage, "_checkpoint_offset", None)
    if start is None:
        raise fault("value is not a tensor of the file", type(value).__name__, "tensors and whole numbers")  # fmt: skip
    dtype = DTYPES.get(str(value.dtype))
    if dtype is None or not value.is_contiguous() or value.is_neg() or value.is_conj():
        raise fault("tensor cannot be taken as it lies", f"{value.dtype}, strides {value.stride()}", "a dense tensor of plain numbers")  # fmt: skip
    width = value.element_size()
    nbytes, inside = value.numel() * width, value.storage_offset() * width
    held = members.get(start, 0)
    if inside + nbytes > held:
        raise fault("tensor has more bytes than the file holds for it", f"{inside + nbytes}", f"at most {held}")  # fmt: skip
    return SourceTensor(name, path, start + inside, nbytes, dtype, tuple(value.shape))
