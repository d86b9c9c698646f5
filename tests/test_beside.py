"""What lies beside the weights: heads in files of their own, and MiMo's embedding of the mask token."""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from click.testing import CliRunner
from dflash_gguf.convert import torch_file
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.ggml import BY_NAME, F16
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufOutput
from heads import (
    PAIR_TARGET,
    Tensors,
    as_torch,
    convert,
    domino,
    domino_tensors,
    flat,
    lucebox_domino,
    markov,
    pair_draft,
    random,
    values_of,
)
from hostile import refused
from llama_client import LlamaServer

V1 = tiny.draft_tensors()
HEAD = markov("markov_head.", "confidence_head.proj")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target as a GGUF."""
    return tiny.write_target_gguf(tmp_path_factory.mktemp("target") / "target.gguf")


def refused_here(*words: Any, code: int = 3) -> str:
    """The message of a conversion that must be refused, in this process: PyTorch alone needs more time and memory than
    `hostile.refused` allows.
    """
    result = CliRunner().invoke(main, [str(w) for w in words])

    assert code == result.exit_code, result.output
    assert result.output.startswith("error: ")
    assert "Traceback" not in result.output
    return result.output


def whole(folder: Path, target: Path, config: dict[str, Any], tensors: Tensors) -> bytes:
    """The canonical file of a checkpoint that has everything in one file."""
    source = tiny.write_draft(folder / "whole", config=config, tensors=tensors)
    return convert(source, folder / "whole.gguf", "--target", target).read_bytes()


BESIDE: list[tuple[str, str, dict[str, Any], Tensors, Callable[[Any], Any]]] = [
    ("Lucebox's heads", "dflash_aux_heads.pt", tiny.draft_config(), lucebox_domino(), lambda d: d),
    ("state_dict inside", "dflash_aux_heads.pt", flat(), HEAD, lambda d: {"state_dict": d}),
    ("Domino as .bin", "domino_head.bin", domino(), domino_tensors(), lambda d: d),
    ("parameters", "markov_head.pth", flat(), HEAD, lambda d: {k: torch.nn.Parameter(v) for k, v in d.items()}),
    ("views of one storage", "aux-heads.pt", flat(), HEAD, lambda d: views(d)),
]  # fmt: skip


def views(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors as pieces of one long one."""
    long = torch.cat([t.ravel() for t in tensors.values()])
    pieces = long.split([t.numel() for t in tensors.values()])
    return {n: p.view(t.shape) for (n, t), p in zip(tensors.items(), pieces, strict=True)}


@pytest.mark.parametrize(
    ("name", "config", "tensors", "wrap"), [b[1:] for b in BESIDE], ids=[b[0] for b in BESIDE]
)
def test_heads_in_a_pytorch_file_are_heads_in_the_checkpoint(
    tmp_path: Path,
    target: Path,
    name: str,
    config: dict[str, Any],
    tensors: Tensors,
    wrap: Callable[[Any], Any],
) -> None:
    """Wherever a head lies, the canonical bytes are the same."""
    folder = tiny.write_draft(tmp_path / "d", config=config)
    torch.save(wrap(as_torch(tensors)), folder / name)
    out = convert(folder, tmp_path / "o.gguf", "--target", target)

    assert whole(tmp_path, target, config, V1 | tensors) == out.read_bytes()
    files = json.loads(out.with_suffix(".manifest.json").read_text())["source"]["files"]
    assert name in [file["name"] for file in files]


@pytest.mark.parametrize("shards", [1, 3])
def test_heads_in_a_safetensors_file_of_their_own(
    tmp_path: Path, target: Path, shards: int
) -> None:
    """Beside one file without an index, and beside shards whose index does not name it."""
    folder = tiny.write_draft(tmp_path / "d", config=flat(), shards=shards)
    tiny.write_safetensors(folder / "markov_head.safetensors", HEAD)
    out = convert(folder, tmp_path / "o.gguf", "--target", target)

    assert whole(tmp_path, target, flat(), V1 | HEAD) == out.read_bytes()


def test_other_files_of_a_trainer_are_never_opened(tmp_path: Path, target: Path) -> None:
    """The state of an optimiser, old weights: only files of heads are looked at, and these are not even read."""
    folder = tiny.write_draft(tmp_path / "d")
    for name in (
        "optimizer.pt",
        "training_state.pt",
        "training_args.bin",
        "pytorch_model.bin",
        "overhead.pt",
    ):
        os.mkfifo(folder / name)  # whoever opens it, waits for ever

    assert convert(folder, tmp_path / "o.gguf", "--target", target).exists()


def test_tensor_in_weights_and_head_is_refused(tmp_path: Path, target: Path) -> None:
    """Two places for one tensor: both are named."""
    folder = tiny.write_draft(tmp_path / "d", config=flat(), tensors=V1 | HEAD)
    torch.save(as_torch(HEAD), folder / "markov_head.pt")
    message = refused_here(folder, tmp_path / "o.gguf", "--target", target)

    assert "tensor is in two files" in message
    assert "only in model.safetensors" in message


class Hostile:
    """Leaves a file when it is unpickled."""

    def __init__(self, beside: Path) -> None:
        self.command = f"touch '{beside.with_name('executed')}'"

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (self.command,))


def archive(
    path: Path, pickled: bytes, compression: int = zipfile.ZIP_STORED, **members: bytes
) -> None:
    """A zip like torch.save's, with any pickle."""
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("a/data.pkl", pickled)
        for name, data in ({"version": b"3\n", "byteorder": b"little"} | members).items():
            file.writestr(f"a/{name.replace('__', '/')}", data)


def tensor_pickle(
    size: tuple[int, ...], stride: tuple[int, ...], count: int, offset: int = 0
) -> bytes:
    """A dictionary of one float tensor on storage 0 of `count` numbers."""

    def integer(n: int) -> bytes:
        return b"\x8a\x08" + struct.pack("<q", n)

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(map(integer, values)) + b"t"

    def string(text: str) -> bytes:
        return b"X" + struct.pack("<I", len(text)) + text.encode()

    storage = (
        b"("
        + string("storage")
        + b"ctorch\nFloatStorage\n"
        + string("0")
        + string("cpu")
        + integer(count)
        + b"tQ"
    )
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + integer(offset)
        + numbers(size)
        + numbers(stride)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )
    return b"\x80\x02}" + string("markov_w1.weight") + tensor + b"s."


def saved(value: Any) -> Callable[[Path], None]:
    """A file that torch.save writes."""
    return lambda path: torch.save(value, path)


def cut(keep: float) -> Callable[[Path], None]:
    """A sound file, cut."""

    def write(path: Path) -> None:
        torch.save(as_torch(HEAD), path)
        raw = path.read_bytes()
        path.write_bytes(raw[: int(len(raw) * keep)])

    return write


def sparse(path: Path) -> None:
    """A file of huge logical size."""
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(torch_file.MAX_FILE + 1)


def legacy(path: Path) -> None:
    """The format of PyTorch before 1.6, which says how much to allocate before it is read."""
    torch.save(as_torch(HEAD), path, _use_new_zipfile_serialization=False)


BAD: list[tuple[str, Callable[[Path], Any], str]] = [
    ("os.system", lambda p: archive(p, pickle.dumps(Hostile(p), 2)), "posix system"),
    ("os.system by stack", lambda p: archive(p, pickle.dumps(Hostile(p), 4)), "STACK_GLOBAL"),
    ("os.system, old file", lambda p: p.write_bytes(pickle.dumps(Hostile(p))), "version 1.6"),
    ("device beside tensors", saved({"x": torch.zeros(1), "y": torch.device("cpu")}), "torch device"),
    ("bytearray that fills the memory", lambda p: archive(p, b"\x80\x02cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x00\x10\x85R."), "builtins bytearray"),
    ("empty file", lambda p: p.write_bytes(b""), "version 1.6"),
    ("before 1.6", legacy, "version 1.6"),
    ("half a file", cut(0.5), "damaged"),
    ("all but its end", cut(0.99), "damaged"),
    ("huge file", sparse, "too large"),
    ("compressed", lambda p: archive(p, tensor_pickle((1,), (1,), 1), zipfile.ZIP_DEFLATED, data__0=bytes(4)), "compressed"),
    ("bomb", lambda p: archive(p, tensor_pickle((1,), (1,), 1), zipfile.ZIP_DEFLATED, data__0=bytes(10**7)), "larger than it"),
    ("big-endian", lambda p: archive(p, tensor_pickle((1,), (1,), 1), data__0=bytes(4), byteorder=b"big"), "byte order"),
    ("no pickle", lambda p: archive(p.with_name("x.zip"), b"") or rezip(p), "no usable data.pkl"),
    ("pickle of noise", lambda p: archive(p, b"\x80\x02\xff\xff"), "pickle is damaged"),
    ("key of nested tuples", lambda p: archive(p, b"\x80\x02}K\x01" + b"\x85" * 900_000 + b"K\x01s."), "too many tuples"),
    ("pickle without an end", lambda p: archive(p, b"\x80\x02}"), "pickle is damaged"),
    ("complex", saved({"markov_w1.weight": torch.zeros(3, dtype=torch.complex64)}), "ComplexFloatStorage"),
]  # fmt: skip
"""What is refused before PyTorch is asked."""

BEHIND: list[tuple[str, Callable[[Path], Any], str]] = [
    ("list", saved([torch.zeros(2)]), "no dictionary"),
    ("nothing", saved({}), "no dictionary"),
    ("text beside tensors", saved({"a": torch.zeros(2), "note": "x"}), "not a tensor"),
    ("number beside tensors", saved(as_torch(HEAD) | {"epoch": 3}), "not a tensor"),
    ("dictionary in a dictionary", saved({"markov": {"w1": torch.zeros(2)}}), "not a tensor"),
    ("name with control characters", saved({"a\x1b[2J": torch.zeros(2)}), "name is not usable"),
    ("negated view", saved({"markov_w1.weight": torch._neg_view(torch.ones(3))}), "as it lies"),
    ("numbers for names", saved({1: torch.zeros(2)}), "name is not usable"),
    ("huge shape", lambda p: archive(p, tensor_pickle((2**40, 2**20), (2**20, 1), 4), data__0=bytes(16)), "more bytes than the file holds"),
    ("huge shape that repeats", lambda p: archive(p, tensor_pickle((2**40,), (0,), 4), data__0=bytes(16)), "dense tensor"),
    ("huge storage", lambda p: archive(p, tensor_pickle((2**40,), (1,), 2**40), data__0=bytes(16)), "more bytes than the file holds"),
    ("storage of another size", lambda p: archive(p, tensor_pickle((8,), (1,), 8), data__0=bytes(16)), "more bytes than the file holds"),
    ("no storage", lambda p: archive(p, tensor_pickle((4,), (1,), 4)), "PyTorch does not read"),
    ("tensor past its storage", lambda p: archive(p, tensor_pickle((4,), (1,), 4, 2), data__0=bytes(16)), "more bytes than the file holds"),
    ("negative offset", lambda p: archive(p, tensor_pickle((4,), (1,), 4, -2), data__0=bytes(16)), "PyTorch does not read"),
    ("transposed", saved({"markov_w1.weight": torch.zeros(3, 5).T}), "dense tensor"),
    ("not a head of ours", saved({"classifier_head.weight": torch.zeros(3, 4)}), "do not belong"),
    ("not finite", saved(as_torch(HEAD) | {"markov_head.markov_w1.weight": torch.full((tiny.VOCAB, 8), torch.nan, dtype=torch.bfloat16)}), "not finite"),
]  # fmt: skip
"""What PyTorch, or what follows it, refuses."""


def rezip(path: Path) -> None:
    """An archive without a pickle."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/other", b"x")


@pytest.mark.parametrize(("write", "what"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_hostile_file_is_refused_before_pytorch_sees_it(
    tmp_path: Path, target: Path, write: Callable[[Path], Any], what: str
) -> None:
    """Exit 3 in time and memory, nothing executed, nothing written."""
    folder = tiny.write_draft(tmp_path / "d", config=flat())
    write(folder / "markov_head.pt")

    assert what in refused(main, folder, tmp_path / "o.gguf", "--target", target)
    assert not (folder / "executed").exists()
    assert not (tmp_path / "o.gguf").exists()


@pytest.mark.parametrize(("write", "what"), [b[1:] for b in BEHIND], ids=[b[0] for b in BEHIND])
def test_file_of_other_things_than_a_head_is_refused(
    tmp_path: Path, target: Path, write: Callable[[Path], Any], what: str
) -> None:
    """Exit 3, nothing allocated for what a pickle claims, nothing written."""
    folder = tiny.write_draft(tmp_path / "d", config=flat())
    write(folder / "markov_head.pt")
    tracemalloc.start()
    message = refused_here(folder, tmp_path / "o.gguf", "--target", target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert what in message
    assert peak < 256 << 20
    assert not (tmp_path / "o.gguf").exists()


def test_pickle_is_refused_even_without_pytorch(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile file is called hostile, not a reason to install something."""
    folder = tiny.write_draft(tmp_path / "d", config=flat())
    head = folder / "markov_head.pt"
    archive(head, pickle.dumps(Hostile(head), 2))
    monkeypatch.setitem(sys.modules, "torch", None)

    assert "posix system" in refused_here(folder, tmp_path / "o.gguf", "--target", target)


@pytest.mark.parametrize("version", [None, "2.9.1", "1.13.0+cpu"])
def test_pytorch_that_is_missing_or_too_old_is_asked_for(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    """Exit 5 with the command that mends it; older ones corrupt memory on a hostile file."""
    folder = tiny.write_draft(tmp_path / "d", config=flat())
    torch.save(as_torch(HEAD), folder / "markov_head.pt")
    if version is None:
        monkeypatch.setitem(sys.modules, "torch", None)
    else:
        monkeypatch.setattr(torch, "__version__", version)
    message = refused_here(folder, tmp_path / "o.gguf", "--target", target, code=5)

    assert 'pip install "torch>=2.10"' in message


def with_mask(
    folder: Path, vector: torch.Tensor | None = None, token: int = tiny.MASK, **more: Any
) -> Path:
    """A draft that brings its mask token's embedding, as MiMo does."""
    folder = tiny.write_draft(folder, **more)
    row = as_torch({"x": random(50, tiny.H)})["x"] if vector is None else vector
    torch.save({"embedding": row, "mask_token_id": token}, folder / "mask_embedding.pt")
    return folder


def table_of(path: Path, name: str = "token_embd.weight") -> np.ndarray:
    """A BF16 matrix of a GGUF as its bits."""
    t = read_gguf(path).tensors[name]
    return np.frombuffer(values_of(path)[name], np.uint16).reshape(t.shape[::-1])


def test_mask_embedding_becomes_a_row_of_the_drafts_own_table(tmp_path: Path, target: Path) -> None:
    """The target's table with one row replaced, and the target's head unchanged, which llama.cpp would else take from that table."""
    out = convert(with_mask(tmp_path / "d"), tmp_path / "o.gguf", "--target", target)
    theirs, own = table_of(target), table_of(out)
    others = np.arange(tiny.VOCAB) != tiny.MASK

    np.testing.assert_array_equal(theirs[others], own[others])
    np.testing.assert_array_equal(random(50, tiny.H)[1], own[tiny.MASK])
    np.testing.assert_array_equal(theirs, table_of(out, "output.weight"))
    plain = convert(tiny.write_draft(tmp_path / "e"), tmp_path / "p.gguf", "--target", target)
    assert values_of(plain) == {
        k: v for k, v in values_of(out).items() if k not in ("token_embd.weight", "output.weight")
    }
    assert out.read_bytes() == convert(out, tmp_path / "q.gguf", "--target", target).read_bytes()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shards", [1, 2])
def test_embedding_and_head_come_from_a_target_folder_too(
    tmp_path: Path, target: Path, tied: bool, shards: int
) -> None:
    """By the names that checkpoints use, from one file or from the shard that an index names; a tied head is the embedding."""
    embedding = table_of(target)
    tensors: Tensors = {
        "model.embed_tokens.weight": ("BF16", embedding),
        "model.norm.weight": random(51, tiny.H),
    }
    if not tied:
        tensors["lm_head.weight"] = random(52, tiny.VOCAB, tiny.H)
    folder = tiny.write_draft(tmp_path / "t", tensors=tensors, shards=shards)
    tiny.write_target(folder)
    config = tiny.target_config() | {"tie_word_embeddings": tied}
    (folder / "config.json").write_text(json.dumps(config))
    out = convert(with_mask(tmp_path / "d"), tmp_path / "o.gguf", "--target", folder)

    np.testing.assert_array_equal(
        np.delete(embedding, tiny.MASK, 0), np.delete(table_of(out), tiny.MASK, 0)
    )
    np.testing.assert_array_equal(
        embedding if tied else tensors["lm_head.weight"][1], table_of(out, "output.weight")
    )


def test_table_of_the_drafts_own_gets_the_row(tmp_path: Path, target: Path) -> None:
    """Where the draft ships embedding and head, these are used and the target's are not."""
    own = {
        "embed_tokens.weight": random(53, tiny.VOCAB, tiny.H),
        "lm_head.weight": random(54, tiny.VOCAB, tiny.H),
    }
    out = convert(
        with_mask(tmp_path / "d", tensors=V1 | own), tmp_path / "o.gguf", "--target", target
    )

    np.testing.assert_array_equal(
        np.delete(own["embed_tokens.weight"][1], tiny.MASK, 0),
        np.delete(table_of(out), tiny.MASK, 0),
    )
    np.testing.assert_array_equal(random(50, tiny.H)[1], table_of(out)[tiny.MASK])
    np.testing.assert_array_equal(own["lm_head.weight"][1], table_of(out, "output.weight"))


def test_draft_with_an_embedding_of_its_own_gets_the_targets_head(
    tmp_path: Path, target: Path
) -> None:
    """llama.cpp (b11434) takes a draft's own table for its head where the draft has no head (MiniMax drafts): so it gets one."""
    own = {"embed_tokens.weight": random(53, tiny.VOCAB, tiny.H)}
    out = convert(
        tiny.write_draft(tmp_path / "d", tensors=V1 | own), tmp_path / "o.gguf", "--target", target
    )

    np.testing.assert_array_equal(own["embed_tokens.weight"][1], table_of(out))
    np.testing.assert_array_equal(table_of(target), table_of(out, "output.weight"))


def other_target(path: Path, target: Path, kind: int, nbytes: int) -> Path:
    """The tiny target with its embedding in another type."""
    file, raw = read_gguf(target), values_of(target)
    tensors = [
        (t.name, kind if t.name == "token_embd.weight" else t.type, t.shape)
        for t in file.tensors.values()
    ]
    with GgufOutput(path, file.fields, tensors) as writer:
        writer.write("token_embd.weight", bytes(nbytes))
        writer.write("output_norm.weight", raw["output_norm.weight"])
    return path


MASK_FAULTS: list[tuple[str, Callable[[Path], Path], str]] = [
    ("another token", lambda p: with_mask(p, token=1), "belongs to another draft"),
    ("another width", lambda p: with_mask(p, torch.zeros(tiny.H + 1)), "belongs to another draft"),
    ("a matrix", lambda p: with_mask(p, torch.zeros(1, tiny.H)), "belongs to another draft"),
    ("not finite", lambda p: with_mask(p, torch.full((tiny.H,), torch.inf)), "not finite"),
    ("a bare tensor", lambda p: bare(p, torch.zeros(tiny.H)), "no dictionary"),
    ("another dictionary", lambda p: bare(p, {"mask": torch.zeros(tiny.H)}), "not the dictionary"),
]  # fmt: skip


def bare(folder: Path, value: Any) -> Path:
    """A draft with another mask_embedding.pt."""
    torch.save(value, tiny.write_draft(folder) / "mask_embedding.pt")
    return folder


@pytest.mark.parametrize(
    ("write", "what"), [m[1:] for m in MASK_FAULTS], ids=[m[0] for m in MASK_FAULTS]
)
def test_mask_embedding_of_another_draft_is_refused(
    tmp_path: Path, target: Path, write: Callable[[Path], Path], what: str
) -> None:
    """Token, width and values must be this draft's."""
    assert what in refused_here(write(tmp_path / "d"), tmp_path / "o.gguf", "--target", target)


def test_mask_embedding_needs_a_plain_table_and_a_dialect_that_reads_it(
    tmp_path: Path, target: Path
) -> None:
    """A quantised table, a value past F16, a target without weights, another dialect, no target at all: each with its reason."""
    source, output = with_mask(tmp_path / "d"), tmp_path / "o.gguf"
    quantised = other_target(
        tmp_path / "q.gguf", target, BY_NAME["Q4_0"].id, tiny.VOCAB * tiny.H // 32 * 18
    )
    assert "quantised embedding" in refused_here(source, output, "--target", quantised)
    half = other_target(tmp_path / "h.gguf", target, F16, tiny.VOCAB * tiny.H * 2)
    wide = with_mask(tmp_path / "w", torch.full((tiny.H,), 1e9))
    assert "do not fit" in refused_here(wide, output, "--target", half)
    assert convert(source, tmp_path / "fine.gguf", "--target", half).exists()
    assert "no embedding" in refused_here(
        source, output, "--target", tiny.write_target(tmp_path / "t")
    )
    for dialect in ("lucebox", "ik"):
        message = refused_here(source, output, "--target", target, "--dialect", dialect)
        assert "mask_embedding.pt" in message
        assert "--dialect canonical" in message
    assert "--target" in refused_here(source, output, code=2)


def pair_rows() -> torch.Tensor:
    """The embedding of the example pair's target."""
    return torch.from_numpy(table_of(PAIR_TARGET).copy()).view(torch.bfloat16)


@pytest.mark.parametrize("own", [False, True])
def test_llama_cpp_drafts_with_the_masks_own_embedding(tmp_path: Path, own: bool) -> None:
    """Given the vector that the draft was trained with, its drafts are those of the plain file, one by one; given noise, others."""
    config, tensors, _ = pair_draft()
    mask = config["dflash_config"]["mask_token_id"]
    row = pair_rows()[mask] if own else as_torch({"x": random(60, config["hidden_size"])})["x"]
    plain = convert(
        tiny.write_draft(tmp_path / "p", config=config, tensors=tensors),
        tmp_path / "p.gguf",
        "--target",
        PAIR_TARGET,
    )
    source = with_mask(tmp_path / "d", row, mask, config=config, tensors=tensors)
    draft = convert(source, tmp_path / "o.gguf", "--target", PAIR_TARGET)
    counts = []
    for file in (plain, draft):
        with LlamaServer(PAIR_TARGET, file, threads=1) as server:
            found = server.complete("count: 1 2 3 4 5", 48)
            counts.append((found.drafted, found.accepted))

    assert counts[0][1] > 0
    assert own == (counts[0] == counts[1])
