"""Reading safetensors checkpoints and their configs: what is taken, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from dflash_gguf.convert.checkpoint import open_checkpoint
from dflash_gguf.convert.dialects import spec_from_config
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.places import config_fields
from dflash_gguf.convert.safetensors import read_safetensors
from dflash_gguf.convert.strict_json import Section

SHAPES = tiny.draft_shapes()


def spec_of(config: dict[str, Any], given: dict[str, Any] | None = None, v2: bool = False) -> Any:
    """The spec of a config with the tiny draft's tensors."""
    return spec_from_config(Section(config, "config.json"), tiny.draft_shapes(v2), given)


def changed(v2: bool = False, nested: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """The tiny config with top-level and dflash_config entries replaced; None removes one."""
    config = tiny.draft_config(v2)
    config["dflash_config"] |= nested or {}
    config |= top
    config["dflash_config"] = {k: v for k, v in config["dflash_config"].items() if v is not None}
    return {k: v for k, v in config.items() if v is not None}


def test_offsets_point_at_the_bytes(tmp_path: Path) -> None:
    """Every span of the table holds exactly the tensor that was written."""
    tensors = tiny.draft_tensors()
    tiny.write_safetensors(tmp_path / "m.safetensors", tensors)
    raw = (tmp_path / "m.safetensors").read_bytes()

    for name, t in read_safetensors(tmp_path / "m.safetensors").tensors.items():
        assert raw[t.offset : t.offset + t.nbytes] == tensors[name][1].tobytes()


def test_single_sharded_and_file_are_one_checkpoint(tmp_path: Path) -> None:
    """One file, three shards with an index, and the bare file give the same tensors."""
    single = open_checkpoint(tiny.write_draft(tmp_path / "one"))
    shards = open_checkpoint(tiny.write_draft(tmp_path / "three", shards=3))
    bare = open_checkpoint(tmp_path / "one" / "model.safetensors")

    assert single.shapes == bare.shapes
    assert dict(sorted(single.shapes.items())) == dict(sorted(shards.shapes.items()))


def test_flat_and_nested_configs_describe_the_same_draft() -> None:
    """z-lab's two generations of config.json are two spellings of one spec."""
    flat = changed()
    nested = changed(
        nested={"block_size": 4}, block_size=None, rope_theta=None, torch_dtype=None,
        rope_parameters={"rope_theta": 1e7, "rope_type": "default"},
    )  # fmt: skip

    assert tiny.tiny_spec() == spec_of(flat)
    assert tiny.tiny_spec() == spec_of(nested)
    assert tiny.tiny_spec_v2() == spec_of(tiny.draft_config(v2=True), v2=True)


THETA: list[tuple[dict[str, Any], float | None]] = [
    ({"rope_theta": 5e5}, 5e5),
    ({"rope_parameters": {"rope_theta": 5e5}}, 5e5),
    ({"rope_theta": 500000, "rope_parameters": {"rope_theta": 5e5}}, 5e5),
    ({"rope_scaling": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5),
    ({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 5e5}}, None),
    ({"rope_parameters": {"rope_type": "default"}}, None),
    ({}, None),
]


@pytest.mark.parametrize(("entries", "expected"), THETA)
def test_rope_base_is_found_wherever_it_stands_and_never_invented(
    entries: dict[str, Any], expected: float | None
) -> None:
    """Nested, legacy, or both and equal are taken; two values or none are refused."""
    config = changed(rope_theta=None, rope_scaling=None) | entries
    if expected is None:
        with pytest.raises(InputError, match="rope_theta"):
            spec_of(config)
    else:
        assert expected == spec_of(config).rope_theta


CAUSAL: list[tuple[dict[str, Any], dict[str, Any], tuple[bool, bool]]] = [
    ({}, {}, (True, False)),
    ({"is_causal": False}, {}, (False, False)),
    ({"is_causal": True}, {}, (True, True)),
    ({}, {"causal": True}, (True, True)),
    ({"is_causal": False}, {"causal": False}, (False, False)),
]


@pytest.mark.parametrize(("top", "nested", "expected"), CAUSAL)
def test_silent_config_means_causal_sliding_layers_only(
    top: Any, nested: Any, expected: tuple[bool, bool]
) -> None:
    """Without is_causal a sliding layer is causal and a full one sees the whole block, as in the reference."""
    assert expected == spec_of(changed(nested=nested, **top)).causal_layers


WINDOWS: list[tuple[dict[str, Any], dict[str, Any], tuple[int, tuple[bool, bool]] | None]] = [
    ({}, {}, (8, (True, False))),
    ({"use_sliding_window": None}, {}, (8, (True, False))),
    ({"layer_types": ["full_attention"] * 2}, {}, (0, (False, False))),
    ({"layer_types": ["full_attention"] * 2, "use_sliding_window": False}, {}, (0, (False, False))),
    ({"layer_types": None, "use_sliding_window": False}, {}, (0, (False, False))),
    ({"layer_types": None, "use_sliding_window": None, "max_window_layers": None}, {"use_swa": True, "swa_window_size": 8}, (8, (True, True))),
    ({"sliding_window": None}, {"swa_window_size": 8}, (8, (True, False))),
    ({"use_sliding_window": False}, {}, None),
    ({"sliding_window": None}, {}, None),
    ({"layer_types": None}, {}, None),
    ({"layer_types": ["sliding_attention"]}, {}, None),
    ({"layer_types": ["sliding_attention", "chunked_attention"]}, {}, None),
    ({}, {"swa_window_size": 16}, None),
]  # fmt: skip


@pytest.mark.parametrize(("top", "nested", "expected"), WINDOWS)
def test_window_and_pattern_are_taken_together_or_refused(
    top: Any, nested: Any, expected: Any
) -> None:
    """A layer slides with a window or not at all; a config that contradicts itself is refused."""
    config = changed(nested=nested, **top)
    if expected is None:
        with pytest.raises(InputError):
            spec_of(config)
    else:
        spec = spec_of(config)
        assert expected == (spec.sliding_window, spec.sliding_layers)


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("mask_token_id", {}, {"mask_token_id": None}), ("mask token", {}, {"mask_token_id": 300}),
    ("mask token", {}, {"mask_token_id": -1}), ("wrong type", {}, {"mask_token_id": "7"}),
    ("block_size", {"block_size": None}, {}), ("block_size", {}, {"block_size": 8}),
    ("target_layer_ids", {}, {"target_layer_ids": None}), ("wrong type", {}, {"target_layer_ids": ["0", "2"]}),
    ("wrong type", {}, {"target_layer_ids": [True, 2]}), ("fc does not fit", {}, {"target_layer_ids": [0, 1, 2]}),
    ("out of range", {}, {"target_layer_ids": [0, 4]}), ("twice", {}, {"target_layer_ids": [2, 2]}),
    ("fc does not fit", {}, {"target_layer_ids": []}), ("wrong type", {"dflash_config": [1]}, {}),
    ("target_layer_ids", {"dflash_config": {}}, {}), ("not a DFlash draft", {"architectures": ["Qwen3ForCausalLM"]}, {}),
    ("not a DFlash draft", {"architectures": None}, {}), ("wrong type", {"architectures": "DFlashDraftModel"}, {}),
    ("wrong type", {"hidden_size": 64.0}, {}), ("wrong type", {"hidden_size": "64"}, {}),
    ("wrong type", {"hidden_size": True}, {}), ("not a size", {"hidden_size": 0}, {}), ("not a size", {"hidden_size": -64}, {}),
    ("out of range", {"hidden_size": 2**63}, {}), ("too many draft layers", {"num_hidden_layers": 10**9, "layer_types": None, "use_sliding_window": False}, {}),
    ("attention biases that the tensors lack", {"attention_bias": True}, {}),
    ("contradict", {"aux_hidden_state_layer_ids": [0, 2]}, {}),
    ("RoPE scaling", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, {}),
    ("rope_scaling.factor", {"rope_scaling": {"rope_type": "yarn"}}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "top", "nested"), REFUSED)
def test_config_that_cannot_be_meant_is_refused(
    what: str, top: dict[str, Any], nested: dict[str, Any]
) -> None:
    """Missing, wrong and contradictory values are named; nothing is guessed."""
    config = (
        changed(nested=nested, **top) if "dflash_config" not in top else tiny.draft_config() | top
    )
    with pytest.raises(InputError) as error:
        spec_of(config)

    assert what in str(error.value)


def test_ids_that_count_from_one_are_shifted_once() -> None:
    """speculators' aux ids are one more than z-lab's ids, alone or beside them."""
    alone = changed(nested={"target_layer_ids": None}, aux_hidden_state_layer_ids=[1, 3])
    both = changed(eagle_aux_hidden_state_layer_ids=[1, 3])

    assert (0, 2) == spec_of(alone).target_layer_ids
    assert (0, 2) == spec_of(both).target_layer_ids


def test_last_target_layer_may_be_captured() -> None:
    """Ids 0 and N-1 are legal."""
    assert (0, 3) == spec_of(changed(nested={"target_layer_ids": [0, 3]})).target_layer_ids


def test_options_supply_what_a_config_lacks_and_win() -> None:
    """A given field replaces a missing and a contradictory one."""
    config = changed(nested={"mask_token_id": None, "block_size": 8})
    spec = spec_of(
        config,
        {"mask_token_id": 5, "block_size": 4, "causality": "none", "target_layer_ids": (1, 3)},
    )

    assert (5, 4, (1, 3), (False, False)) == (
        spec.mask_token_id,
        spec.block_size,
        spec.target_layer_ids,
        spec.causal_layers,
    )


def test_every_value_knows_where_it_came_from() -> None:
    """The source of a value is its place in the config."""
    _, sources = config_fields(Section(tiny.draft_config(v2=True), "config.json"), {})

    assert "rope_parameters.rope_theta" == sources["rope_theta"]
    assert "dflash_config.mask_token_id" == sources["mask_token_id"]


def index_of(folder: Path) -> dict[str, Any]:
    """The index of a sharded checkpoint."""
    found: dict[str, Any] = json.loads((folder / "model.safetensors.index.json").read_text())
    return found


def test_missing_shard_is_named(tmp_path: Path) -> None:
    """A shard that the index names and the folder lacks is refused by its name."""
    folder = tiny.write_draft(tmp_path / "d", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError) as error:
        open_checkpoint(folder)

    assert "model-00002-of-00002.safetensors" in error.value.expected


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "model.bin",
        7,
        "a\0.safetensors",
        "x\\y.safetensors",
    ],
)
def test_index_names_files_of_its_own_folder_only(tmp_path: Path, name: Any) -> None:
    """A path, another suffix or no string is refused before anything is opened."""
    folder = tiny.write_draft(tmp_path / "d", shards=2)
    index = index_of(folder)
    index["weight_map"]["fc.weight"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="not a shard"):
        open_checkpoint(folder)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    """A tensor in another shard than the index says, one too few, and a wrong total are refused."""
    folder = tiny.write_draft(tmp_path / "d", shards=2)
    good = index_of(folder)
    swap = dict(good["weight_map"], **{"fc.weight": "model-00002-of-00002.safetensors"})
    fewer = {k: v for k, v in good["weight_map"].items() if k != "norm.weight"}
    for bad, what in (
        (good | {"weight_map": swap}, "disagree"), (good | {"weight_map": fewer}, "disagree"),
        (good | {"metadata": {"total_size": 1}}, "total_size"), ({"weight_map": {}}, "no weight_map"), ({}, "no weight_map"),
    ):  # fmt: skip
        (folder / "model.safetensors.index.json").write_text(json.dumps(bad))
        with pytest.raises(InputError, match=what):
            open_checkpoint(folder)


def test_folder_must_be_unambiguous(tmp_path: Path) -> None:
    """No weights, two files without an index, and two indexes are refused."""
    empty = tiny.write_draft(tmp_path / "a")
    (empty / "model.safetensors").rename(empty / "weights.bin")
    two = tiny.write_draft(tmp_path / "b")
    tiny.write_safetensors(two / "other.safetensors", {"x": ("F32", np.zeros(1, np.float32))})
    indexes = tiny.write_draft(tmp_path / "c", shards=2)
    (indexes / "other.safetensors.index.json").write_text("{}")
    for folder in (empty, two, indexes):
        with pytest.raises(InputError):
            open_checkpoint(folder)


def test_link_out_of_the_folder_is_refused_and_the_hub_cache_is_not(tmp_path: Path) -> None:
    """A link into the hub's blob store is how its cache works; any other way out is refused."""
    source = tiny.write_draft(tmp_path / "d")
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    blobs = tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (source / name).rename(blobs / name)
        (snapshot / name).symlink_to(Path("../../blobs") / name)
    assert 25 == len(open_checkpoint(snapshot).tensors)

    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "secret.json")
    (tmp_path / "secret.json").write_text((blobs / "config.json").read_text())
    with pytest.raises(InputError, match="leads out"):
        open_checkpoint(snapshot)


def test_one_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    """A shard that repeats another's tensor contradicts the index (hostile-inputs 50)."""
    folder = tiny.write_draft(tmp_path / "d", shards=2)
    index = index_of(folder)
    first = read_safetensors(folder / "model-00001-of-00002.safetensors")
    twice = {
        n: v
        for n, v in tiny.draft_tensors().items()
        if index["weight_map"][n] == "model-00002-of-00002.safetensors"
    }
    name = next(iter(first.tensors))
    tiny.write_safetensors(
        folder / "model-00002-of-00002.safetensors", twice | {name: tiny.draft_tensors()[name]}
    )
    with pytest.raises(InputError, match="disagree"):
        open_checkpoint(folder)


def test_checkpoint_without_tensors_is_refused(tmp_path: Path) -> None:
    """A sound safetensors file that holds nothing is no draft (bugs 4)."""
    folder = tiny.write_draft(tmp_path / "d")
    tiny.write_safetensors(folder / "model.safetensors", {})
    with pytest.raises(InputError, match="no tensors"):
        open_checkpoint(folder)


def test_list_of_other_things_than_strings_is_refused() -> None:
    """layer_types with a number in it."""
    with pytest.raises(InputError, match="wrong type"):
        spec_of(changed(layer_types=["sliding_attention", 7]))
