"""What must be refused of safetensors, indexes, configs and target folders: hostile-inputs 38 to 59."""

from __future__ import annotations

import gc
import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.safetensors import MAX_HEADER, read_safetensors
from dflash_gguf.convert.strict_json import MAX_CONFIG, parse_json, read_json
from hostile import gguf, refused, refused_source
from hypothesis import given, settings
from hypothesis import strategies as st


def entry(dtype: Any = "F32", shape: Any = (2,), span: Any = (0, 8)) -> dict[str, Any]:
    """One tensor of a header."""
    return {
        "dtype": dtype,
        "shape": list(shape) if isinstance(shape, tuple) else shape,
        "data_offsets": list(span) if isinstance(span, tuple) else span,
    }


def packed(header: Any, data: bytes = bytes(8), length: int | None = None) -> bytes:
    """A safetensors file with this header, JSON or raw."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", (len(raw) if length is None else length) % 2**64) + raw + data


ONE = {"a": entry()}

BAD: list[tuple[str, str, bytes]] = [
    ("38 empty", "too short", b""),
    ("38 seven bytes", "too short", bytes(7)),
    ("38 no header", "not JSON", packed(b"", length=0)),
    ("39 header past the end", "length", packed(ONE, length=10_000)),
    ("39 header 2^63", "length", packed(ONE, length=2**63)),
    ("39 header 2^64-1", "length", packed(ONE, length=2**64 - 1)),
    ("39 header of 101 MB", "length", struct.pack("<Q", 101 << 20) + bytes(200)),
    ("40 not an object", "not JSON", packed(b"[1]     ")),
    ("40 not JSON", "not JSON", packed(b"{'a': 1}")),
    ("40 cut JSON", "not JSON", packed(b'{"a": ')),
    ("40 not UTF-8", "not UTF-8", packed(b'{"\xff": 1}')),
    ("40 NUL padding", "not JSON", packed(json.dumps(ONE).encode() + b"\0\0\0")),
    ("40 nested", "", packed(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)),
    ("40 number not finite", "not finite", packed(b'{"a": NaN}')),
    ("41 key twice", "twice", packed(b'{"a":' + json.dumps(entry()).encode() + b',"a":' + json.dumps(entry()).encode() + b"}")),
    ("41 inner key twice", "twice", packed(b'{"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}')),
    ("42 overlap", "overlaps", packed({"a": entry(), "b": entry()})),
    ("42 part overlap", "overlaps", packed({"a": entry(), "b": entry(shape=(1,), span=(4, 8))})),
    ("42 hole", "hole", packed({"a": entry(span=(8, 16))}, bytes(16))),
    ("42 past the end", "past the file", packed({"a": entry(shape=(4,), span=(0, 16))})),
    ("42 negative", "not usable", packed({"a": entry(span=(-8, 0))})),
    ("42 end before begin", "not usable", packed({"a": entry(span=(8, 0))})),
    ("42 bool offsets", "not usable", packed({"a": entry(span=(False, True))})),
    ("42 three offsets", "not usable", packed({"a": entry(span=(0, 4, 8))})),
    ("42 float offsets", "not usable", packed({"a": entry(span=(0.0, 8.0))})),
    ("42 offsets wrap", "not usable", packed({"a": entry(span=(2**64 - 8, 2**64))})),
    ("43 shape negative", "not usable", packed({"a": entry(shape=(-2,))})),
    ("43 shape float", "not usable", packed({"a": entry(shape=(2.0,))})),
    ("43 shape string", "not usable", packed({"a": entry(shape="2")})),
    ("43 shape of strings", "not usable", packed({"a": entry(shape=("2",))})),
    ("43 shape wraps", "contradicts", packed({"a": entry(shape=(2**62, 8))})),
    ("43 rank 9", "not usable", packed({"a": entry(shape=(1,) * 9)})),
    ("43 bytes mismatch", "contradicts", packed({"a": entry(shape=(1,))})),
    ("44 unknown dtype", "unknown dtype", packed({"a": entry(dtype="F4")})),
    ("44 dtype a number", "unknown dtype", packed({"a": entry(dtype=7)})),
    ("45 metadata list", "__metadata__", packed({"__metadata__": [1], **ONE})),
    ("45 metadata numbers", "__metadata__", packed({"__metadata__": {"a": 1}, **ONE})),
    ("46 trailing bytes", "after its last tensor", packed(ONE, bytes(9))),
    ("46 data without tensors", "after its last tensor", packed({}, bytes(8))),
    ("46 extra entry", "entry", packed({"a": entry() | {"x": 1}})),
    ("46 entry a list", "entry", packed({"a": [1]})),
    ("46 name with control", "name", packed({"a\x1b": entry()})),
    ("49 LFS pointer", "Git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3848817896\n"),
    ("49 HTML", "HTML", b"<!DOCTYPE html><html></html>" + bytes(40)),
    ("49 zip", "zip", b"PK\x03\x04" + bytes(60)),
    ("49 pickle", "pickle", b"\x80\x02}q\x00" + bytes(60)),
    ("49 GGUF", "a GGUF", gguf()),
]  # fmt: skip


@pytest.mark.parametrize(("what", "raw"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_malformed_safetensors_is_refused(tmp_path: Path, what: str, raw: bytes) -> None:
    """Exit 3, one message that names the file, in time and in memory, nothing left behind."""
    folder = tiny.write_draft(tmp_path / "d")
    (folder / "model.safetensors").write_bytes(raw)
    message = refused_source(folder, tmp_path / "work")

    assert what in message
    assert "model.safetensors" in message.splitlines()[0]


def test_header_limit_is_stated_and_held(tmp_path: Path) -> None:
    """A legal header at the limit is read in time; one byte more is refused by the number."""
    path = tmp_path / "m.safetensors"
    raw = json.dumps(ONE).encode()
    path.write_bytes(packed(raw.ljust(MAX_HEADER)))
    assert ["a"] == list(read_safetensors(path).tensors)
    path.write_bytes(packed(raw.ljust(MAX_HEADER + 1)))
    with pytest.raises(InputError) as error:
        read_safetensors(path)
    assert str(MAX_HEADER) in error.value.expected


def test_cut_at_every_byte_is_refused(tmp_path: Path) -> None:
    """Every proper prefix of a small file is refused."""
    raw = packed(
        {"__metadata__": {"format": "pt"}, "a": entry(), "b": entry("BF16", (2, 3), (8, 20))},
        bytes(20),
    )
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    read_safetensors(path)
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(InputError):
            read_safetensors(path)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_read_never_worse(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A sound file with a few bytes replaced raises InputError or is read; nothing else."""
    raw = bytearray(packed({"a": entry(), "b": entry("BF16", (2, 3), (8, 20))}, bytes(20)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(
            st.sampled_from(list(b'\0\1\xff{}[]",:-.0129eE'))
        )
    path = tmp_path_factory.mktemp("fuzz") / "m.safetensors"
    path.write_bytes(raw)
    with suppress(InputError):
        read_safetensors(path)


def test_sparse_file_of_a_terabyte_is_refused_at_once(tmp_path: Path) -> None:
    """A header that promises 2^39 floats in a sparse file is weighed against the config, not read."""
    folder = tiny.write_draft(tmp_path / "d")
    path = folder / "model.safetensors"
    path.write_bytes(packed({"fc.weight": entry(shape=(1 << 38,), span=(0, 1 << 40))}, b""))
    os.truncate(path, path.stat().st_size + (1 << 40))
    refused(main, folder, tmp_path / "o.gguf")


def test_layer_indices_and_name_forms(tmp_path: Path) -> None:
    """A huge layer, a gap, mixed prefixes and both forms of one tensor are refused by name (hostile-inputs 47)."""
    good = tiny.draft_tensors()
    one = good["layers.1.mlp.up_proj.weight"]
    rest = {k: v for k, v in good.items() if k != "layers.1.mlp.up_proj.weight"}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("layers.999999999999.mlp", rest | {"layers.999999999999.mlp.up_proj.weight": one}),
        ("layers.2.mlp", rest | {"layers.2.mlp.up_proj.weight": one}),
        ("layers.01.mlp", rest | {"layers.01.mlp.up_proj.weight": one}),
        ("mixed", rest | {"model.layers.1.mlp.up_proj.weight": one}),
        ("two names", good | {"encoder.fc.weight": good["fc.weight"]}),
    ]
    for i, (what, tensors) in enumerate(cases):
        folder = tiny.write_draft(tmp_path / str(i), tensors=tensors)
        assert what in refused(main, folder, tmp_path / "o.gguf")


def test_prefixed_names_are_one_kind(tmp_path: Path) -> None:
    """All names with `model.` in front are the same draft, byte for byte."""
    target = tiny.write_target_gguf(tmp_path / "t.gguf")
    tensors = tiny.draft_tensors(v2=True)
    wrapped = {f"model.{name}": value for name, value in tensors.items()}
    for name, these in (("a", tensors), ("b", wrapped)):
        folder = tiny.write_draft(tmp_path / name, True, tensors=these)
        result = CliRunner().invoke(
            main, [str(folder), str(tmp_path / f"{name}.gguf"), "--target", str(target)]
        )
        assert 0 == result.exit_code, result.output
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


CONFIGS: list[tuple[str, str, bytes | None]] = [
    ("52 missing", "missing", None), ("52 empty", "empty", b""), ("52 spaces", "empty", b"  \n"), ("52 array", "not an object", b"[]"),
    ("52 key twice", "twice", b'{"a": 1, "a": 2}'), ("52 NaN", "not finite", b'{"a": NaN}'), ("52 infinity", "not finite", b'{"a": -Infinity}'),
    ("52 1e999", "not finite", b'{"a": 1e999}'), ("52 mark", "byte order mark", b"\xef\xbb\xbf{}"), ("52 100 MB", "too large", b" " * (MAX_CONFIG + 1)),
    ("52 nested", "nested", b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), ("52 not UTF-8", "not UTF-8", b'{"a": "\xff"}'),
    ("52 digits", "", b'{"a": ' + b"9" * 10_000 + b"}"), ("52 HTML", "not JSON", b"<html>"), ("53 no architecture", "not a DFlash draft", b"{}"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "raw"), [c[1:] for c in CONFIGS], ids=[c[0] for c in CONFIGS])
def test_malformed_config_is_refused(tmp_path: Path, what: str, raw: bytes | None) -> None:
    """Exit 3, the file named, nothing left behind."""
    folder = tiny.write_draft(tmp_path / "d")
    (folder / "config.json").unlink()
    if raw is not None:
        (folder / "config.json").write_bytes(raw)
    message = refused_source(folder, tmp_path / "work")

    assert what in message
    assert "config.json" in message.splitlines()[0]


def values(**top: Any) -> dict[str, Any]:
    """The tiny config with other values; a key with two underscores is one inside dflash_config."""
    config = tiny.draft_config()
    for key, value in top.items():
        section, _, name = key.rpartition("__")
        (config[section] if section else config)[name] = value
    return config


VALUES: list[tuple[str, str, dict[str, Any]]] = [
    ("53 architecture absent", "not a DFlash draft", values(architectures=None)),
    ("53 architecture not a list", "wrong type", values(architectures="DFlashDraftModel")),
    ("53 architecture not DFlash", "not a DFlash draft", values(architectures=["Qwen3ForCausalLM"])),
    ("53 architecture a number", "wrong type", values(architectures=[7])),
    *(
        (f"54 {key} {name}", what, values(**{key: value}))
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        for name, value, what in (
            ("zero", 0, ""), ("negative", -64, ""), ("float", 64.0, "wrong type"), ("string", "64", "wrong type"),
            ("bool", True, "wrong type"), ("2^63", 2**63, "out of range"),
        )
    ),
    ("54 block size huge", "block size", values(block_size=2**31)),
    ("54 epsilon zero", "epsilon", values(rms_norm_eps=0)),
    ("54 RoPE base zero", "RoPE base", values(rope_theta=0)),
    ("55 other width", "shape contradicts", values(intermediate_size=128)),
    ("55 other heads", "shape contradicts", values(num_key_value_heads=4)),
    ("55 fewer layers", "do not belong", values(num_hidden_layers=1, layer_types=["sliding_attention"])),
    ("55 more layers", "are missing", values(num_hidden_layers=3, layer_types=["sliding_attention"] * 3)),
    ("55 biases that are not there", "that the tensors lack", values(attention_bias=True)),
    ("55 reduced vocabulary without d2t", "contradicts d2t", values(draft_vocab_size=100)),
    ("56 dflash_config missing", "target_layer_ids", values(dflash_config=None)),
    ("56 dflash_config a list", "wrong type", values(dflash_config=[1])),
    ("56 ids empty", "", values(dflash_config__target_layer_ids=[])),
    ("56 ids strings", "wrong type", values(dflash_config__target_layer_ids=["0", "2"])),
    ("56 ids bools", "wrong type", values(dflash_config__target_layer_ids=[True, False])),
    ("56 ids out of range", "out of range", values(dflash_config__target_layer_ids=[0, 4])),
    ("56 ids negative", "out of range", values(dflash_config__target_layer_ids=[-1, 2])),
    ("56 ids huge", "", values(dflash_config__target_layer_ids=[0, 2**70])),
    ("56 mask outside", "mask token", values(dflash_config__mask_token_id=300)),
    ("56 mask a string", "wrong type", values(dflash_config__mask_token_id="7")),
]  # fmt: skip


@pytest.mark.parametrize(("what", "config"), [v[1:] for v in VALUES], ids=[v[0] for v in VALUES])
def test_config_value_that_cannot_be_meant_is_refused(
    tmp_path: Path, what: str, config: dict[str, Any]
) -> None:
    """Exit 3, the place in the config named, an old output untouched."""
    source = tiny.write_draft(tmp_path / "d", config=config)

    assert what in refused_source(source, tmp_path / "work")


def reindexed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A change to the index of a checkpoint in two shards."""

    def spoil(folder: Path) -> None:
        edit_json(folder / "model.safetensors.index.json", change)

    return spoil


def moved(name: str) -> Callable[[Path], None]:
    """An index that looks for the first tensor's shard under another name."""
    return reindexed(lambda i: i["weight_map"].update({"fc.weight": name}))


INDEXES: list[tuple[str, str, Callable[[Path], object]]] = [
    ("50 path that climbs", "not a shard", moved("../model-00001-of-00002.safetensors")),
    ("50 absolute path", "not a shard", moved("/etc/passwd.safetensors")),
    ("50 not a safetensors name", "not a shard", moved("model.bin")),
    ("50 name a number", "not a shard", reindexed(lambda i: i["weight_map"].update({"fc.weight": 7}))),
    ("50 shard missing", "shard is missing", lambda d: sorted(d.glob("*.safetensors"))[0].unlink()),
    ("50 tensor in the other shard", "disagree", moved("model-00002-of-00002.safetensors")),
    ("50 tensor that no shard has", "disagree", reindexed(lambda i: i["weight_map"].update({"x": "model-00001-of-00002.safetensors"}))),
    ("50 wrong total_size", "total_size", reindexed(lambda i: i["metadata"].update(total_size=7))),
    ("50 total_size a string", "wrong type", reindexed(lambda i: i["metadata"].update(total_size="7"))),
    ("50 no weight_map", "no weight_map", reindexed(lambda i: i.pop("weight_map"))),
    ("50 weight_map a list", "no weight_map", reindexed(lambda i: i.update(weight_map=[]))),
    ("50 not JSON", "not JSON", lambda d: (d / "model.safetensors.index.json").write_text("<html>")),
    ("50 two indexes", "several indexes", lambda d: (d / "other.safetensors.index.json").write_text("{}")),
]  # fmt: skip


@pytest.mark.parametrize(("what", "spoil"), [i[1:] for i in INDEXES], ids=[i[0] for i in INDEXES])
def test_index_that_cannot_be_meant_is_refused(
    tmp_path: Path, what: str, spoil: Callable[[Path], object]
) -> None:
    """Exit 3 before a shard outside the folder, or a wrong one, is read."""
    source = tiny.write_draft(tmp_path / "d", shards=2)
    spoil(source)

    assert what in refused_source(source, tmp_path / "work")


def test_code_beside_the_weights_is_never_run(tmp_path: Path) -> None:
    """auto_map and a module that would leave a mark: the draft converts, the mark does not appear (hostile-inputs 57)."""
    mark = tmp_path / "mark"
    target = tiny.write_target_gguf(tmp_path / "t.gguf")
    config = tiny.draft_config() | {
        "auto_map": {"AutoModel": "modeling.Evil"},
        "_name_or_path": "../../../etc/passwd",
    }
    folder = tiny.write_draft(tmp_path / "d", config=config)
    for name in ("modeling.py", "setup.py", "conftest.py", "__init__.py"):
        (folder / name).write_text(f"open({str(mark)!r}, 'w')")
    result = CliRunner().invoke(
        main, [str(folder), str(tmp_path / "o.gguf"), "--target", str(target)]
    )

    assert 0 == result.exit_code, result.output
    assert not mark.exists()
    assert b"passwd" not in (tmp_path / "o.gguf").read_bytes()


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def spoil_tokenizer(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A change to tokenizer.json."""
    return lambda folder: edit_json(folder / "tokenizer.json", change)


def spoil_config(**entries: Any) -> Callable[[Path], None]:
    """A change to the target's config.json."""
    return lambda folder: edit_json(folder / "config.json", lambda c: c.update(entries))


TARGETS: list[tuple[str, str, Callable[[Path], object]]] = [
    ("58 no tokenizer", "tokenizer.json", lambda t: (t / "tokenizer.json").unlink()),
    ("58 no config", "config.json", lambda t: (t / "config.json").unlink()),
    ("58 vocabulary too small", "outside the target's embedding", spoil_config(vocab_size=200)),
    (
        "58 other family",
        "not byte-level BPE",
        spoil_tokenizer(lambda v: v["model"].update(type="Unigram")),
    ),
    ("58 no merges", "not byte-level BPE", spoil_tokenizer(lambda v: v["model"].pop("merges"))),
    ("58 no model", "not byte-level BPE", spoil_tokenizer(lambda v: v.pop("model"))),
    (
        "58 empty vocabulary",
        "no tokens",
        spoil_tokenizer(lambda v: (v["model"].update(vocab={}), v.update(added_tokens=[]))),
    ),
    (
        "58 id negative",
        "outside the target's embedding",
        spoil_tokenizer(lambda v: v["model"]["vocab"].update(x=-1)),
    ),
    (
        "58 id a bool",
        "outside the target's embedding",
        spoil_tokenizer(lambda v: v["model"]["vocab"].update(x=True)),
    ),
    (
        "58 id a string",
        "outside the target's embedding",
        spoil_tokenizer(lambda v: v["model"]["vocab"].update(x="7")),
    ),
    (
        "58 added token without id",
        "no content or no id",
        spoil_tokenizer(lambda v: v["added_tokens"].append({"content": "x"})),
    ),
    (
        "58 added token a number",
        "no content or no id",
        spoil_tokenizer(lambda v: v["added_tokens"].append(7)),
    ),
    (
        "58 token with NUL",
        "NUL",
        spoil_tokenizer(lambda v: v["model"]["vocab"].update({"a\0": 290})),
    ),
    (
        "58 merge of three",
        "pair",
        spoil_tokenizer(lambda v: v["model"]["merges"].append(["a", "b", "c"])),
    ),
    ("58 merge a number", "pair", spoil_tokenizer(lambda v: v["model"]["merges"].append(7))),
    ("58 merges a string", "pair", spoil_tokenizer(lambda v: v["model"].update(merges="a b"))),
    (
        "58 pre-tokenizer unknown",
        "--pre-tokenizer",
        spoil_tokenizer(lambda v: v["pre_tokenizer"]["pretokenizers"].append({"type": "Digits"})),
    ),
    (
        "58 pre-tokenizer gone",
        "--pre-tokenizer",
        spoil_tokenizer(lambda v: v.update(pre_tokenizer=None)),
    ),
    ("54 hidden size 0", "lacks a size", spoil_config(hidden_size=0)),
    ("54 hidden size float", "wrong type", spoil_config(hidden_size=64.0)),
    ("54 layers missing", "lacks a size", spoil_config(num_hidden_layers=None)),
    ("54 end token a string", "wrong type", spoil_config(eos_token_id="2")),
    ("54 end tokens mixed", "wrong type", spoil_config(eos_token_id=[2, "3"])),
]


@pytest.mark.parametrize(("what", "spoil"), [t[1:] for t in TARGETS], ids=[t[0] for t in TARGETS])
def test_unsound_target_folder_is_refused(
    tmp_path: Path, what: str, spoil: Callable[[Path], object]
) -> None:
    """Exit 3 with what is wrong in the target's folder, nothing left behind."""
    target = tiny.write_target(tmp_path / "t")
    spoil(target)
    message = refused(
        main, tiny.write_draft(tmp_path / "d"), tmp_path / "o.gguf", "--target", target
    )

    assert what in message
    assert {"d", "t"} == {p.name for p in tmp_path.iterdir()}


def test_tokenizer_that_is_a_link_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    """A target folder cannot make us read another file (hostile-inputs 59)."""
    target = tiny.write_target(tmp_path / "t")
    (target / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    (target / "tokenizer.json").symlink_to(tmp_path / "elsewhere.json")
    assert "leads out" in refused(
        main, tiny.write_draft(tmp_path / "d"), tmp_path / "o.gguf", "--target", target
    )


def test_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    """config.json and the weights as pipes are refused at once."""
    for name in ("config.json", "model.safetensors"):
        folder = tiny.write_draft(tmp_path / name)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert "not a regular file" in refused(main, folder, tmp_path / "o.gguf")


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("not a regular file", os.mkfifo),
        ("too large", lambda path: path.write_bytes(b" " * ((1 << 20) + 1))),
        ("not UTF-8", lambda path: path.write_bytes(b"{{ \xff }}")),
    ],
)
def test_chat_template_is_read_as_a_strangers_file(
    tmp_path: Path, what: str, spoil: Callable[[Path], object]
) -> None:
    """A pipe, a flood or other bytes in place of chat_template.jinja: exit 3, the file named."""
    target = tiny.write_target(tmp_path / "t")
    (target / "chat_template.jinja").unlink(missing_ok=True)
    spoil(target / "chat_template.jinja")
    message = refused(
        main, tiny.write_draft(tmp_path / "d"), tmp_path / "o.gguf", "--target", target
    )

    assert what in message
    assert "chat_template.jinja" in message


@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps"])
def test_a_number_that_no_float_holds_is_refused(tmp_path: Path, key: str) -> None:
    """An integer of 400 digits where a number belongs: exit 3, the key named."""
    config = tiny.draft_config() | {key: 10**400}

    assert key in refused(
        main, tiny.write_draft(tmp_path / "d", config=config), tmp_path / "o.gguf"
    )


def test_quantised_checkpoint_is_refused_by_tensor_and_type(tmp_path: Path) -> None:
    """FP8 with a scale and packed I32: a scale is never silently dropped (bugs 11)."""
    good = tiny.draft_tensors()
    fp8 = good | {
        "fc.weight": ("F8_E4M3", np.zeros((64, 128), np.uint8)),
        "fc.weight_scale": ("F32", np.ones(1, np.float32)),
    }
    i32 = good | {"fc.weight": ("I32", np.zeros((64, 128), np.int32))}
    for i, tensors in enumerate((fp8, i32)):
        refused(
            main,
            tiny.write_draft(tmp_path / str(i), tensors=tensors),
            tmp_path / "o.gguf",
            "--target",
            tiny.write_target(tmp_path / "t"),
        )


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
        max_leaves=6,
    )
)
def test_strict_json_reads_what_json_writes(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    """Any object that the standard library writes is read back equal."""
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_text(json.dumps({"v": value}))

    assert {"v": value} == read_json(path)


@pytest.mark.parametrize("raw", [b'{"a": 1}', b'{"a": '], ids=["sound", "cut"])
@pytest.mark.parametrize("collecting", [True, False])
def test_reading_json_leaves_the_collector_as_it_was(raw: bytes, collecting: bool) -> None:
    """It is switched off while parsing: back on only where it was on, after a refusal too."""
    before = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        with suppress(InputError):
            parse_json(raw, "x")
        assert collecting == gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()
