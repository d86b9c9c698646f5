"""Malformed files, spelled byte by byte, and the one way in which all of them must be refused."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny
from click.testing import CliRunner
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufOutput
from dflash_gguf.convert.inspect_cli import main as inspect_main


def text(value: bytes | str) -> bytes:
    """A GGUF string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: bytes | str, kind: int, value: bytes) -> bytes:
    """A metadata pair."""
    return text(key) + struct.pack("<I", kind) + value


def array(item: int, count: int, value: bytes = b"") -> bytes:
    """The value of an array."""
    return struct.pack("<IQ", item, count) + value


def tensor(
    name: bytes | str = "a",
    dims: tuple[int, ...] = (4,),
    kind: int = 0,
    offset: int = 0,
    rank: int | None = None,
) -> bytes:
    """A row of the tensor table."""
    return text(name) + struct.pack(
        f"<I{len(dims)}QIQ", len(dims) if rank is None else rank, *dims, kind, offset
    )


ARCH = pair("general.architecture", f.STRING, text("dflash"))


def gguf(
    *, magic: bytes = b"GGUF", version: int = 3, kv: list[bytes] | None = None, tensors: list[bytes] | None = None,
    data: bytes = bytes(32), n_kv: int | None = None, n_tensors: int | None = None, tail: bytes = b"",
) -> bytes:  # fmt: skip
    """A GGUF with everything as given; by default sound, with one tensor of four F32."""
    kv = [ARCH] if kv is None else kv
    tensors = [tensor()] if tensors is None else tensors
    counts = (len(tensors) if n_tensors is None else n_tensors, len(kv) if n_kv is None else n_kv)
    head = (
        magic + struct.pack("<I", version) + b"".join(struct.pack("<Q", c % 2**64) for c in counts)
    )
    head += b"".join(kv) + b"".join(tensors)
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + data + tail


def edited(
    source: Path,
    output: Path,
    drop: tuple[str, ...] = (),
    rename: dict[str, str] | None = None,
    **fields: f.Field,
) -> Path:
    """A copy of a GGUF with keys dropped or set, and tensors renamed; `__` in a keyword stands for a dot."""
    file = read_gguf(source)
    raw = source.read_bytes()
    kv = {k: v for k, v in file.fields.items() if k not in drop} | {
        k.replace("__", "."): v for k, v in fields.items()
    }
    names = {n: (rename or {}).get(n, n) for n in file.tensors}
    with GgufOutput(
        output, kv, [(names[t.name], t.type, t.shape) for t in file.tensors.values()]
    ) as writer:
        for t in file.tensors.values():
            writer.write(names[t.name], raw[t.offset : t.offset + t.nbytes])
    return output


def canonical_bytes(folder: Path) -> bytes:
    """The canonical file of the tiny v1 draft."""
    out, target = (
        folder / "canonical.gguf",
        tiny.write_target_gguf(folder / "canonical-target.gguf"),
    )
    result = CliRunner().invoke(
        main, [str(tiny.write_draft(folder / "canonical")), str(out), "--target", str(target)]
    )

    assert 0 == result.exit_code, result.output
    return out.read_bytes()


def refused(command: Callable[..., Any], *arguments: Any, code: int = 3, seconds: float = 5) -> str:
    """The message of a run that must be refused: the exit code, in time, in memory, without a trace.

    A refusal takes well under a second of processor time on a quiet machine; the bound here is for a busy one, where a
    hang is what it must catch.
    """
    tracemalloc.start()
    start = time.process_time()
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    used, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert code == result.exit_code, result.output
    assert result.output.startswith("error: "), result.output
    assert "Traceback" not in result.output
    assert used < seconds
    assert peak < 256 << 20
    return result.output


def refused_everywhere(path: Path, folder: Path) -> str:
    """The message of dflash-convert for a file that is hostile as a source; inspect and --target must refuse it too."""
    out = folder / "out.gguf"
    before = {p.name for p in folder.iterdir()}
    refused(inspect_main, path)
    refused(main, tiny.write_draft(folder.parent / f"{folder.name}-draft"), out, "--target", path)
    message = refused(
        main, path, out, "--target", tiny.write_target(folder.parent / f"{folder.name}-target")
    )

    assert before == {p.name for p in folder.iterdir()}
    return message
