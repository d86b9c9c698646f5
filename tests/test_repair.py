"""Repair: break a good file, run the command that dflash-inspect prints, get the good file's bytes again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import trained_pair
from click.testing import CliRunner
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.cli import main as convert
from dflash_gguf.convert.ggml import BF16, F32
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufOutput
from dflash_gguf.convert.inspect_cli import main as inspect
from hostile import edited

IDS = [1, 4, 6, 8]
WINDOW = ("dflash.attention.sliding_window", "dflash.attention.sliding_window_pattern")
MASK = ("dflash.mask_token_id", "tokenizer.ggml.mask_token_id")
TOKENIZER = tuple(
    f"tokenizer.ggml.{k}"
    for k in (
        "model",
        "pre",
        "tokens",
        "token_type",
        "merges",
        "eos_token_id",
        "bos_token_id",
        "padding_token_id",
        "add_bos_token",
        "mask_token_id",
    )
)
LUCEBOX_NAMES = {
    "fc.weight": "dflash.fc.weight",
    "enc.output_norm.weight": "dflash.hidden_norm.weight",
}


def look(path: Path, *options: Any) -> dict[str, Any]:
    """The JSON of dflash-inspect about a file with defects."""
    done = CliRunner().invoke(inspect, [str(path), "--json", *map(str, options)])
    assert 3 == done.exit_code, done.output
    body: dict[str, Any] = json.loads(done.stdout)["inspection"]
    return body


def run(command: str, answers: dict[str, str] | None = None) -> bytes:
    """The bytes of the file that a printed command writes; `answers` replace what it asks for."""
    words = shlex.split(command)
    for option, value in (answers or {}).items():
        words[words.index(option) + 1] = value
    assert "dflash-convert" == words[0]
    done = CliRunner().invoke(convert, words[1:])
    assert 0 == done.exit_code, done.output
    return Path(words[2]).read_bytes()


def mended(path: Path, *options: Any, **answers: str) -> bytes:
    """What the printed command makes of a broken file. Every answer must have been asked for, and nothing else."""
    found = look(path, *options)
    given = {f"--{name.replace('_', '-')}": value for name, value in answers.items()}

    assert found["repair"], found["defects"]
    assert sorted(given) == sorted(found["repair"]["asks"])
    text = CliRunner().invoke(inspect, [str(path), *map(str, options)]).stdout
    assert f"mend by     {found['repair']['command']}\n" in text
    return run(found["repair"]["command"], given)


KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "no mask token": ("mask_token_id", {"drop": MASK}),
    "no target_layers": ("target_layers is missing", {"drop": ("dflash.target_layers",)}),
    "no layer ids at all": ("target_layer_ids", {"drop": ("dflash.target_layers", "dflash.target_layer_ids")}),
    "no block size": ("block_size", {"drop": ("dflash.block_size",)}),
    "no RoPE base": ("rope_theta", {"drop": ("dflash.rope.freq_base",)}),
    "mask token contradicts itself": ("contradict", {"tokenizer__ggml__mask_token_id": f.u32(0)}),
    "mask token outside the vocabulary": ("outside the vocabulary", {"dflash__mask_token_id": f.u32(5000), "tokenizer__ggml__mask_token_id": f.u32(5000)}),
    "dropped window": ("window was dropped", {"drop": WINDOW}),
    "dropped window and causality, as upstream's converter": (
        "window was dropped", {"drop": (*WINDOW, "dflash.attention.causal_pattern", "dflash.variant", "dflash.format_version")}),
    "dropped window, two-sided flag": (
        "window was dropped", {"drop": WINDOW, "dflash__attention__causal": f.boolean(False), "dflash__attention__causal_pattern": f.booleans([False] * 3)}),
    "lost pattern": ("sliding_layers", {"drop": WINDOW[1:]}),
    "raw ids where id+1 is due, both keys": ("contradict", {"dflash__target_layers": f.i32s(IDS)}),
    "raw ids where id+1 is due, one key": ("stored raw", {"drop": ("dflash.target_layer_ids",), "dflash__target_layers": f.i32s(IDS)}),
    "id+1 where raw ids are due, both keys": ("contradict", {"dflash__target_layer_ids": f.i32s([i + 1 for i in IDS])}),
    "id+1 where raw ids are due, one key": (
        "stored as id + 1", {"drop": ("dflash.target_layers",), "dflash__target_layer_ids": f.i32s([i + 1 for i in IDS])}),
    "ids shifted twice in both keys": (
        "stored as id + 1", {"dflash__target_layer_ids": f.i32s([i + 1 for i in IDS]), "dflash__target_layers": f.i32s([i + 2 for i in IDS])}),
    "names of two dialects": ("names it does not know", {"rename": {"fc.weight": "dflash_fc.weight", "enc.output_norm.weight": "dflash.hidden_norm.weight"}}),
    "all names another dialect's": ("names it does not know", {"rename": LUCEBOX_NAMES}),
    "everything at once": (
        "window was dropped", {"drop": (*WINDOW, *MASK, "dflash.block_size", "dflash.target_layers"), "dflash__target_layer_ids": f.i32s([i + 1 for i in IDS]),
                               "rename": {"fc.weight": "dflash_fc.weight"}}),
}  # fmt: skip
"""Faults of a draft that the manifests know: what is said of each, and the fault."""


@pytest.mark.parametrize("name", KNOWN)
def test_known_draft_is_mended_by_the_printed_command(tmp_path: Path, name: str) -> None:
    """No value is asked for: the published manifest, or the other key, has it."""
    what, fault = KNOWN[name]
    good = trained_pair.draft_gguf("v1")
    broken = edited(good, tmp_path / "broken.gguf", **fault)

    assert any(what in d["what"] for d in look(broken)["defects"])
    assert good.read_bytes() == mended(broken)
    assert 0 == CliRunner().invoke(inspect, [str(tmp_path / "broken-mended.gguf")]).exit_code


def test_lost_tokenizer_is_mended_from_the_target(tmp_path: Path) -> None:
    """The target is asked for, or taken where the inspection was told it."""
    good = trained_pair.draft_gguf("v1")
    broken = edited(good, tmp_path / "broken.gguf", TOKENIZER)

    assert good.read_bytes() == mended(broken, target=str(trained_pair.TARGET))
    (tmp_path / "broken-mended.gguf").unlink()
    (tmp_path / "broken-mended.manifest.json").unlink()
    assert good.read_bytes() == mended(broken, "--target", trained_pair.TARGET)


def test_norms_in_the_wrong_type_are_mended(tmp_path: Path) -> None:
    """llama.cpp aborts on BF16 norms; a conversion widens them exactly."""
    good = trained_pair.draft_gguf("v1")
    file, raw = read_gguf(good), good.read_bytes()
    table = [(t.name, BF16 if "norm" in t.name else t.type, t.shape) for t in file.tensors.values()]
    with GgufOutput(tmp_path / "broken.gguf", file.fields, table) as writer:
        for t in file.tensors.values():
            data = raw[t.offset : t.offset + t.nbytes]
            if t.type == F32 and "norm" in t.name:
                data = tiny.bf16(np.frombuffer(data, np.float32)).tobytes()
            writer.write(t.name, data)

    assert raw == mended(tmp_path / "broken.gguf")


@pytest.mark.parametrize("dialect", ["lucebox", "ik"])
def test_file_of_another_dialect_is_mended_in_its_own(tmp_path: Path, dialect: str) -> None:
    """A Lucebox file that lost its mask token and its window becomes a sound Lucebox file, an ik file an ik file."""
    good = trained_pair.draft_gguf("v1", "--dialect", dialect)
    arch = read_gguf(good).architecture
    lost = tuple(f"{arch}.{k}" for k in ("dflash.mask_token_id", *(w[7:] for w in WINDOW)))
    broken = edited(good, tmp_path / "broken.gguf", (*lost, "tokenizer.ggml.mask_token_id"))

    assert good.read_bytes() == mended(broken)


@pytest.mark.parametrize("word", ["transposed", "mislabelled"])
def test_transposed_fc_asks_which(tmp_path: Path, word: str) -> None:
    """A file cannot show whether the weights or only the shape lie the wrong way round: the command asks."""
    good = trained_pair.draft_gguf("v1")
    file, raw = read_gguf(good), good.read_bytes()
    table = [
        (t.name, t.type, t.shape[::-1] if t.name == "fc.weight" else t.shape)
        for t in file.tensors.values()
    ]
    with GgufOutput(tmp_path / "broken.gguf", file.fields, table) as writer:
        for t in file.tensors.values():
            data = raw[t.offset : t.offset + t.nbytes]
            if t.name == "fc.weight" and word == "transposed":
                data = np.frombuffer(data, np.uint16).reshape(t.shape[::-1]).T.tobytes()
            writer.write(t.name, data)

    assert raw == mended(tmp_path / "broken.gguf", fc=word)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The canonical file of the tiny v1 draft, which no manifest knows, beside its checkpoint and its target."""
    folder = tmp_path_factory.mktemp("good")
    target = tiny.write_target_gguf(folder / "target.gguf")
    draft = tiny.write_draft(folder / "draft")
    done = CliRunner().invoke(
        convert, [str(draft), str(folder / "good.gguf"), "--target", str(target)]
    )
    assert 0 == done.exit_code, done.output
    return folder / "good.gguf"


ASKED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "mask token": ({"drop": MASK}, {"mask_token_id": "299"}),
    "mask tokens that differ": ({"tokenizer__ggml__mask_token_id": f.u32(0)}, {"mask_token_id": "299"}),
    "block size": ({"drop": ("dflash.block_size",)}, {"block_size": "4"}),
    "RoPE base": ({"drop": ("dflash.rope.freq_base",)}, {"rope_theta": "1e7"}),
    "layer ids": ({"drop": ("dflash.target_layers", "dflash.target_layer_ids")}, {"target_layer_ids": "0,2"}),
    "layer ids that read both ways": (
        {"dflash__target_layer_ids": f.i32s([1, 3]), "dflash__target_layers": f.i32s([1, 3])}, {"target_layer_ids": "0,2"}),
    "pattern of the window": ({"drop": WINDOW[1:]}, {"sliding_layers": "1,0"}),
    "three at once": ({"drop": (*MASK, "dflash.block_size", "dflash.rope.freq_base")},
                      {"mask_token_id": "299", "block_size": "4", "rope_theta": "1e7"}),
}  # fmt: skip
"""Faults of a draft that nobody knows: the fault, and the answers."""


@pytest.mark.parametrize("name", ASKED)
def test_what_cannot_be_known_is_asked_for(tmp_path: Path, good: Path, name: str) -> None:
    """The command leaves the value open, names the option, and with the answer gives the good bytes."""
    fault, answers = ASKED[name]
    broken = edited(good, tmp_path / "broken.gguf", **fault)

    assert good.read_bytes() == mended(broken, **answers)


@pytest.mark.parametrize("name", ASKED)
def test_what_the_config_knows_is_not_asked_for(tmp_path: Path, good: Path, name: str) -> None:
    """With --config the same faults need no answer: the command reads the checkpoint's config.json."""
    broken = edited(good, tmp_path / "broken.gguf", **ASKED[name][0])
    config = good.parent / "draft" / "config.json"

    assert good.read_bytes() == mended(broken, "--config", config)


def test_dropped_window_is_found_by_the_config(tmp_path: Path, good: Path) -> None:
    """Without the config nobody can see that a window is missing; with it, it is a defect."""
    broken = edited(good, tmp_path / "broken.gguf", (*WINDOW, "dflash.attention.causal_pattern"))
    assert 0 == CliRunner().invoke(inspect, [str(broken)]).exit_code
    config = good.parent / "draft" / "config.json"
    assert any(
        "sliding_window is wrong" in d["what"] for d in look(broken, "--config", config)["defects"]
    )
    assert good.read_bytes() == mended(broken, "--config", config)


POSSIBLE: dict[str, dict[str, Any]] = {
    "raw ids that start with 0 where id+1 is due": {"drop": ("dflash.target_layer_ids",), "dflash__target_layers": f.i32s([0, 2])},
    "raw beside raw, starting with 0": {"dflash__target_layers": f.i32s([0, 2])},
}  # fmt: skip


@pytest.mark.parametrize("name", POSSIBLE)
def test_shift_with_one_possible_reading_is_known(tmp_path: Path, good: Path, name: str) -> None:
    """`input of layer 0` is no captured state: the ids can only be the raw ones."""
    broken = edited(good, tmp_path / "broken.gguf", **POSSIBLE[name])

    assert good.read_bytes() == mended(broken)


def test_last_layer_stored_shifted_is_known_from_the_range(tmp_path: Path) -> None:
    """Ids [1, 4] of a target with four layers: 4 is out of range, so they are [0, 3] stored one too high."""
    config = tiny.draft_config()
    config["dflash_config"]["target_layer_ids"] = [0, 3]
    target = tiny.write_target_gguf(tmp_path / "target.gguf")
    source = tiny.write_draft(tmp_path / "d", config=config)
    good = tmp_path / "good.gguf"
    assert 0 == CliRunner().invoke(convert, [str(source), str(good), "--target", str(target)]).exit_code  # fmt: skip
    broken = edited(good, tmp_path / "broken.gguf", ("dflash.target_layers",), dflash__target_layer_ids=f.i32s([1, 4]))  # fmt: skip
    found = look(broken)

    assert "--target-layer-ids 0,3" in found["repair"]["command"]
    assert good.read_bytes() == mended(broken)


def test_file_made_before_rotary_sections_is_told_to_be_rebuilt(tmp_path: Path) -> None:
    """A target with positions of several components, a draft without the key: made before, and the target mends it."""
    target = edited(
        tiny.write_target_gguf(tmp_path / "plain.gguf"), tmp_path / "target.gguf",
        qwen3__rope__dimension_sections=f.i32s([4, 2, 2, 0]),
    )  # fmt: skip
    good = tmp_path / "good.gguf"
    assert 0 == CliRunner().invoke(convert, [str(tiny.write_draft(tmp_path / "d")), str(good), "--target", str(target)]).exit_code  # fmt: skip
    broken = edited(good, tmp_path / "broken.gguf", ("dflash.rope.dimension_sections",))

    assert "made before rotary sections" in look(broken, "--target", target)["defects"][0]["what"]
    assert good.read_bytes() == mended(broken, "--target", target)


def test_file_for_a_target_known_to_have_sections_is_told_without_the_target(
    tmp_path: Path, good: Path
) -> None:
    """The file itself says qwen35: sections are due, and the target is asked for."""
    broken = edited(good, tmp_path / "broken.gguf", dflash__target__architecture=f.text("qwen35"))
    found = look(broken)

    assert "rebuild" in found["defects"][0]["what"]
    assert ["--target"] == found["repair"]["asks"]


def test_later_format_is_refused_with_the_update(tmp_path: Path, good: Path) -> None:
    """What a newer dflash-convert wrote is not mended by an older one."""
    broken = edited(good, tmp_path / "broken.gguf", dflash__format_version=f.u32(99))
    found = look(broken)

    assert "later dflash-convert" in found["defects"][0]["what"]
    assert found["repair"] is None


def test_published_name_compares_and_mends(tmp_path: Path) -> None:
    """--published says which draft it is: any difference is then a defect, and the same name mends it."""
    good = trained_pair.draft_gguf("v1")
    broken = edited(
        good, tmp_path / "broken.gguf", dflash__rope__freq_base=f.f32(1e4), dflash__attention__sliding_window=f.u32(32),
    )  # fmt: skip
    assert 0 == CliRunner().invoke(inspect, [str(broken)]).exit_code  # a difference is a warning
    assert "published was 1000000.0" in CliRunner().invoke(inspect, [str(broken)]).stdout

    assert good.read_bytes() == mended(broken, "--published", "Pair-DFlash")


def test_published_name_of_another_geometry_is_a_usage_error() -> None:
    """A v1 draft is not the DFlash 2 of the same target."""
    path = trained_pair.draft_gguf("v1")
    done = CliRunner().invoke(inspect, [str(path), "--published", "Pair-DFlash2"])

    assert (2, True) == (done.exit_code, "another geometry" in done.output)


@pytest.mark.parametrize("key", ["mask_token_id", "target_layer_ids"])
def test_checkpoint_whose_config_lost_a_field_is_mended(tmp_path: Path, key: str) -> None:
    """A checkpoint is converted by the printed command to the file that the whole checkpoint gives."""
    config = json.loads((trained_pair.PAIR / "draft-v1" / "config.json").read_text())
    del config["dflash_config"][key]
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    weights = (trained_pair.PAIR / "draft-v1" / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights)

    assert trained_pair.draft_gguf("v1").read_bytes() == mended(
        folder, "--target", trained_pair.TARGET
    )


def test_names_with_blanks_survive_the_shell(tmp_path: Path, good: Path) -> None:
    """The printed line is a shell's line."""
    broken = edited(good, tmp_path / "my broken 'draft'.gguf", ("dflash.target_layers",))

    assert good.read_bytes() == mended(broken)
