"""References come from the checkpoint, and only beside a target GGUF of the same values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_pair
import torch
from click.testing import CliRunner, Result
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.runtime import identity
from dflash_gguf.runtime.record import Record, record_from_json
from dflash_gguf.runtime.reference import main
from safetensors.torch import load_file, save_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random target as checkpoint and GGUF, a v1 draft, and two prompts as tokens."""
    tiny_pair.write_target(tmp_path / "target", eos_token_id=None)
    tiny_pair.write_target_gguf(tmp_path / "target.gguf", tmp_path / "target")
    tiny_pair.write_draft(tmp_path / "v1", tiny_pair.V1)
    lines = [
        {"id": name, "domain": "code", "tokens": list(range(5, 5 + n))}
        for name, n in (("a", 9), ("b", 30))
    ]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def run(folder: Path, *more: str) -> Result:
    names = {"--target-hf": "target", "--target-gguf": "target.gguf", "--draft": "v1", "--prompts": "set.jsonl", "--out": "ref.json"}  # fmt: skip
    args = [x for option, name in names.items() for x in (option, str(folder / name))]
    return CliRunner().invoke(main, [*args, "--max-new", "20", *more])


def reference(folder: Path) -> Record:
    return record_from_json((folder / "ref.json").read_bytes(), "ref.json")


def test_a_reference_names_its_pair_and_has_margins(folder: Path) -> None:
    """Digests of target and draft values, every prompt in order, one margin a decision."""
    done = run(folder)
    record = reference(folder)

    assert 0 == done.exit_code
    assert ["a", "b"] == [r.id for r in record.runs]
    assert (
        identity.target_sha256(read_gguf(folder / "target.gguf")) == record.conditions.target_sha256
    )
    assert all(r.margins and len(r.margins) == len(r.rounds) + 1 for r in record.runs)
    assert (3, 20, "dflash1") == (
        record.conditions.n_max,
        record.conditions.max_new,
        record.conditions.variant,
    )


def test_the_same_command_writes_the_same_bytes(folder: Path) -> None:
    """No date, path or machine in a reference."""
    run(folder)
    first = (folder / "ref.json").read_bytes()
    run(folder)

    assert first == (folder / "ref.json").read_bytes()
    assert str(folder).encode() not in first


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_draft_has_one_digest_in_every_unquantised_container(folder: Path, dtype: str) -> None:
    """The checkpoint's values and those of its GGUFs agree; another value does not."""
    run(folder)
    path = tiny_pair.write_draft_gguf(folder / "v1.gguf", folder / "v1", dtype)
    expected = reference(folder).subject.draft_values_sha256

    assert expected == identity.draft_values_sha256(read_gguf(path))

    weights = load_file(folder / "v1" / "model.safetensors")
    weights["layers.1.mlp.up_proj.weight"][3, 5] += 0.25
    save_file(weights, folder / "v1" / "model.safetensors")
    tiny_pair.write_draft_gguf(path, folder / "v1", dtype)
    assert expected != identity.draft_values_sha256(read_gguf(path))


def test_a_target_gguf_of_other_values_is_refused(folder: Path) -> None:
    """One weight in its last bit: exit 3, the tensor named, no reference written."""
    weights = load_file(folder / "target" / "model.safetensors")
    weights["model.layers.2.mlp.down_proj.weight"].view(torch.int16)[0, 0] += 1
    save_file(weights, folder / "target" / "model.safetensors")

    done = run(folder)

    assert 3 == done.exit_code
    assert "blk.2.ffn_down.weight" in done.stderr
    assert not (folder / "ref.json").exists()


def test_a_target_gguf_of_another_rope_base_is_refused(folder: Path) -> None:
    """Equal tensors under another geometry are another target."""
    path = folder / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 1e6}))

    done = run(folder)

    assert 3 == done.exit_code
    assert "rope_theta" in done.stderr


def test_two_targets_of_one_content_have_one_digest(folder: Path) -> None:
    """Other general metadata changes nothing; another stored type or value does."""
    first = identity.target_sha256(read_gguf(folder / "target.gguf"))
    again = tiny_pair.write_target_gguf(folder / "again.gguf", folder / "target")
    other = tiny_pair.write_target_gguf(folder / "other.gguf", folder / "target", "f32")

    assert first == identity.target_sha256(read_gguf(again))
    assert first != identity.target_sha256(read_gguf(other))
