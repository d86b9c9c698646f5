"""The tokenizer rebuilt from GGUF metadata gives the ids of the tokenizer.json it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dflash_gguf.convert.errors import InputError
from dflash_gguf.convert.target import read_target
from dflash_gguf.runtime.tokenizer import NFC, PATTERNS, encode, tokenizer_from_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

TEXTS = [
    "def add(a, b):\n    return a + b  # it's what we've done\n\n\n",
    '{"id": 12345, "name": "été", "ok": true, "list": [1, 22, 333]}\r\n',
    "counting: 1 2 3 4 5 6 7 8 9 10 11 12 ... 1000; naïve façade ÀÉÎ  \t tabs\t and   spaces   ",
    "中文字符 текст ελληνικά עברית עִבְרִית 👩‍👩‍👧 ﬁ ½ e\u0301",
]
SPECIALS = ["<|end|>", "<|im_start|>"]


def trained(pre: str) -> Tokenizer:
    """A real byte-level BPE of 600 tokens with the pattern called `pre`, as a Hugging Face tokenizer."""
    pattern, ignore_merges = PATTERNS[pre]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)]
    )
    if pre in NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def folder_of(tokenizer: Tokenizer, folder: Path) -> Path:
    """A target folder with this tokenizer and a vocabulary padded beyond it."""
    config = {
        "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": tokenizer.get_vocab_size() + 5, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512, "rope_theta": 10000.0, "eos_token_id": tokenizer.token_to_id("<|end|>"),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=sorted(PATTERNS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer, dict[str, Any]]:  # fmt: skip
    """The Hugging Face tokenizer, ours from its GGUF fields, and the fields; one a pre-tokenizer."""
    theirs = trained(request.param)
    fields = read_target(folder_of(theirs, tmp_path_factory.mktemp("target"))).tokenizer
    return theirs, tokenizer_from_gguf(fields, "target"), fields


PIECES = st.one_of(
    st.sampled_from([*TEXTS, *SPECIALS, "<think>", "'LL", "\r\n\r\n", " \n \n"]),
    st.text(max_size=20),
)


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(PIECES, max_size=6))
def test_ids_equal_those_of_the_tokenizer_json(pair: tuple[Tokenizer, Tokenizer, dict[str, Any]], pieces: list[str]) -> None:  # fmt: skip
    """Any text, special tokens and odd characters among it, gives the same ids through the GGUF."""
    theirs, ours, fields = pair
    text = "".join(pieces)

    assert theirs.encode(text, add_special_tokens=False).ids == encode(ours, fields, text)


def test_decoding_gives_the_text_back(pair: tuple[Tokenizer, Tokenizer, dict[str, Any]]) -> None:
    """Bytes survive; special tokens show only when asked for."""
    _, ours, fields = pair
    text = TEXTS[0] + "<|end|>"

    ids = encode(ours, fields, text)

    assert (TEXTS[0], text) == (ours.decode(ids), ours.decode(ids, skip_special_tokens=False))


def test_a_beginning_token_is_added_only_where_the_metadata_asks(pair: tuple[Tokenizer, Tokenizer, dict[str, Any]]) -> None:  # fmt: skip
    """add_bos_token true puts the id in front; absent or false does not."""
    _, ours, fields = pair
    bos = {"tokenizer.ggml.bos_token_id": 7}

    assert [7, *encode(ours, fields, "abc")] == encode(
        ours, bos | {"tokenizer.ggml.add_bos_token": True}, "abc"
    )
    assert encode(ours, fields, "abc") == encode(
        ours, bos | {"tokenizer.ggml.add_bos_token": False}, "abc"
    )


def small(**changes: Any) -> dict[str, Any]:
    """Fields of a three-token tokenizer; `changes` by their last part."""
    base = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": ["a", "b", "ab"],
        "merges": ["a b"],
        "token_type": [1, 1, 1],
    }
    return {f"tokenizer.ggml.{k}": v for k, v in (base | changes).items() if v is not None}


HOSTILE = {
    "model": "llama", "pre": "no-such", "tokens": None, "merges": None, "token_type": [1],
}  # fmt: skip


@pytest.mark.parametrize("key", HOSTILE)
def test_metadata_that_is_no_tokenizer_is_refused_by_key(key: str) -> None:
    """An unknown kind, a missing list, and lists of different lengths."""
    with pytest.raises(InputError, match=f"tokenizer.ggml.{key}"):
        tokenizer_from_gguf(small(**{key: HOSTILE[key]}), "t.gguf")


@pytest.mark.parametrize("merge", ["ab", "a c", "b a", "a  b", ""])
def test_a_merge_of_unknown_tokens_is_refused(merge: str) -> None:
    """Both parts and the result must be tokens."""
    with pytest.raises(InputError, match=r"merges\[0\]"):
        tokenizer_from_gguf(small(merges=[merge]), "t.gguf")


def test_a_token_twice_is_refused() -> None:
    """Two ids for one text would make ids depend on the reader."""
    with pytest.raises(InputError, match=r"tokens\[2\]"):
        tokenizer_from_gguf(small(tokens=["a", "ab", "a"], merges=[]), "t.gguf")
