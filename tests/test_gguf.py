"""The GGUF reader and writer on sound files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.ggml import BF16, F32, TYPES
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufLayout, GgufOutput
from hypothesis import given, settings
from hypothesis import strategies as st

ALL_KINDS = {
    "general.architecture": f.text("dflash"),
    "a.u8": f.Field(f.U8, 255), "a.i8": f.Field(f.I8, -128), "a.u16": f.Field(f.U16, 65535),
    "a.i16": f.Field(f.I16, -32768), "a.u32": f.u32(2**32 - 1), "a.i32": f.Field(f.I32, -(2**31)),
    "a.f32": f.f32(0.1), "a.bool": f.boolean(True), "a.text": f.text("größe"), "a.u64": f.Field(f.U64, 2**64 - 1),
    "a.i64": f.Field(f.I64, -(2**63)), "a.f64": f.Field(f.F64, 0.1), "a.ints": f.i32s([1, -2]),
    "a.flags": f.booleans([True, False]), "a.texts": f.texts(["", "Ġ", "x" * 300]), "a.none": f.texts([]),
}  # fmt: skip


def write(path: Path, fields: dict[str, f.Field] = ALL_KINDS) -> Path:
    """A file with one tensor whose size is not a multiple of the alignment, and one behind it."""
    with GgufOutput(path, fields, [("a", F32, (3, 1)), ("b", BF16, (5,))]) as writer:
        writer.write("a", np.arange(3, dtype=np.float32).tobytes())
        writer.write("b", bytes(range(10)))
    return path


def test_types_have_the_sizes_of_ggml() -> None:
    """Block and byte sizes equal the gguf package's for every type both know."""
    theirs = {int(t): size for t, size in gguf.GGML_QUANT_SIZES.items()}

    assert theirs == {t.id: (t.block, t.size) for t in TYPES.values()}


def test_every_kind_of_value_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """A written field is read back with its type and value."""
    file = read_gguf(write(tmp_path / "a.gguf"))

    for key, field in ALL_KINDS.items():
        got = file.fields[key]
        assert (field.type, field.item) == (got.type, got.item)
        np.testing.assert_array_equal(field.value, got.value)


def test_tensor_table_points_at_the_bytes(tmp_path: Path) -> None:
    """Offsets and sizes of the table select exactly the bytes that were written."""
    file = read_gguf(write(tmp_path / "a.gguf"))
    raw = file.path.read_bytes()
    spans = {t.name: raw[t.offset : t.offset + t.nbytes] for t in file.tensors.values()}

    assert {"a": np.arange(3, dtype=np.float32).tobytes(), "b": bytes(range(10))} == spans
    assert file.tensors["a"].shape == (3, 1)


def test_bytes_equal_those_of_the_gguf_package(tmp_path: Path) -> None:
    """The same metadata and tensors give the same file as ggml's own Python writer, byte for byte."""
    theirs = tmp_path / "theirs.gguf"
    w = gguf.GGUFWriter(theirs, "dflash")
    w.add_uint32("a.u32", 7)
    w.add_float32("a.f32", 0.5)
    w.add_array("a.texts", ["x", "yz"])
    w.add_bool("a.bool", True)
    w.add_tensor("a", np.arange(6, dtype=np.float32).reshape(2, 3))
    w.add_tensor("b", np.arange(3, dtype=np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    fields = {
        "general.architecture": f.text("dflash"), "a.u32": f.u32(7), "a.f32": f.f32(0.5),
        "a.texts": f.texts(["x", "yz"]), "a.bool": f.boolean(True),
    }  # fmt: skip
    ours = tmp_path / "ours.gguf"
    with GgufOutput(ours, fields, [("a", 0, (3, 2)), ("b", 1, (3,))]) as writer:
        writer.write("a", np.arange(6, dtype=np.float32).tobytes())
        writer.write("b", np.arange(3, dtype=np.float16).tobytes())

    assert theirs.read_bytes() == ours.read_bytes()


names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)
values = st.one_of(
    st.integers(0, 2**32 - 1).map(f.u32),
    st.booleans().map(f.boolean),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).map(f.text),
    st.lists(st.integers(-(2**31), 2**31 - 1)).map(f.i32s),
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))).map(
        f.texts
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(names, values, max_size=6), st.lists(st.integers(1, 70), min_size=1, max_size=4)
)
def test_layout_round_trips(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, f.Field], rows: list[int]
) -> None:
    """What a layout says is what the reader finds, for any fields and tensor sizes."""
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    tensors = [(f"t{i}", F32, (n,)) for i, n in enumerate(rows)]
    layout = GgufLayout(fields, tensors)
    with GgufOutput(path, fields, tensors) as writer:
        for name, _, (n,) in tensors:
            writer.write(name, bytes(4 * n))
    file = read_gguf(path)

    assert layout.infos == file.tensors
    assert list(fields) == list(file.kv)
    assert layout.size == file.size


def test_big_vocabulary_is_read_in_linear_time(tmp_path: Path) -> None:
    """248,320 tokens with as many merges: half a second of CPU, a few under coverage, minutes were it quadratic."""
    import time

    tokens = [f"tok{i}" for i in range(248_320)]
    fields = tiny.target_fields() | {
        "tokenizer.ggml.tokens": f.texts(tokens),
        "tokenizer.ggml.merges": f.texts(tokens),
    }
    path = write(tmp_path / "big.gguf", fields)
    start = time.process_time()
    file = read_gguf(path)

    assert time.process_time() - start < 10
    assert tokens == file.kv["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(
    ("question", "wrong"),
    [
        ("integer", f.text("1")), ("number", f.boolean(True)), ("flag", f.u32(1)), ("text", f.u32(1)),
        ("integers", f.texts(["1"])), ("flags", f.texts(["1"])), ("texts", f.i32s([1])), ("integers", f.u32(1)),
    ],
)  # fmt: skip
def test_typed_question_refuses_another_type_and_knows_absence(
    question: str, wrong: f.Field
) -> None:
    """A value of another type is an InputError that names file and key; an absent one is None."""
    ask = f.Questions({"k": wrong}, "x.gguf")
    with pytest.raises(InputError) as error:
        getattr(ask, question)("k")

    assert "x.gguf: k" == error.value.where
    assert getattr(ask, question)("absent") is None
