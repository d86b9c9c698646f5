"""From checkpoint to canonical GGUF: every key, every byte, and every refusal."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from click.testing import CliRunner, Result
from dflash_gguf.convert import transfer
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.draft import read_draft
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.inspect_cli import main as inspect_main


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target as a GGUF."""
    return tiny.write_target_gguf(tmp_path_factory.mktemp("target") / "target.gguf")


def run(*arguments: Any) -> Result:
    """dflash-convert with these arguments."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def convert(source: Path, output: Path, target: Path, *more: Any) -> Path:
    """A conversion that must succeed."""
    result = run(source, output, "--target", target, *more)

    assert 0 == result.exit_code, result.output
    return output


def tensor_bytes(path: Path) -> dict[str, bytes]:
    """Name to bytes of every tensor of a GGUF."""
    raw = path.read_bytes()
    return {t.name: raw[t.offset : t.offset + t.nbytes] for t in read_gguf(path).tensors.values()}


def widen(bits: np.ndarray) -> bytes:
    """BF16 bits as F32 bytes."""
    return (bits.astype(np.uint32) << 16).tobytes()


def test_bf16_matrices_keep_their_bytes_and_norms_become_exact_f32(
    tmp_path: Path, target: Path
) -> None:
    """Nothing is permuted, scaled or rounded: matrices are byte-equal to the source, the rest widened."""
    tensors = tiny.draft_tensors(v2=True)
    out = tensor_bytes(convert(tiny.write_draft(tmp_path / "d", True), tmp_path / "o.gguf", target))
    for m in read_draft(tmp_path / "d").matches:
        bits = tensors[m.source][1]

        assert (bits.tobytes() if m.rule.store == "matrix" else widen(bits)) == out.pop(m.name), (
            m.name
        )
    assert {} == out


EXPECTED_V1 = {
    "general.architecture": "dflash", "general.type": "model", "general.name": "Tiny DFlash", "general.finetune": "DFlash",
    "general.size_label": "70K", "general.file_type": 32, "general.quantization_version": 2,
    "general.base_model.count": 1, "general.base_model.0.name": "Tiny",
    "dflash.format_version": 1, "dflash.variant": "dflash1", "dflash.block_count": 2, "dflash.context_length": 512,
    "dflash.embedding_length": 64, "dflash.feed_forward_length": 96, "dflash.vocab_size": 300,
    "dflash.attention.head_count": 4, "dflash.attention.head_count_kv": 2, "dflash.attention.key_length": 16,
    "dflash.attention.value_length": 16, "dflash.attention.layer_norm_rms_epsilon": float(np.float32(1e-6)),
    "dflash.rope.freq_base": 1e7, "dflash.rope.dimension_count": 16, "dflash.block_size": 4, "dflash.mask_token_id": 299,
    "dflash.target_layer_ids": [0, 2], "dflash.target_layers": [1, 3], "dflash.attention.causal_pattern": [True, False],
    "dflash.attention.sliding_window": 8, "dflash.attention.sliding_window_pattern": [True, False],
    "dflash.target.architecture": "qwen3", "dflash.target.block_count": 4, "dflash.target.embedding_length": 64,
    "dflash.target.vocab_size": 300, "tokenizer.ggml.mask_token_id": 299,
}  # fmt: skip

EXPECTED_V2 = {
    "dflash.variant": "dflash2", "general.name": "Tiny DFlash2", "general.finetune": "DFlash2", "general.size_label": "81K",
    "dflash.attention.causal": False, "dflash.attention.causal_pattern": [False, False],
    "dflash.attention.sliding_window_pattern": [True, True], "dflash.conv_kernel_size": 2, "dflash.conv_group_size": 16,
    "dflash.selector_rank": 8, "dflash.selector_top_k": 4,
}  # fmt: skip


def plain(value: Any) -> Any:
    """A metadata value as plain Python."""
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("v2", [False, True])
def test_every_key_is_there_and_no_other(tmp_path: Path, target: Path, v2: bool) -> None:
    """The metadata is exactly the documented keys plus the target's tokenizer; the flag only where layers agree."""
    file = read_gguf(convert(tiny.write_draft(tmp_path / "d", v2), tmp_path / "o.gguf", target))
    tokenizer = {k: plain(v) for k, v in read_gguf(target).kv.items() if k.startswith("tokenizer.")}
    found = {k: plain(v) for k, v in file.kv.items()}
    digest = found.pop("dflash.target.tokenizer_hash")

    assert (EXPECTED_V1 | (EXPECTED_V2 if v2 else {})) | tokenizer == found
    assert 64 == len(digest)


@pytest.mark.parametrize("v2", [False, True])
def test_what_was_written_is_read_as_the_same_draft(tmp_path: Path, target: Path, v2: bool) -> None:
    """Config and canonical GGUF give equal specs."""
    source = tiny.write_draft(tmp_path / "d", v2)
    out = convert(source, tmp_path / "o.gguf", target)

    assert read_draft(source).spec == read_draft(out).spec


def test_same_input_gives_same_bytes_wherever_it_lies(tmp_path: Path, target: Path) -> None:
    """Another folder, another layout of the files, and another day change no byte."""
    one = convert(tiny.write_draft(tmp_path / "a", True), tmp_path / "a.gguf", target)
    two = convert(
        tiny.write_draft(tmp_path / "deep" / "b", True, shards=3), tmp_path / "b.gguf", target
    )
    os.utime(tmp_path / "a" / "model.safetensors", (1, 1))
    three = convert(tmp_path / "a" / "model.safetensors", tmp_path / "c.gguf", target)
    again = convert(one, tmp_path / "d.gguf", target)

    assert 1 == len({p.read_bytes() for p in (one, two, three, again)})


def test_folder_and_gguf_of_a_target_give_the_same_tokenizer(tmp_path: Path, target: Path) -> None:
    """tokenizer.json becomes the very fields that the target's GGUF has."""
    draft = tiny.write_draft(tmp_path / "d")
    folder = read_gguf(convert(draft, tmp_path / "a.gguf", tiny.write_target(tmp_path / "t"))).kv
    file = read_gguf(convert(draft, tmp_path / "b.gguf", target)).kv

    keys = [k for k in file if k.startswith(("tokenizer.", "dflash."))]
    assert {k: plain(file[k]) for k in keys} == {k: plain(folder[k]) for k in keys}


def test_manifest_says_where_every_byte_came_from(tmp_path: Path, target: Path) -> None:
    """The sidecar's hashes are those of the bytes on disk, and it names no path."""
    out = convert(tiny.write_draft(tmp_path / "d"), tmp_path / "o.gguf", target)
    text = (tmp_path / "o.manifest.json").read_text()
    manifest = json.loads(text)
    bytes_now = tensor_bytes(out)
    source = (tmp_path / "d" / "model.safetensors").read_bytes()
    length = int.from_bytes(source[:8], "little")

    assert {n: hashlib.sha256(b).hexdigest() for n, b in bytes_now.items()} == {
        t["name"]: t["sha256"] for t in manifest["tensors"]
    }
    assert (
        hashlib.sha256(source[8 : 8 + length]).hexdigest()
        == manifest["source"]["files"][0]["header_sha256"]
    )
    assert all(
        t["sha256"] == t["source_sha256"] for t in manifest["tensors"] if t["type"] == "BF16"
    )
    assert str(tmp_path) not in text
    assert str(tmp_path).encode() not in out.read_bytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(
    tmp_path: Path, target: Path, value: float
) -> None:
    """NaN and infinity in any tensor are refused by its name, and nothing appears."""
    source = tiny.draft_with(tmp_path / "d", "layers.1.mlp.down_proj.weight", [value])
    result = run(source, tmp_path / "o.gguf", "--target", target)

    assert 3 == result.exit_code
    assert "layers.1.mlp.down_proj.weight[0, 0]" in result.output
    assert nothing_new(tmp_path, "d")


def nothing_new(folder: Path, *known: str) -> bool:
    """Whether the folder has these entries and no other, hidden ones included."""
    return set(known) == {p.name for p in folder.iterdir()}


def test_place_of_a_bad_weight_counts_on_from_chunk_to_chunk(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row and column are those of the source's matrix, in whichever chunk the weight lies."""
    tensors = tiny.draft_tensors()
    tensors["fc.weight"][1][50, 77] = 0x7F80
    source = tiny.write_draft(tmp_path / "d", tensors=tensors)
    monkeypatch.setattr(transfer, "CHUNK", 1000)

    assert "fc.weight[50, 77]" in run(source, tmp_path / "o.gguf", "--target", target).output


def test_manifest_of_a_gguf_source_has_its_header_and_every_tensor(
    tmp_path: Path, target: Path
) -> None:
    """A GGUF in is hashed like a checkpoint in: its header, and each tensor as it was read."""
    first = convert(tiny.write_draft(tmp_path / "d"), tmp_path / "a.gguf", target)
    convert(first, tmp_path / "b.gguf", target, "--outtype", "f32")
    manifest = json.loads((tmp_path / "b.manifest.json").read_text())
    head = first.read_bytes()[: read_gguf(first).data_offset]

    (file,) = manifest["source"]["files"]
    assert {
        "name": "a.gguf",
        "bytes": first.stat().st_size,
        "header_sha256": hashlib.sha256(head).hexdigest(),
    } == file
    assert {n: hashlib.sha256(b).hexdigest() for n, b in tensor_bytes(first).items()} == {
        t["source"]: t["source_sha256"] for t in manifest["tensors"]
    }


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path, target: Path) -> None:
    """--dry-run shows every tensor; --json makes it one object; the real file has the promised size."""
    source = tiny.write_draft(tmp_path / "d")
    result = run(source, tmp_path / "o.gguf", "--target", target, "--dry-run", "--json")
    plan = json.loads(result.stdout)["plan"]

    assert nothing_new(tmp_path, "d")
    assert 25 == len(plan["tensors"])
    text = run(source, tmp_path / "o.gguf", "--target", target, "--dry-run").stdout
    assert all(t["name"] in text for t in plan["tensors"])
    assert plan["bytes"] == convert(source, tmp_path / "o.gguf", target).stat().st_size


def test_json_is_one_object_in_success_and_failure(tmp_path: Path, target: Path) -> None:
    """stdout carries exactly one object with a schema number."""
    source = tiny.write_draft(tmp_path / "d")
    good = json.loads(run(source, tmp_path / "o.gguf", "--target", target, "--json").stdout)
    bad = json.loads(run(source, tmp_path / "o.gguf", "--target", target, "--json").stdout)

    assert (1, True, 25) == (good["schema"], good["ok"], good["outcome"]["tensors"])
    assert (1, False, 2) == (bad["schema"], bad["ok"], bad["exit_code"])


# --- refusals ---------------------------------------------------------------------------------------------------


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size - 100)


def edit_config(**top: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(tiny.draft_config() | top))

    return edit


def drop_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def extra_tensor(folder: Path) -> None:
    tiny.write_draft(
        folder,
        tensors=tiny.draft_tensors()
        | {"layers.0.self_attn.gate.weight": ("F32", np.zeros((2, 2), np.float32))},
    )


def fewer_tensors(folder: Path) -> None:
    tensors = tiny.draft_tensors()
    del tensors["layers.1.mlp.up_proj.weight"]
    tiny.write_draft(folder, tensors=tensors)


def fp8(folder: Path) -> None:
    tensors = tiny.draft_tensors()
    tiny.write_draft(
        folder, tensors=tensors | {"fc.weight": ("F8_E4M3", np.zeros((64, 128), np.uint8))}
    )


BAD_SOURCES: list[tuple[str, Callable[[Path], None]]] = [
    ("ends past the file", cut),
    ("file is missing", drop_config),
    ("shape contradicts", edit_config(intermediate_size=128)),
    ("shape contradicts", edit_config(num_key_value_heads=4)),
    ("do not belong", edit_config(num_hidden_layers=1, layer_types=["sliding_attention"])),
    ("are missing", edit_config(num_hidden_layers=3, layer_types=["sliding_attention"] * 3)),
    ("do not belong", extra_tensor),
    ("are missing", fewer_tensors),
    ("cannot be converted", fp8),
]


@pytest.mark.parametrize(("what", "spoil"), BAD_SOURCES)
def test_unsound_source_is_refused_and_leaves_nothing(
    tmp_path: Path, target: Path, what: str, spoil: Callable[[Path], None]
) -> None:
    """Exit 3, one message that says what, and no file."""
    source = tiny.write_draft(tmp_path / "d")
    spoil(source)
    result = run(source, tmp_path / "o.gguf", "--target", target)

    assert (3, True) == (result.exit_code, what in result.output), result.output
    assert nothing_new(tmp_path, "d")


BAD_TARGETS: list[tuple[str, dict[str, Any]]] = [
    ("hidden size", {"hidden_size": 128}), ("vocabulary size", {"vocab_size": 320}), ("number of layers", {"num_hidden_layers": 5}),
    ("number of layers", {"num_hidden_layers": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "change"), BAD_TARGETS)
def test_target_that_does_not_fit_is_refused(
    tmp_path: Path, what: str, change: dict[str, Any]
) -> None:
    """A target of another width, vocabulary or depth is refused with both numbers."""
    folder = tiny.write_target(tmp_path / "t")
    (folder / "config.json").write_text(json.dumps(tiny.target_config() | change))
    result = run(tiny.write_draft(tmp_path / "d"), tmp_path / "o.gguf", "--target", folder)

    assert (3, True) == (result.exit_code, what in result.output), result.output
    assert nothing_new(tmp_path, "d", "t")


def test_captured_layers_outside_the_target_are_refused(tmp_path: Path) -> None:
    """A draft that does not record the target's depth is still checked against the target."""
    config = tiny.draft_config()
    del config["num_target_layers"]
    config["dflash_config"]["target_layer_ids"] = [0, 7]
    folder = tiny.write_target(tmp_path / "t")
    result = run(
        tiny.write_draft(tmp_path / "d", config=config), tmp_path / "o.gguf", "--target", folder
    )

    assert (3, True) == (result.exit_code, "out of its range" in result.output), result.output


def test_target_without_a_known_pre_tokenizer_needs_its_name(tmp_path: Path) -> None:
    """An unknown pattern is refused with the option that helps, and the option helps."""
    folder = tiny.write_target(tmp_path / "t")
    tokenizer = tiny.tokenizer_json()
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x"
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    draft = tiny.write_draft(tmp_path / "d")
    result = run(draft, tmp_path / "o.gguf", "--target", folder)

    assert (3, True) == (result.exit_code, "--pre-tokenizer" in result.output)
    assert (
        "mine"
        == read_gguf(convert(draft, tmp_path / "o.gguf", folder, "--pre-tokenizer", "mine")).kv[
            "tokenizer.ggml.pre"
        ]
    )


def test_no_target_and_no_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    """A checkpoint without --target says which option is missing; a canonical GGUF needs none."""
    result = run(tiny.write_draft(tmp_path / "d"), tmp_path / "o.gguf")

    assert (2, True) == (result.exit_code, "--target" in result.output)


@pytest.mark.parametrize("link", ["same", "symlink", "hardlink"])
def test_output_equal_to_an_input_is_refused_through_links(
    tmp_path: Path, target: Path, link: str
) -> None:
    """By path, symbolic link and hard link, even with --overwrite, and the input keeps its bytes."""
    source = convert(tiny.write_draft(tmp_path / "d"), tmp_path / "in.gguf", target)
    before = source.read_bytes()
    output = {"same": source, "symlink": tmp_path / "s.gguf", "hardlink": tmp_path / "h.gguf"}[link]
    if link == "symlink":
        output.symlink_to(source)
    if link == "hardlink":
        output.hardlink_to(source)
    result = run(source, output, "--target", target, "--overwrite")

    assert (2, True) == (result.exit_code, "same file" in result.output)
    assert before == source.read_bytes()


def test_target_is_never_overwritten(tmp_path: Path) -> None:
    """The target is an input too."""
    goal = tiny.write_target_gguf(tmp_path / "t.gguf")
    before = goal.read_bytes()
    result = run(tiny.write_draft(tmp_path / "d"), goal, "--target", goal, "--overwrite")

    assert (2, before) == (result.exit_code, goal.read_bytes())


def test_existing_output_needs_overwrite(tmp_path: Path, target: Path) -> None:
    """Without the option the old file stays; with it the new one is whole."""
    source = tiny.write_draft(tmp_path / "d")
    out = tmp_path / "o.gguf"
    out.write_bytes(b"old")
    result = run(source, out, "--target", target)

    assert (2, b"old") == (result.exit_code, out.read_bytes())
    convert(source, out, target, "--overwrite")
    assert nothing_new(tmp_path, "d", "o.gguf", "o.manifest.json")


def test_failed_overwrite_leaves_the_old_files(tmp_path: Path, target: Path) -> None:
    """A source that turns out damaged while it is copied does not cost the old output."""
    out = convert(tiny.write_draft(tmp_path / "good"), tmp_path / "o.gguf", target)
    before = [out.read_bytes(), (tmp_path / "o.manifest.json").read_bytes()]
    bad = tiny.draft_with(tmp_path / "bad", "layers.1.mlp.down_proj.weight", [float("nan")])
    result = run(bad, out, "--target", target, "--overwrite")

    assert 3 == result.exit_code
    assert before == [out.read_bytes(), (tmp_path / "o.manifest.json").read_bytes()]
    assert nothing_new(tmp_path, "good", "bad", "o.gguf", "o.manifest.json")


@pytest.mark.parametrize("kind", ["folder", "fifo", "missing folder", "no suffix"])
def test_output_that_is_no_file_is_refused(tmp_path: Path, target: Path, kind: str) -> None:
    """A folder, a pipe, a missing folder and another suffix are refused before anything is read."""
    out = tmp_path / "o.gguf"
    if kind == "folder":
        out.mkdir()
    if kind == "fifo":
        os.mkfifo(out)
    if kind == "missing folder":
        out = tmp_path / "none" / "o.gguf"
    if kind == "no suffix":
        out = tmp_path / "o"
    result = run(tiny.write_draft(tmp_path / "d"), out, "--target", target, "--overwrite")

    assert {"missing folder": 5}.get(kind, 2) == result.exit_code, result.output


def command(*arguments: Any) -> list[str]:
    """dflash-convert as a process."""
    return [
        sys.executable,
        "-c",
        "from dflash_gguf.convert.cli import main; main()",
        *map(str, arguments),
    ]


def test_full_disk_is_told_with_its_errno_and_leaves_nothing(tmp_path: Path, target: Path) -> None:
    """A write that the system refuses half way (a file size limit stands for the disk) ends with 5 and no file."""
    source = tiny.write_draft(tmp_path / "d")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = subprocess.run(
        command(source, tmp_path / "o.gguf", "--target", target), capture_output=True, text=True, preexec_fn=limit, check=False
    )  # fmt: skip

    assert (5, True) == (done.returncode, "errno 27" in done.stderr), done.stderr
    assert nothing_new(tmp_path, "d")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real small disk; only root can have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    small = ["-t", "tmpfs", "-o", "size=100k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(["mount", *small], check=False, capture_output=True).returncode:  # fmt: skip
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_full_tmpfs_is_told_and_leaves_nothing(tmp_path: Path, target: Path, disk: Path) -> None:
    """The same on a real small disk."""
    result = run(tiny.write_draft(tmp_path / "d"), disk / "o.gguf", "--target", target)

    assert (5, True) == (result.exit_code, "space" in result.output), result.output
    assert nothing_new(disk)


def test_read_only_disk_is_told(tmp_path: Path, target: Path, disk: Path) -> None:
    """A file system that cannot be written ends with 5 and its errno, for everybody, root too."""
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    result = run(tiny.write_draft(tmp_path / "d"), disk / "o.gguf", "--target", target)

    assert (5, True) == (result.exit_code, "errno 30" in result.output), result.output
    assert nothing_new(disk)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_told(tmp_path: Path, target: Path) -> None:
    """A folder without permission ends with 5."""
    folder = tmp_path / "ro"
    folder.mkdir(mode=0o500)
    result = run(tiny.write_draft(tmp_path / "d"), folder / "o.gguf", "--target", target)

    assert 5 == result.exit_code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_in_the_middle_leaves_nothing(
    tmp_path: Path, target: Path, number: signal.Signals
) -> None:
    """A run that is told to stop while it copies removes what it wrote and says so."""
    source = tiny.write_draft(tmp_path / "d")
    script = (
        "import os, signal; from dflash_gguf.convert import gguf_writer as g; from dflash_gguf.convert.cli import main\n"
        "real = g.GgufWriter.write\n"
        "def write(self, name, data):\n"
        f"    if name == 'blk.1.attn_q.weight': os.kill(os.getpid(), {int(number)})\n"
        "    real(self, name, data)\n"
        "g.GgufWriter.write = write\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, source, tmp_path / "o.gguf", "--target", target], capture_output=True, text=True, check=False
    )  # fmt: skip

    assert (1, True) == (done.returncode, number.name in done.stderr), done.stderr
    assert nothing_new(tmp_path, "d")


def test_partial_of_a_killed_run_is_never_trusted(tmp_path: Path, target: Path) -> None:
    """What SIGKILL left behind is written over, and is gone after the next run."""
    out = tmp_path / "o.gguf"
    (tmp_path / ".o.gguf.partial").write_bytes(b"x" * 500_000)
    source = tiny.write_draft(tmp_path / "d")
    convert(source, out, target)

    assert nothing_new(tmp_path, "d", "o.gguf", "o.manifest.json")
    assert read_draft(source).spec == read_draft(out).spec


def test_two_runs_to_one_output_are_refused(tmp_path: Path, target: Path) -> None:
    """While a run holds the output another stops at once with 5, and the first is not disturbed."""
    import fcntl

    source = tiny.write_draft(tmp_path / "d")
    with (tmp_path / ".o.gguf.partial").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"theirs")
        other.flush()
        start = time.monotonic()
        result = run(source, tmp_path / "o.gguf", "--target", target)

        assert (5, True) == (result.exit_code, "another run" in result.output)
        assert time.monotonic() - start < 5
        assert b"theirs" == (tmp_path / ".o.gguf.partial").read_bytes()
    assert nothing_new(tmp_path, "d", ".o.gguf.partial")


def test_source_that_shrinks_while_it_is_read_is_refused(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header promised more than the file has when its bytes are wanted."""
    from dflash_gguf.convert import conversion

    source = tiny.write_draft(tmp_path / "d")
    real = conversion.transfer

    def shrink(*arguments: Any) -> Any:
        os.truncate(source / "model.safetensors", 20_000)
        return real(*arguments)

    monkeypatch.setattr(conversion, "transfer", shrink)
    result = run(source, tmp_path / "o.gguf", "--target", target)

    assert (3, True) == (result.exit_code, "became shorter" in result.output)
    assert nothing_new(tmp_path, "d")


# --- inspect ----------------------------------------------------------------------------------------------------


def test_inspect_shows_both_readings_of_the_layer_ids(tmp_path: Path, target: Path) -> None:
    """Text and JSON name the ids as we count and as llama.cpp counts, and where the mask came from."""
    source = tiny.write_draft(tmp_path / "d")
    text = CliRunner().invoke(inspect_main, [str(source)]).output
    body = json.loads(
        CliRunner().invoke(inspect_main, [str(source), "--json", "--target", str(target)]).output
    )["inspection"]

    assert "after layers 0 2 (0-based; llama.cpp counts 1 3)" in text
    assert "dflash_config.mask_token_id" in text
    assert ([0, 2], [1, 3]) == (body["spec"]["target_layer_ids"], body["target_layers"])
    assert body["pairing"]["fits"]


def test_inspect_says_no_to_a_target_that_does_not_fit(tmp_path: Path) -> None:
    """The pairing check's verdict is the exit code 4, with every reason."""
    folder = tiny.write_target(tmp_path / "t")
    (folder / "config.json").write_text(
        json.dumps(tiny.target_config() | {"hidden_size": 128, "num_hidden_layers": 2})
    )
    result = CliRunner().invoke(
        inspect_main, [str(tiny.write_draft(tmp_path / "d")), "--target", str(folder)]
    )

    assert 4 == result.exit_code
    assert "hidden size" in result.output
    assert "captured layers: 0 2, target 0 to 1: DOES NOT FIT" in result.output
