"""The target's tokenizer from its GGUF metadata, as a `tokenizers.Tokenizer`: same ids as its tokenizer.json.

Byte-level BPE (`tokenizer.ggml.model = gpt2`). Which pattern splits the text is named by `tokenizer.ggml.pre`; a name
that is not in the table is refused, because a guess would give other ids. Renders no template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ..convert.errors import InputError, one_line
from ..convert.target import read_target
from ..convert.vocabulary import CONTROL, NORMAL, PRE_TOKENIZERS, USER_DEFINED
from .prompts import Prompt, prompt_ids

PATTERNS = {
    name: (pattern, ignore_merges) for (pattern, ignore_merges), name in PRE_TOKENIZERS.items()
}
"""`tokenizer.ggml.pre` to the splitting pattern (empty: GPT-2's own) and whether whole words win over merges."""

NFC = ("qwen2", "qwen35")
"""Tokenizers that compose characters first."""


def tokenizer_from_gguf(fields: Mapping[str, Any], where: str) -> Tokenizer:
    """The tokenizer that the `tokenizer.*` values in `fields` describe; `where` names the file in errors.

    Raises InputError where a list is missing, the lists do not fit each other, or the kind is not known.
    """
    model, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    for key, value, known in (("model", model, ["gpt2"]), ("pre", pre, sorted(PATTERNS))):
        if value not in known:
            raise InputError(
                "tokenizer is not known", found=one_line(value), where=f"{where}: tokenizer.ggml.{key}",
                expected=", ".join(known), fix="give the prompts as token ids (`tokens`)",
            )  # fmt: skip
    tokens = strings(fields, "tokens", where)
    types = token_types(fields, len(tokens), where)
    pattern, ignore_merges = PATTERNS[pre]
    vocabulary = vocabulary_of(tokens, types, where)
    merges = merges_of(strings(fields, "merges", where), vocabulary, where)
    result = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    result.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
    if pre in NFC:
        result.normalizer = normalizers.NFC()
    result.decoder = decoders.ByteLevel()
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [t for t, k in zip(tokens, types, strict=True) if k == kind]
        result.add_tokens([AddedToken(t, special=special, normalized=False) for t in added])
    return result


def encode(tokenizer: Tokenizer, fields: Mapping[str, Any], text: str) -> list[int]:
    """The ids of `text`, behind the beginning-of-text token where the metadata asks for one."""
    ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
    bos = fields.get("tokenizer.ggml.bos_token_id")
    return (
        [int(bos), *ids] if fields.get("tokenizer.ggml.add_bos_token") and bos is not None else ids
    )


def target_ids(
    target: Path, prompts: Sequence[Prompt], vocab_size: int, context_length: int
) -> list[list[int]]:
    """Token ids of `prompts` for the GGUF `target`; its tokenizer is built only where a prompt is text."""
    metadata = read_target(target).tokenizer

    @cache
    def tokenizer() -> Tokenizer:
        return tokenizer_from_gguf(metadata, str(target))

    return prompt_ids(
        prompts, lambda text: encode(tokenizer(), metadata, text), vocab_size, context_length
    )


def strings(fields: Mapping[str, Any], key: str, where: str) -> list[str]:
    """The list of strings `tokenizer.ggml.{key}`."""
    value = fields.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise InputError(
            "tokenizer has no such list", found=type(value).__name__, where=f"{where}: tokenizer.ggml.{key}",
            expected="a list of strings",
        )  # fmt: skip
    return value


def token_types(fields: Mapping[str, Any], count: int, where: str) -> list[int]:
    """One type a token; all normal where the metadata is silent."""
    value = fields.get("tokenizer.ggml.token_type")
    if value is None:
        return [NORMAL] * count
    types = [int(v) for v in value]
    if len(types) != count:
        raise InputError(
            "token types do not fit the tokens", found=f"{len(types)} types", where=f"{where}: tokenizer.ggml.token_type",
            expected=f"{count}, one a token",
        )  # fmt: skip
    return types


def vocabulary_of(tokens: list[str], types: list[int], where: str) -> dict[str, int]:
    """Token to id; a token twice is refused unless no text gives it."""
    vocabulary: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if vocabulary.setdefault(token, i) != i and types[i] in (NORMAL, CONTROL, USER_DEFINED):
            raise InputError(
                "a token is there twice", found=one_line(token), where=f"{where}: tokenizer.ggml.tokens[{i}]",
                expected=f"distinct tokens (first at {vocabulary[token]})",
            )  # fmt: skip
    return vocabulary


def merges_of(merges: list[str], vocabulary: dict[str, int], where: str) -> list[tuple[str, str]]:
    """Pairs to merge, in order; each part and each result is a token."""
    pairs = []
    for i, merge in enumerate(merges):
        left, space, right = merge.partition(" ")
        if not space or not {left, right, left + right} <= vocabulary.keys():
            raise InputError(
                "a merge names no tokens", found=one_line(merge), where=f"{where}: tokenizer.ggml.merges[{i}]",
                expected="two tokens that make a third",
            )  # fmt: skip
        pairs.append((left, right))
    return pairs
