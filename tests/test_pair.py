"""The committed example pair: published layouts, one tokenizer, held-out prompts, a size that fits."""

import hashlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from pair import corpus, export, prompts, tokenizer  # noqa: E402
from pair.draft import SHAPES, Draft  # noqa: E402
from pair.target import Geometry, Target  # noqa: E402

PAIR, SETS = ROOT / "examples/pair", ROOT / "manifests/prompts"
TARGET_GGUF = PAIR / "Pair-Target-BF16.gguf"
MODELS = {"target": lambda: Target(Geometry())} | {
    name: lambda shape=shape: Draft(Geometry(), shape) for name, shape in SHAPES.items()
}


def config(name: str) -> dict[str, Any]:
    return json.loads((PAIR / name / "config.json").read_text())


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    return gguf.GGUFReader(TARGET_GGUF)


@pytest.fixture(scope="module")
def hf_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(PAIR / "target/tokenizer.json"))


@pytest.fixture(scope="module")
def records() -> list[dict[str, str]]:
    lines = [line for n in ("pair", "pair-smoke") for line in (SETS / f"{n}.jsonl").open()]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_bf16_with_the_published_names_and_shapes(name: str) -> None:
    """Every tensor of the model is in the file under its published name, and nothing else is."""
    expected = {key: list(value.shape) for key, value in MODELS[name]().state_dict().items()}
    with safe_open(PAIR / name / "model.safetensors", framework="pt") as file:
        found = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
    assert {key: value.get_shape() for key, value in found.items()} == expected
    assert {value.get_dtype() for value in found.values()} == {"BF16"}


@pytest.mark.parametrize(
    ("name", "per_layer", "beside"), [("draft-v1", 11, 3), ("draft-v2", 15, 6)]
)
def test_drafts_have_the_published_tensor_count(name: str, per_layer: int, beside: int) -> None:
    """11 tensors a layer and 3 for v1, 15 and 6 for v2; no embeddings, no head, no prefix."""
    with safe_open(PAIR / name / "model.safetensors", framework="pt") as file:
        keys = set(file.keys())
    assert len(keys) == per_layer * config(name)["num_hidden_layers"] + beside
    assert not any("embed_tokens" in k or "lm_head" in k or k.startswith("model.") for k in keys)


def test_v1_config_is_flat_and_leaves_causality_out() -> None:
    """Flat generation of keys; mixed layers; is_causal absent, so each layer's type decides."""
    c = config("draft-v1")
    assert c["architectures"] == ["DFlashDraftModel"]
    assert set(c["dflash_config"]) == {"mask_token_id", "target_layer_ids"}
    assert {"block_size", "rope_theta", "rope_scaling", "num_target_layers", "torch_dtype"} <= set(
        c
    )
    assert not {"is_causal", "rope_parameters", "dtype"} & set(c)
    assert set(c["layer_types"]) == {"sliding_attention", "full_attention"}


def test_v2_config_is_nested_and_not_causal() -> None:
    """Nested generation of keys: nothing of dflash_config at the top, theta in rope_parameters."""
    c = config("draft-v2")
    assert c["architectures"] == ["DFlash2DraftModel"]
    assert not {"block_size", "rope_theta", "rope_scaling", "torch_dtype"} & set(c)
    assert c["rope_parameters"] == {"rope_theta": 1_000_000, "rope_type": "default"}
    assert c["is_causal"] is False
    assert c["dflash_config"].items() >= {"block_size": 8, "conv_kernel_size": 2}.items()


@pytest.mark.parametrize("name", SHAPES)
def test_configs_say_what_the_model_that_was_trained_is(name: str) -> None:
    """The committed config equals the one the trained shape writes; tensors decide nothing alone."""
    assert config(name) == export.draft_config(Geometry(), SHAPES[name])


@pytest.mark.parametrize("name", SHAPES)
def test_captured_layers_are_irregular_and_below_the_last(name: str) -> None:
    """A reader that guesses the ids gets them wrong; llama.cpp aborts on the last layer."""
    ids, count = (
        config(name)["dflash_config"]["target_layer_ids"],
        config("target")["num_hidden_layers"],
    )
    step = (count - 3 - 1) / (len(ids) - 1)
    assert max(ids) < count - 1
    assert ids != [round(1 + i * step) for i in range(len(ids))]


def test_gguf_says_what_the_target_config_says(reader: gguf.GGUFReader) -> None:
    """Geometry, RoPE base and eps of the GGUF are the folder's."""
    c = config("target")
    names = {
        "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "rope.freq_base": "rope_theta",
        "context_length": "max_position_embeddings",
    }
    found = {key: reader.fields[f"qwen3.{key}"].contents() for key in names}
    assert {key: c[name] for key, name in names.items()} == found


def test_gguf_holds_the_bytes_of_the_target_folder(reader: gguf.GGUFReader) -> None:
    """Every matrix has the same BF16 bytes in both files."""
    sys.path.insert(0, str(ROOT / "tools"))
    import target_gguf

    there = {t.name: t for t in reader.tensors}
    with safe_open(PAIR / "target/model.safetensors", framework="pt") as file:
        names = list(file.keys())
        assert sorted(there) == sorted(target_gguf.gguf_name(n) for n in names)
        for name in names:
            value, tensor = file.get_tensor(name), there[target_gguf.gguf_name(name)]
            if value.ndim == 2:
                want = hashlib.sha256(value.view(dtype=__import__("torch").uint8).numpy().tobytes())
                assert hashlib.sha256(tensor.data.tobytes()).digest() == want.digest(), name


def test_gguf_has_the_ids_of_the_tokenizer_json(
    reader: gguf.GGUFReader, hf_tokenizer: Tokenizer
) -> None:
    """Same token for every id, same merges in the same order, same special ids."""
    vocab = hf_tokenizer.get_vocab(with_added_tokens=True)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert {token: i for i, token in enumerate(tokens)} == vocab
    merges = json.loads(hf_tokenizer.to_str())["model"]["merges"]
    assert reader.fields["tokenizer.ggml.merges"].contents() == [" ".join(m) for m in merges]
    special = {"eos": tokenizer.EOS_ID, "padding": tokenizer.EOS_ID, "mask": tokenizer.MASK_ID}
    keys = {role: f"tokenizer.ggml.{role}_token_id" for role in special}
    assert {role: reader.fields[key].contents() for role, key in keys.items()} == special
    assert reader.fields["tokenizer.ggml.pre"].contents() == "qwen2"


@pytest.mark.parametrize("domain", corpus.DOMAINS)
def test_corpus_depends_on_the_seed_alone(domain: str) -> None:
    """The same seed gives the same documents, another seed gives others."""

    def some(seed: int) -> list[str]:
        return list(itertools.islice(corpus.documents(seed, domain), 5))

    assert some(7) == some(7)
    assert some(7) != some(8)


def test_prompts_are_cut_from_documents_that_are_never_trained_on(
    records: list[dict[str, str]],
) -> None:
    """A prompt's first line is on the held-out side, and training documents never are."""
    whole = [r for r in records if "\n" in r["prompt"]]
    assert len(whole) == len(records)
    assert all(corpus.is_held_out(r["prompt"]) for r in whole)
    texts = [text for _, text in itertools.islice(corpus.mixed(0), 400)]
    assert not any(corpus.is_held_out(text) for text in texts)
    assert not any(r["prompt"] in text for r in records for text in texts)


def test_prompt_sets_are_remade_from_seed_and_tokenizer(
    hf_tokenizer: Tokenizer, records: list[dict[str, str]]
) -> None:
    """The committed sets are what tools/train_pair.py cuts: 32 and 8 prompts, ids unique in a set."""
    made = []
    for lengths in (prompts.LONG_SET, prompts.SMOKE_SET):
        made += prompts.prompt_set(hf_tokenizer, len(lengths), lengths)
    assert made == records
    assert len(records) == 32 + 8


def test_several_prompts_reach_beyond_twice_the_window(
    hf_tokenizer: Tokenizer, records: list[dict[str, str]]
) -> None:
    """In every domain at least three prompts alone are longer than two windows."""
    window = max(shape.sliding_window for shape in SHAPES.values())
    long = [r["domain"] for r in records if len(hf_tokenizer.encode(r["prompt"]).ids) > 2 * window]
    assert all(long.count(domain) >= 3 for domain in corpus.DOMAINS)


def test_pair_stays_under_40_megabytes() -> None:
    """All committed files of the pair together."""
    assert sum(p.stat().st_size for p in PAIR.rglob("*") if p.is_file()) < 40_000_000


def test_files_name_no_path_and_no_host() -> None:
    """Neither configs nor GGUF header hold an absolute path."""
    heads = [p.read_bytes()[:60_000] for p in PAIR.rglob("*") if p.is_file()]
    assert not any(word in head for head in heads for word in (b"/tmp/", b"/home/", b"/root/"))
