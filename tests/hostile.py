"""Malformed files, spelled byte by byte, and the one way in which all of them must be refused."""

from __future__ import annotations

import atexit
import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import tiny
from click.testing import CliRunner
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.cli import main as convert
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufOutput
from dflash_gguf.convert.inspect_cli import main as inspect
from dflash_gguf.quantize.cli import main as quantize
from dflash_gguf.runtime.cli import main as validate


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
        convert, [str(tiny.write_draft(folder / "canonical")), str(out), "--target", str(target)]
    )

    assert 0 == result.exit_code, result.output
    return out.read_bytes()


@dataclass(frozen=True)
class Run:
    """What a command in a process of its own came to."""

    code: int
    output: str
    peak: int
    """Bytes of memory at most, interpreter and imports included."""
    seconds: float
    """Processor time."""


@cache
def server() -> subprocess.Popen[str]:
    """The process that runs commands; it ends with this one."""
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("refusal_server.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    atexit.register(process.kill)
    return process


def run_alone(name: str, *words: Any) -> Run:
    """A command in a process of its own, measured."""
    process = server()
    assert process.stdin
    assert process.stdout
    print(
        json.dumps({"name": name, "words": [str(w) for w in words]}), file=process.stdin, flush=True
    )
    return Run(**json.loads(process.stdout.readline()))


LIMIT_BYTES, LIMIT_SECONDS = 256 << 20, 1.0


def headline(output: str) -> str:
    """The one line that says what is wrong; inspect prints what it knows before."""
    return next(line for line in output.splitlines() if line.startswith("error: "))


def refused(command: click.Command, *words: Any, code: int = 3) -> str:
    """The message of a run that must be refused: exit code, one line with file, place and value, time, memory.

    The command runs in a process of its own, whose whole peak must stay below 256 MiB and whose processor time below a
    second, and once more in this one, where the tests of coverage see it; both must say the same.
    """
    alone = run_alone(str(command.name), *words)
    here = CliRunner().invoke(command, [str(w) for w in words])

    assert code == alone.code, alone.output
    assert (alone.code, alone.output) == (here.exit_code, here.output)
    assert "; where " in headline(alone.output), alone.output
    assert "Traceback" not in alone.output
    assert alone.seconds < LIMIT_SECONDS
    assert alone.peak < LIMIT_BYTES
    return alone.output


def refused_everywhere(path: Path, folder: Path) -> str:
    """The message of dflash-convert for a file that is hostile as a source; every other use of it must be refused too.

    An output that is there already must stay as it is, although it may be overwritten, and nothing new may appear.
    """
    out = folder / "out.gguf"
    out.write_bytes(b"old")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    draft, target = (folder.parent / f"{folder.name}-{kind}" for kind in ("draft", "target"))
    tiny.write_draft(draft)
    tiny.write_target(target)
    refused(inspect, path)
    refused(inspect, draft, "--target", path)
    refused(convert, draft, out, "--target", path, "--overwrite")
    refused(quantize, path, out, "--scheme", "q8_0", "--overwrite")
    refused(validate, path, "--target", path, "--prompts", "pair", "--out", folder / "record.json")
    message = refused(convert, path, out, "--target", target, "--overwrite")

    assert before == {p.name: p.read_bytes() for p in folder.iterdir()}
    assert path.name in headline(message), message
    assert "; found " in headline(message), message
    return message


def refused_source(source: Path, work: Path) -> str:
    """The message of dflash-convert for a checkpoint that is hostile; inspect and quantize must refuse it too.

    As in `refused_everywhere` an old output must stay as it is. `work` is an empty folder for outputs.
    """
    work.mkdir()
    out = work / "out.gguf"
    out.write_bytes(b"old")
    target = tiny.write_target(work.parent / f"{work.name}-target")
    refused(inspect, source)
    refused(quantize, source, out, "--scheme", "q8_0", "--target", target, "--overwrite")
    message = refused(convert, source, out, "--target", target, "--overwrite")

    assert {"out.gguf": b"old"} == {p.name: p.read_bytes() for p in work.iterdir()}
    assert "; found " in headline(message), message
    return message
