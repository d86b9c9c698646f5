"""Structure-aware fuzzing: files whose parts are right in form and wrong in meaning. Only InputError may come out.

`fuzz/readers.py` goes further with coverage as its guide; here the builders know the format, so that every example gets
past the first length, and a few hundred of them run with the suite.
"""

from __future__ import annotations

import copy
import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.checkpoint import open_checkpoint
from dflash_gguf.convert.cli import main as convert
from dflash_gguf.convert.defects import find_defects, read_on
from dflash_gguf.convert.dialects import spec_from_config
from dflash_gguf.convert.draft import read_draft
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.safetensors import read_safetensors
from dflash_gguf.convert.target import read_target
from dflash_gguf.quantize.imatrix import read_imatrix
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip

EDGES = st.sampled_from([0, 1, 2, 3, 31, 32, 33, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1])  # fmt: skip
"""Numbers at which sizes wrap."""

SMALL = st.integers(0, 40)
NUMBER = st.one_of(SMALL, EDGES)
NAMES = st.one_of(
    st.sampled_from(["general.architecture", "general.alignment", "split.count", "dflash.block_count", "a"]), st.text(max_size=8)
)  # fmt: skip


def scalar(kind: int, number: int) -> bytes:
    """A number of a GGUF type, cut to its width."""
    width = {f.U8: 1, f.I8: 1, f.BOOL: 1, f.U16: 2, f.I16: 2, f.U32: 4, f.I32: 4, f.F32: 4}.get(kind, 8)  # fmt: skip
    return (number % 2 ** (8 * width)).to_bytes(width, "little")


@st.composite
def pairs(draw: st.DrawFn) -> bytes:
    """A metadata pair of any type, its lengths mostly right."""
    kind = draw(st.integers(0, 13))
    if kind == f.STRING:
        value = hostile.text(draw(st.text(max_size=8)))
    elif kind == f.ARRAY:
        item, count = draw(st.integers(0, 13)), draw(st.integers(0, 4))
        body = b"".join(
            hostile.text("x") if item == f.STRING else scalar(item, draw(NUMBER))
            for _ in range(count)
        )
        value = hostile.array(item, draw(st.sampled_from([count, count, count, 2**40])), body)
    else:
        value = scalar(kind, draw(NUMBER))
    return hostile.pair(draw(NAMES), kind, value)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """A row of the tensor table."""
    dims = tuple(draw(st.lists(NUMBER, max_size=5)))
    offset = draw(st.one_of(st.sampled_from([0, 32, 64]), NUMBER))
    return hostile.tensor(draw(st.text(max_size=6)), dims, draw(st.integers(0, 45)), offset)


@FEW
@given(
    kv=st.lists(pairs(), max_size=5), tensors=st.lists(tables(), max_size=4), version=st.sampled_from([2, 3, 3, 3, 4]),
    n_kv=st.none() | NUMBER, n_tensors=st.none() | NUMBER, data=st.binary(max_size=200), arch=st.booleans(),
)  # fmt: skip
def test_any_gguf_is_read_or_refused(tmp_path: Path, *, arch: bool, **parts: Any) -> None:
    """Header, metadata and table of any shape."""
    path = tmp_path / "x.gguf"
    parts["kv"] = [hostile.ARCH, *parts["kv"]] if arch else parts["kv"]
    path.write_bytes(hostile.gguf(**parts))
    with suppress(InputError):
        read_draft(path)
    with suppress(InputError):
        read_target(path)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The canonical file of the tiny v2 draft."""
    folder = tmp_path_factory.mktemp("good")
    target = tiny.write_target_gguf(folder / "target.gguf")
    draft = tiny.write_draft(folder / "d", True)
    assert 0 == CliRunner().invoke(convert, [str(draft), str(folder / "good.gguf"), "--target", str(target)]).exit_code  # fmt: skip
    return folder / "good.gguf"


VALUES = st.one_of(
    NUMBER.map(lambda n: f.u32(n % 2**32)), NUMBER.map(lambda n: f.Field(f.U64, n)),
    st.floats(width=32).map(lambda v: f.Field(f.F32, v)), st.booleans().map(f.boolean), st.text(max_size=6).map(lambda t: f.text(t.replace("\0", ""))),
    st.lists(st.integers(-2, 400), max_size=4).map(f.i32s), st.lists(st.booleans(), max_size=4).map(f.booleans),
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3), max_size=3).map(f.texts),
).filter(lambda v: v.type != f.STRING or v.value.isprintable())  # fmt: skip


@FEW
@given(data=st.data())
def test_any_metadata_of_a_draft_is_meant_or_refused(
    tmp_path: Path, good: Path, data: st.DataObject
) -> None:
    """Keys dropped, retyped and revalued in a sound file: a draft, or InputError; and inspect finds its words, too."""
    fields = read_gguf(good).fields
    own = sorted(k for k in fields if not k.startswith("tokenizer.ggml.tokens"))
    drop = data.draw(st.sets(st.sampled_from(own), max_size=2)) - {"general.architecture"}
    change = data.draw(st.dictionaries(st.sampled_from(own), VALUES, max_size=3))
    path = tmp_path / "x.gguf"
    path.unlink(missing_ok=True)
    hostile.edited(good, path, tuple(drop), **{k.replace(".", "__"): v for k, v in change.items()})
    with suppress(InputError):
        read_draft(path)
    with suppress(InputError):
        find_defects(path, read_on(path), None, None, "")


ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I64", "F8_E4M3", "F4", "", 7]),
        "shape": st.lists(st.one_of(NUMBER, st.sampled_from([-1, 2.0, "2", True])), max_size=3),
        "data_offsets": st.lists(st.one_of(NUMBER, st.sampled_from([8, 16, -8, 8.0, False])), min_size=1, max_size=3),
    },
    optional={"x": st.integers()},
)  # fmt: skip


@FEW
@given(
    header=st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), ENTRY | st.integers() | st.none(), max_size=4),
    data=st.binary(max_size=64), shift=st.sampled_from([0, 0, 0, 1, -1, 2**40]),
)  # fmt: skip
def test_any_safetensors_is_read_or_refused(
    tmp_path: Path, header: dict[str, Any], data: bytes, shift: int
) -> None:
    """Entries of any dtype, shape and span."""
    raw = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", max(len(raw) + shift, 0)) + raw + data)
    with suppress(InputError):
        read_safetensors(path)


JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "sliding_attention", "full_attention", "yarn", "linear", "vanilla", "gelu"]) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2), max_leaves=4,
)  # fmt: skip
MORE = (
    "rope_scaling", "is_causal", "draft_vocab_size", "aux_hidden_state_layer_ids", "markov_head_type", "partial_rotary_factor",
    "transformer_layer_config", "use_confidence_head", "rope_is_neox_style", "target_hidden_size", "architectures", "dflash_config",
)  # fmt: skip


@FEW
@given(data=st.data(), v2=st.booleans())
def test_any_config_is_meant_or_refused(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, data: st.DataObject, *, v2: bool
) -> None:
    """A sound config with a few values of any kind, at the top and inside dflash_config and rope_parameters."""
    folder = tmp_path / f"d{v2}"
    if not folder.exists():
        tiny.write_draft(folder, v2)
    config = copy.deepcopy(tiny.draft_config(v2))
    for _ in range(data.draw(st.integers(1, 3))):
        nested = [
            s for s in ("dflash_config", "rope_parameters") if isinstance(config.get(s), dict)
        ]
        section = (
            config[data.draw(st.sampled_from(nested))]
            if nested and data.draw(st.booleans())
            else config
        )
        section[data.draw(st.sampled_from(sorted({*section, *MORE})))] = data.draw(JSON)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with suppress(InputError):
        checkpoint = open_checkpoint(folder, path)
        spec_from_config(checkpoint.config, checkpoint.shapes)


FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=4)


@FEW
@given(
    entries=st.dictionaries(
        st.sampled_from(["a.in_sum2", "a.counts", "b.in_sum2", "b.counts", "c", ".counts"]), st.lists(FLOATS, min_size=1, max_size=2), min_size=1
    ),
    kind=st.sampled_from(["imatrix", "imatrix", "model"]), extra=st.dictionaries(st.sampled_from(["imatrix.datasets", "imatrix.chunk_count"]), VALUES),
)  # fmt: skip
def test_any_gguf_imatrix_is_read_or_refused(
    tmp_path: Path, entries: dict[str, Any], kind: str, extra: dict[str, f.Field]
) -> None:
    """Tensors of any values, halves missing, keys of any type."""
    path = tmp_path / "x.gguf"
    path.unlink(missing_ok=True)
    arrays = {n: np.asarray([row[: min(map(len, rows))] for row in rows], "<f4") for n, rows in entries.items()}  # fmt: skip
    table = [(n, 0, a.shape[::-1]) for n, a in arrays.items()]
    with hostile.GgufOutput(path, {"general.type": f.text(kind)} | extra, table) as writer:
        for name, array in arrays.items():
            writer.write(name, array.tobytes())
    with suppress(InputError):
        read_imatrix(path)


@FEW
@given(
    entries=st.lists(st.tuples(st.binary(max_size=6), NUMBER, FLOATS, st.sampled_from([0, 0, 1, -1, 2**30])), max_size=3),
    shift=st.sampled_from([0, 0, 1, -1]), tail=st.binary(max_size=12),
)  # fmt: skip
def test_any_legacy_imatrix_is_read_or_refused(
    tmp_path: Path, entries: list[Any], shift: int, tail: bytes
) -> None:
    """Names, calls and counts of any value, lengths mostly right."""
    raw = struct.pack("<i", len(entries) + shift)
    for name, calls, values, more in entries:
        raw += struct.pack("<i", len(name)) + name + scalar(f.I32, calls)
        raw += struct.pack(f"<i{len(values)}f", len(values) + more, *values)
    path = tmp_path / "x.dat"
    path.write_bytes(raw + tail)
    with suppress(InputError):
        read_imatrix(path)
