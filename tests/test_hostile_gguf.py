"""What must be refused of a GGUF: hostile-inputs 1 to 37, each by its own byte."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.cursor import MAX_STRINGS
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.ggml import BY_NAME, F32
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufOutput
from dflash_gguf.quantize.cli import main as quantize
from hostile import (
    ARCH,
    array,
    edited,
    gguf,
    pair,
    refused,
    refused_everywhere,
    refused_source,
    tensor,
    text,
)
from hypothesis import given, settings
from hypothesis import strategies as st


def zipped() -> bytes:
    """A small zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.py", "print()")
    return buffer.getvalue()


def u64(value: int) -> bytes:
    """Eight bytes."""
    return struct.pack("<Q", value)


def alignment(kind: int, value: bytes) -> list[bytes]:
    """Metadata with an alignment."""
    return [ARCH, pair("general.alignment", kind, value)]


BAD: list[tuple[str, str, bytes]] = [
    ("1 empty", "first 24 bytes", b""),
    ("2 short", "first 24 bytes", gguf()[:23]),
    ("3 magic", "not a GGUF", gguf(magic=b"GGML")),
    ("4 version 0", "version", gguf(version=0)),
    ("4 version 1", "version", gguf(version=1)),
    ("4 version 99", "version", gguf(version=99)),
    ("5 big-endian", "big-endian", gguf(version=3 << 24)),
    ("6 n_tensors huge", "counts do not fit", gguf(n_tensors=2**62)),
    ("6 n_kv huge", "counts do not fit", gguf(n_kv=2**62)),
    ("6 n_tensors negative", "counts do not fit", gguf(n_tensors=-1)),
    ("6 n_kv negative", "counts do not fit", gguf(n_kv=-1)),
    (
        "7 one tensor less",
        "after its last tensor",
        gguf(tensors=[tensor("a"), tensor("b", offset=32)], data=bytes(64), n_tensors=1),
    ),
    ("7 one tensor more", "", gguf(n_tensors=2)),
    ("7 one pair more", "", gguf(n_kv=2)),
    ("7 one pair less", "", gguf(kv=[ARCH, pair("a", f.U32, bytes(4))], n_kv=1)),
    ("8 no tensors", "no tensors", gguf(tensors=[], data=b"")),
    ("10 trailing bytes", "after its last tensor", gguf(tail=b"x" * 32)),
    ("10 polyglot", "after its last tensor", gguf(tail=zipped())),
    ("11 key huge", "too long", gguf(kv=[u64(2**63) + bytes(40)])),
    ("11 key empty", "not printable", gguf(kv=[pair("", f.U8, b"\1")])),
    ("11 key too long", "too long", gguf(kv=[pair("k" * 65536, f.U8, b"\1")])),
    ("11 key not ASCII", "not printable", gguf(kv=[pair("schlüssel", f.U8, b"\1")])),
    ("11 key with control", "not printable", gguf(kv=[pair("a\nb", f.U8, b"\1")])),
    ("11 key twice", "twice", gguf(kv=[ARCH, ARCH])),
    ("12 string huge", "too long", gguf(kv=[pair("a", f.STRING, u64(2**63))])),
    ("12 string past the end", "cut short", gguf(kv=[pair("a", f.STRING, u64(5000))])),
    ("13 string not UTF-8", "not UTF-8", gguf(kv=[pair("a", f.STRING, text(b"\xff\xfe"))])),
    ("13 string with NUL", "NUL", gguf(kv=[pair("a", f.STRING, text("a\0b"))])),
    (
        "13 array not UTF-8",
        "not UTF-8",
        gguf(kv=[pair("a", f.ARRAY, array(f.STRING, 2, text("x") + text(b"\xff")))]),
    ),
    (
        "13 array with NUL",
        "NUL",
        gguf(kv=[pair("a", f.ARRAY, array(f.STRING, 2, text("x") + text("\0")))]),
    ),
    ("14 array huge", "cut short", gguf(kv=[pair("a", f.ARRAY, array(f.U8, 2**63))])),
    ("14 wide array huge", "cut short", gguf(kv=[pair("a", f.ARRAY, array(f.U64, 2**61 + 1))])),
    ("14 string array huge", "cut short", gguf(kv=[pair("a", f.ARRAY, array(f.STRING, 2**63))])),
    ("14 bool array huge", "cut short", gguf(kv=[pair("a", f.ARRAY, array(f.BOOL, 2**63))])),
    (
        "14 string array cut",
        "cut short",
        gguf(kv=[pair("a", f.ARRAY, array(f.STRING, 9, text("x") * 3 + u64(900)))], data=bytes(96)),
    ),
    ("14 item type unknown", "item type", gguf(kv=[pair("a", f.ARRAY, array(13, 1, b"x"))])),
    ("14 nested", "array of arrays", gguf(kv=[pair("a", f.ARRAY, array(f.ARRAY, 1) * 10_000)])),
    ("15 value type 13", "value type", gguf(kv=[pair("a", 13, bytes(8))])),
    ("15 value type huge", "value type", gguf(kv=[pair("a", 2**32 - 1, bytes(8))])),
    ("16 bool 2", "bool", gguf(kv=[pair("a", f.BOOL, b"\2")])),
    ("16 bool 255 in array", "bool", gguf(kv=[pair("a", f.ARRAY, array(f.BOOL, 2, b"\1\xff"))])),
    ("17 alignment 0", "alignment", gguf(kv=alignment(f.U32, struct.pack("<I", 0)))),
    ("17 alignment 3", "alignment", gguf(kv=alignment(f.U32, struct.pack("<I", 3)))),
    ("17 alignment 2^31", "alignment", gguf(kv=alignment(f.U32, struct.pack("<I", 2**31)))),
    ("17 alignment -1", "alignment", gguf(kv=alignment(f.I32, struct.pack("<i", -1)))),
    ("17 alignment string", "alignment", gguf(kv=alignment(f.STRING, text("32")))),
    ("17 alignment u64", "alignment", gguf(kv=alignment(f.U64, u64(32)))),
    ("18 dim 0", "shape", gguf(tensors=[tensor(dims=(0,))])),
    ("18 dim negative", "shape", gguf(tensors=[tensor(dims=(2**64 - 1,))])),
    ("18 product wraps to 0", "shape", gguf(tensors=[tensor(dims=(2**32, 2**32))])),
    ("18 product wraps to 2", "shape", gguf(tensors=[tensor(dims=(2**63, 2))])),
    ("18 product wraps to small", "shape", gguf(tensors=[tensor(dims=(2**42 + 1, 2**22))])),
    ("18 bytes overflow", "cut short", gguf(tensors=[tensor(dims=(2**62,))])),
    ("18 padding wraps", "cut short", gguf(tensors=[tensor(dims=(2**63 - 1,), kind=24)])),
    ("19 rank 0", "rank", gguf(tensors=[tensor(dims=())])),
    ("19 rank 5", "rank", gguf(tensors=[tensor(dims=(1, 1, 1, 1, 1))])),
    ("19 rank 2^31", "rank", gguf(tensors=[tensor(rank=2**31)])),
    ("19 rank 2^32-1", "rank", gguf(tensors=[tensor(rank=2**32 - 1)])),
    ("20 type 999", "type", gguf(tensors=[tensor(kind=999)])),
    ("20 type -1", "type", gguf(tensors=[tensor(kind=2**32 - 1)])),
    ("20 removed type", "type", gguf(tensors=[tensor(kind=4)])),
    ("21 half a block", "block", gguf(tensors=[tensor(dims=(33,), kind=8)], data=bytes(64))),
    ("22 misaligned", "misaligned", gguf(tensors=[tensor(offset=7)], data=bytes(64))),
    ("22 past the end", "behind a hole", gguf(tensors=[tensor(offset=2**20)])),
    ("22 wrapping", "behind a hole", gguf(tensors=[tensor(offset=2**64 - 32)])),
    ("22 overlapping", "overlapping", gguf(tensors=[tensor("a"), tensor("b")])),
    (
        "22 hole",
        "behind a hole",
        gguf(tensors=[tensor("a"), tensor("b", offset=64)], data=bytes(96)),
    ),
    ("23 name twice", "twice", gguf(tensors=[tensor("a"), tensor("a", offset=32)], data=bytes(64))),
    ("23 name empty", "name", gguf(tensors=[tensor("")])),
    ("23 name too long", "too long", gguf(tensors=[tensor("n" * 64)])),
    ("23 name climbs", "name", gguf(tensors=[tensor("../a")])),
    ("23 name with control", "name", gguf(tensors=[tensor("a\x1b[31m")])),
    ("24 no architecture", "names no architecture", gguf(kv=[])),
    (
        "24 empty architecture",
        "names no architecture",
        gguf(kv=[pair("general.architecture", f.STRING, text(""))]),
    ),
    (
        "24 architecture a number",
        "wrong type",
        gguf(kv=[pair("general.architecture", f.U32, bytes(4))]),
    ),
    ("35 part of a split", "split", gguf(kv=[ARCH, pair("split.count", f.U16, b"\3\0")])),
    ("35 split count 0", "split", gguf(kv=[ARCH, pair("split.count", f.U16, bytes(2))])),
    ("35 split count huge", "split", gguf(kv=[ARCH, pair("split.count", f.U64, u64(2**63))])),
    (
        "35 split count of the wrong type",
        "wrong type",
        gguf(kv=[ARCH, pair("split.count", f.STRING, text("3"))]),
    ),
]


@pytest.mark.parametrize(("what", "raw"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_malformed_gguf_is_refused_by_every_command(tmp_path: Path, what: str, raw: bytes) -> None:
    """Exit 3, one message that names the file, nothing left behind: as source, as target and for inspect."""
    folder = tmp_path / "work"
    folder.mkdir()
    path = folder / "bad.gguf"
    path.write_bytes(raw)
    message = refused_everywhere(path, folder)

    assert what in message
    assert "bad.gguf" in message


def test_the_sound_twin_is_read(tmp_path: Path) -> None:
    """The file that all of the above are one step from is accepted, padded or not, so the refusals are about that step."""
    path = tmp_path / "good.gguf"
    path.write_bytes(gguf())
    assert (4,) == read_gguf(path).tensors["a"].shape
    path.write_bytes(gguf(data=bytes(16)))
    assert 16 == read_gguf(path).tensors["a"].nbytes
    path.write_bytes(gguf(version=2))
    assert 2 == read_gguf(path).version
    path.write_bytes(gguf(kv=alignment(f.U32, struct.pack("<I", 32))))
    assert 32 == read_gguf(path).alignment


def test_cut_at_every_byte_is_refused(tmp_path: Path) -> None:
    """Every proper prefix of a small file with all kinds of values is refused, but the one that lacks only padding."""
    kv = [
        ARCH, pair("a.flag", f.BOOL, b"\1"), pair("a.list", f.ARRAY, array(f.STRING, 3, text("x") + text("") + text("yz"))),
        pair("a.bits", f.ARRAY, array(f.BOOL, 3, b"\0\1\0")), pair("a.ints", f.ARRAY, array(f.I32, 2, bytes(8))), pair("a.f64", f.F64, bytes(8)),
    ]  # fmt: skip
    raw = gguf(kv=kv, tensors=[tensor("a", (3,)), tensor("b", (32, 2), 8, 32)], data=bytes(32 + 68))
    path = tmp_path / "cut.gguf"
    path.write_bytes(raw)
    read_gguf(path)
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(InputError):
            read_gguf(path)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_read_never_worse(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A sound file with a few bytes replaced raises InputError or is read; nothing else, and in bounded time."""
    raw = bytearray(
        gguf(
            kv=[ARCH, pair("a.list", f.ARRAY, array(f.STRING, 2, text("x") + text("y")))],
            tensors=[tensor("a", (4, 2))],
            data=bytes(32),
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(
            st.sampled_from([0, 1, 2, 8, 9, 127, 128, 255])
        )
    path = tmp_path_factory.mktemp("fuzz") / "x.gguf"
    path.write_bytes(raw)
    with suppress(InputError):
        read_gguf(path)


def test_too_many_strings_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """The limit is on the count, whatever the file has room for."""
    path = tmp_path / "many.gguf"
    count = MAX_STRINGS + 1
    path.write_bytes(gguf(kv=[ARCH, pair("a", f.ARRAY, array(f.STRING, count, bytes(8 * count)))]))
    refused(main, path, tmp_path / "o.gguf")


def test_sparse_file_of_a_terabyte_is_refused_at_once(tmp_path: Path) -> None:
    """Logical size costs nothing: the header is read, the rest is not."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(gguf())
    os.truncate(path, 1 << 40)
    assert "after its last tensor" in refused(main, path, tmp_path / "o.gguf")
    path.write_bytes(gguf(kv=[ARCH, pair("a", f.STRING, u64(1 << 39))]))
    os.truncate(path, 1 << 40)
    assert "too long" in refused(main, path, tmp_path / "o.gguf")
    path.write_bytes(gguf(kv=[ARCH, pair("a", f.ARRAY, array(f.U8, 1 << 39))]))
    os.truncate(path, 1 << 40)
    assert "too long" in refused(main, path, tmp_path / "o.gguf")


@pytest.mark.parametrize("kind", ["fifo", "folder", "missing", "device", "loop"])
def test_what_is_no_file_is_refused_without_blocking(tmp_path: Path, kind: str) -> None:
    """A pipe nobody writes to, an empty folder, nothing, /dev/zero and a link to itself."""
    path = tmp_path / "x.gguf"
    if kind == "fifo":
        os.mkfifo(path)
    if kind == "folder":
        path.mkdir()
    if kind == "device":
        path = Path("/dev/zero")
    if kind == "loop":
        path.symlink_to(path)
    refused(main, path, tmp_path / "o.gguf", "--target", path)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Canonical files of the tiny v1 and v2 drafts."""
    folder = tmp_path_factory.mktemp("good")
    target = tiny.write_target_gguf(folder / "target.gguf")
    for v2 in (False, True):
        out = folder / f"good{v2}.gguf"
        result = CliRunner().invoke(
            main, [str(tiny.write_draft(folder / f"d{v2}", v2)), str(out), "--target", str(target)]
        )
        assert 0 == result.exit_code, result.output
    return {v2: folder / f"good{v2}.gguf" for v2 in (False, True)}


def f64(value: float) -> f.Field:
    """A number that a float32 field could hold, NaN included."""
    return f.Field(f.F32, value)


NAN, INF = float("nan"), float("inf")
P = "dflash__"

KEYS: list[tuple[str, bool, str, dict[str, Any]]] = [
    ("24 other architecture", False, "not a DFlash draft", {"general__architecture": f.text("llama")}),
    ("25 block_count 0", False, "", {P + "block_count": f.u32(0)}),
    ("25 block_count huge", False, "too many draft layers", {P + "block_count": f.u32(2**31 - 1)}),
    ("25 block_count other", False, "", {P + "block_count": f.u32(1)}),
    ("25 block_count a string", False, "wrong type", {P + "block_count": f.text("2")}),
    ("26 head_count 0", False, "not a size", {P + "attention__head_count": f.u32(0)}),
    ("26 heads not divisible", False, "do not divide", {P + "attention__head_count": f.u32(3)}),
    ("26 head size contradicts", False, "shape contradicts", {P + "attention__key_length": f.u32(32)}),
    ("26 eps NaN", False, "finite", {P + "attention__layer_norm_rms_epsilon": f64(NAN)}),
    ("26 eps negative", False, "epsilon", {P + "attention__layer_norm_rms_epsilon": f64(-1e-6)}),
    ("26 rope base 0", False, "RoPE", {P + "rope__freq_base": f64(0.0)}),
    ("26 rope base NaN", False, "finite", {P + "rope__freq_base": f64(NAN)}),
    ("26 rope base Inf", False, "finite", {P + "rope__freq_base": f64(INF)}),
    ("27 no layers", False, "--target-layer-ids", {"drop": (P.replace("__", ".") + "target_layers", "dflash.target_layer_ids")}),
    ("27 layers empty", False, "", {P + "target_layers": f.i32s([]), P + "target_layer_ids": f.i32s([])}),
    ("27 layer negative", False, "out of range", {P + "target_layers": f.i32s([0, 3]), P + "target_layer_ids": f.i32s([-1, 2])}),
    ("27 layer twice", False, "twice", {P + "target_layers": f.i32s([3, 3]), P + "target_layer_ids": f.i32s([2, 2])}),
    ("27 layers unsorted", False, "ascending", {P + "target_layers": f.i32s([3, 1]), P + "target_layer_ids": f.i32s([2, 0])}),
    ("27 layer past the target", False, "out of range", {P + "target_layers": f.i32s([1, 5]), P + "target_layer_ids": f.i32s([0, 4])}),
    ("27 readings disagree", False, "contradict", {P + "target_layers": f.i32s([0, 2])}),
    ("27 layers as text", False, "wrong type", {P + "target_layers": f.texts(["1", "3"])}),
    ("28 fc width", False, "fc does not fit", {P + "target_layers": f.i32s([1, 2, 3]), P + "target_layer_ids": f.i32s([0, 1, 2])}),
    ("29 block 0", False, "block size", {P + "block_size": f.u32(0)}),
    ("29 block 1", False, "block size", {P + "block_size": f.u32(1)}),
    ("29 block huge", False, "block size", {P + "block_size": f.u32(2**31)}),
    ("29 mask outside", False, "mask token", {P + "mask_token_id": f.u32(300), "tokenizer__ggml__mask_token_id": f.u32(300)}),
    ("29 mask disagrees", False, "contradict", {"tokenizer__ggml__mask_token_id": f.u32(3)}),
    ("30 window without pattern", False, "sliding_layers", {"drop": ("dflash.attention.sliding_window_pattern",)}),
    ("30 pattern too short", False, "wrong length", {P + "attention__sliding_window_pattern": f.booleans([True])}),
    ("30 pattern of numbers", False, "wrong type", {P + "attention__sliding_window_pattern": f.i32s([1, 2])}),
    ("30 window 0", False, "contradict", {P + "attention__sliding_window": f.u32(0)}),
    ("30 causal pattern too long", False, "wrong length", {P + "attention__causal_pattern": f.booleans([True] * 3)}),
    ("31 group does not divide", True, "divide", {P + "conv_group_size": f.u32(48)}),
    ("31 group 0", True, "divide", {P + "conv_group_size": f.u32(0)}),
    ("31 too many candidates", True, "candidates", {P + "selector_top_k": f.u32(8)}),
    ("31 codebook rows", True, "shape contradicts", {P + "vocab_size": f.u32(310)}),
    ("31 half the keys", True, "selector.top_k", {"drop": ("dflash.selector_top_k",)}),
    ("32 renamed tensor", False, "do not belong", {"rename": {"output_norm.weight": "norm.weight"}}),
    ("32 v1 names in v2", True, "do not belong", {P + "variant": f.text("dflash1"), "drop": tuple("dflash." + k for k in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"))}),
    ("36 token types too few", False, "differ in length", {"tokenizer__ggml__token_type": f.i32s([1] * 299)}),
    ("36 scores too many", False, "differ in length", {"tokenizer__ggml__scores": f.i32s([0] * 301)}),
    ("36 byte token", False, "byte token", {"tokenizer__ggml__tokens": f.texts(["<0x-1>"] * 300), "tokenizer__ggml__token_type": f.i32s([6] * 300)}),
    ("36 end token outside", False, "outside the vocabulary", {"tokenizer__ggml__eos_token_id": f.u32(300)}),
    ("36 tokens as numbers", False, "wrong type", {"tokenizer__ggml__tokens": f.i32s([1] * 300)}),
]  # fmt: skip


@pytest.mark.parametrize(("v2", "what", "fault"), [k[1:] for k in KEYS], ids=[k[0] for k in KEYS])
def test_key_that_cannot_be_meant_is_refused(
    tmp_path: Path, good: dict[bool, Path], v2: bool, what: str, fault: Any
) -> None:
    """One wrong value in a sound file: exit 3, a message that names it, no output."""
    bad = edited(good[v2], tmp_path / "bad.gguf", **fault)

    assert what in refused_source(bad, tmp_path / "work")


def rebuilt(source: Path, output: Path, change: Callable[[list[Any]], list[Any]]) -> Path:
    """A copy with another table of name, type and shape; the data is zero."""
    file = read_gguf(source)
    table = change([(t.name, t.type, t.shape) for t in file.tensors.values()])
    with GgufOutput(output, file.fields, table) as writer:
        for name, info in writer.layout.infos.items():
            writer.write(name, bytes(info.nbytes))
    return output


TENSORS: list[tuple[str, bool, str, Callable[[list[Any]], list[Any]]]] = [
    ("31 only some of the convolutions", True, "blk.1.ffn_conv_base", lambda t: [r for r in t if r[0] != "blk.1.ffn_conv_base"]),
    ("31 selector without its codebook", True, "selector_successor", lambda t: [r for r in t if r[0] != "selector_successor.weight"]),
    ("32 tensor missing", False, "blk.1.ffn_up.weight", lambda t: [r for r in t if r[0] != "blk.1.ffn_up.weight"]),
    ("32 norm missing", False, "output_norm.weight", lambda t: [r for r in t if r[0] != "output_norm.weight"]),
    ("32 extra tensor", False, "blk.0.attn_extra.weight", lambda t: [*t, ("blk.0.attn_extra.weight", F32, (4, 4))]),
    ("32 extra layer", False, "blk.2.attn_norm.weight", lambda t: [*t, ("blk.2.attn_norm.weight", F32, (64,))]),
    ("32 selector in a first version", False, "selector_hidden.weight", lambda t: [*t, ("selector_hidden.weight", F32, (64, 8))]),
    ("32 wrong shape", False, "shape contradicts", lambda t: [(n, k, (64, 32) if n == "blk.0.attn_q.weight" else s) for n, k, s in t]),
    ("32 one dimension too many", False, "shape contradicts", lambda t: [(n, k, (64, 64, 1) if n == "blk.0.attn_q.weight" else s) for n, k, s in t]),
    ("32 vector as a matrix", False, "shape contradicts", lambda t: [(n, k, (64, 1) if n == "output_norm.weight" else s) for n, k, s in t]),
    ("32 number type", False, "type", lambda t: [(n, BY_NAME["I32"].id if n == "fc.weight" else k, s) for n, k, s in t]),
    ("32 norm quantised", False, "type", lambda t: [(n, BY_NAME["Q8_0"].id if n == "output_norm.weight" else k, s) for n, k, s in t]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("v2", "what", "change"), [t[1:] for t in TENSORS], ids=[t[0] for t in TENSORS]
)
def test_table_that_is_not_the_drafts_is_refused(
    tmp_path: Path, good: dict[bool, Path], v2: bool, what: str, change: Any
) -> None:
    """A tensor too few, too many, of another shape or type: exit 3 and its name."""
    bad = rebuilt(good[v2], tmp_path / "bad.gguf", change)
    message = "".join(refused(command, bad, *more) for command, more in (
        (main, (tmp_path / "o.gguf",)), (quantize, (tmp_path / "o.gguf", "--scheme", "q8_0", "--allow-requantize"))
    ))  # fmt: skip

    assert what in message
    assert ["bad.gguf"] == [p.name for p in tmp_path.iterdir()]


def retyped(source: Path, output: Path, name: str, kind: str, data: bytes) -> Path:
    """A copy with one tensor of another type and other bytes."""
    file, raw = read_gguf(source), source.read_bytes()
    tensors = [
        (t.name, BY_NAME[kind].id if t.name == name else t.type, t.shape)
        for t in file.tensors.values()
    ]
    with GgufOutput(output, file.fields, tensors) as writer:
        for t in file.tensors.values():
            writer.write(t.name, data if t.name == name else raw[t.offset : t.offset + t.nbytes])
    return output


def test_not_finite_value_is_refused_in_every_type(tmp_path: Path, good: dict[bool, Path]) -> None:
    """NaN and infinity in F32, F16 and BF16, and in the scale of a quantised block (hostile-inputs 33)."""
    n = 64 * 128
    bad_q8 = np.zeros((n // 32, 34), np.uint8)
    bad_q8[7, :2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
    f32 = np.zeros(n, np.float32)
    f32[n - 1] = np.inf
    f16 = np.zeros(n, np.float16)
    f16[5] = np.nan
    bf16 = np.zeros(n, np.uint16)
    bf16[0] = 0xFF80
    for kind, data in (("Q8_0", bad_q8), ("F32", f32), ("F16", f16), ("BF16", bf16)):
        bad = retyped(good[False], tmp_path / f"{kind}.gguf", "fc.weight", kind, data.tobytes())
        assert "not finite" in refused(main, bad, tmp_path / "o.gguf")


def test_quantised_source_keeps_its_blocks_and_is_never_requantised(
    tmp_path: Path, good: dict[bool, Path]
) -> None:
    """A Q8_0 tensor is copied as it is; another type for it is a usage error (hostile-inputs 34)."""
    blocks = np.zeros((64 * 4, 34), np.uint8)
    blocks[:, 2:] = 7
    source = retyped(good[False], tmp_path / "q8.gguf", "fc.weight", "Q8_0", blocks.tobytes())
    out = tmp_path / "o.gguf"
    assert 0 == CliRunner().invoke(main, [str(source), str(out)]).exit_code
    t = read_gguf(out).tensors["fc.weight"]
    assert blocks.tobytes() == out.read_bytes()[t.offset : t.offset + t.nbytes]
    refused(main, source, tmp_path / "p.gguf", "--outtype", "bf16", code=2)


def test_integers_are_no_weights(tmp_path: Path, good: dict[bool, Path]) -> None:
    """A matrix of I32 is refused by name (hostile-inputs 32)."""
    bad = retyped(good[False], tmp_path / "i32.gguf", "fc.weight", "I32", bytes(4 * 64 * 128))
    assert "fc.weight" in refused(main, bad, tmp_path / "o.gguf")


def test_chat_template_is_copied_with_a_warning_and_never_rendered(
    tmp_path: Path, good: dict[bool, Path]
) -> None:
    """A template that reaches for Python's insides is data: it comes out as it went in, and a note says so."""
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}{% import 'os' as os %}"
    source = edited(good[False], tmp_path / "in.gguf", tokenizer__chat_template=f.text(evil))
    result = CliRunner().invoke(main, [str(source), str(tmp_path / "o.gguf")])

    assert 0 == result.exit_code
    assert "was not rendered" in result.stderr
    assert evil == read_gguf(tmp_path / "o.gguf").kv["tokenizer.chat_template"]


def test_errors_show_hostile_text_as_data(tmp_path: Path) -> None:
    """Control characters from a file do not reach the terminal."""
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf(tensors=[tensor("\x1b]0;owned\x07")]))
    assert "\x1b" not in refused(main, path, tmp_path / "o.gguf")


def test_f32_constant_is_that_of_the_table() -> None:
    """The helper's default tensor type is F32."""
    assert 0 == F32
