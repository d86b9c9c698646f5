"""The target's tokenizer in GGUF form, from a Hugging Face folder; and the hash that says two tokenizers are one.

Knows byte-level BPE, the tokenizer of every target that drafts are published for but Gemma. Which pre-tokenizer a
`tokenizer.json` means is looked up by its exact pattern; an unknown one is refused, because a guess would split
text in another way than the target was trained on. Renders no template.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import fields as kinds
from .errors import InputError, one_line
from .fields import Field, Questions, boolean, encode, i32s, text, texts, u32
from .files import read_limited
from .strict_json import MAX_TOKENIZER, Section, read_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
"""`tokenizer.ggml.token_type`."""

_TAIL = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"

PRE_TOKENIZERS: dict[tuple[str, bool], str] = {
    ("", False): "gpt-2",
    (_SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _TAIL, False): "qwen2",
    (_SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + _TAIL, False): "qwen35",
    (_SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _TAIL, True): "llama-bpe",
    (_SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _TAIL, False): "glm4",
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _SHORT + "?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _SHORT + "?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        False,
    ): "gpt-4o",
}  # fmt: skip
"""(pattern of the Split step, `ignore_merges`) to the name that llama.cpp knows; no pattern: GPT-2's own."""

SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
"""Special tokens copied from the target, and how GGUF spells them; the mask token is the draft's business."""


MAX_TEMPLATE = 1 << 20
"""Bytes of a chat_template.jinja; real ones have some thousands."""


def tokenizer_hash(fields: Mapping[str, Field]) -> str:
    """sha256 over model, pre-tokenizer, tokens and merges: equal text-to-id maps, equal hashes; empty without tokens.

    Hashed are the GGUF bytes of the four values. Token types are left out: converters disagree about them without
    changing a single id.
    """
    if "tokenizer.ggml.tokens" not in fields:
        return ""
    digest = hashlib.sha256()
    for name in ("model", "pre", "tokens", "merges"):
        field = fields.get(f"tokenizer.ggml.{name}")
        digest.update(encode(field) if field else b"\0")
    return digest.hexdigest()


def read_vocabulary(
    folder: Path, vocab_size: int, config: Section, pre: str | None = None
) -> dict[str, Field]:
    """The `tokenizer.*` fields of the tokenizer in `folder`, padded to `vocab_size` rows.

    `pre` overrides the name of the pre-tokenizer. Raises InputError where the tokenizer is missing, is not byte-level
    BPE, or has more tokens than the embedding has rows.
    """
    path = folder / "tokenizer.json"
    raw = read_json(inside(path, folder), MAX_TOKENIZER)
    root = Section(raw, path)
    model = root.section("model")
    if model is None or model.text("type") not in (None, "BPE") or "merges" not in model:
        raise InputError(
            "tokenizer is not byte-level BPE", found=one_line(raw.get("model", {}).get("type") if model else None),
            where=f"{path}: model", expected="BPE with merges", fix="point --target at the target's GGUF instead",
        )  # fmt: skip
    tokens, types = token_table(root, model, vocab_size, path)
    fields = {
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text(pre or pre_tokenizer(root, model, path)),
        "tokenizer.ggml.tokens": texts(tokens),
        "tokenizer.ggml.token_type": i32s(types),
        "tokenizer.ggml.merges": texts(merge_list(model, path)),
    }
    return fields | special_tokens(folder, tokens, config)


def inside(path: Path, folder: Path) -> Path:
    """`path`, refused if a link leads it out of `folder` (the hub's own blob store beside it excepted)."""
    if path.is_symlink():
        real, home = path.resolve(), folder.resolve()
        stores = [p.parent / "blobs" for p in home.parents if p.name == "snapshots"]
        if not any(real.is_relative_to(place) for place in (home, *stores)):
            raise InputError(
                "file is a link that leads out of its folder", found=f"{real}", where=path, expected=f"a file in {folder}"
            )  # fmt: skip
    return path


def token_table(
    root: Section, model: Section, vocab_size: int, path: Path
) -> tuple[list[str], list[int]]:
    """Token texts and types by id; ids without a token are `[PADn]`, unused."""
    vocab = model.section("vocab")
    tokens: list[str | None] = [None] * vocab_size
    types = [UNUSED] * vocab_size

    def add(token: str, number: Any, kind: int) -> None:
        if type(number) is not int or not 0 <= number < vocab_size:
            raise InputError(
                "token id is outside the target's embedding", found=f"{one_line(repr(token), 40)}: {one_line(number, 40)}",
                where=path, expected=f"0 to {vocab_size - 1} (vocab_size in the target's config.json)",
            )  # fmt: skip
        tokens[number], types[number] = token, kind

    for token, number in (vocab.values if vocab else {}).items():
        add(token, number, NORMAL)
    for added in root.values.get("added_tokens") or []:
        entry = Section(added if isinstance(added, dict) else {}, f"{path}: added_tokens")
        content, number = entry.text("content"), entry.integer("id")
        if content is None or number is None:
            raise InputError(
                "added token has no content or no id", found=one_line(added), where=entry.where
            )
        add(content, number, CONTROL if entry.flag("special") else USER_DEFINED)
    if types.count(UNUSED) == vocab_size:
        raise InputError("tokenizer has no tokens", where=path, expected="model.vocab")
    rows = [f"[PAD{i}]" if token is None else token for i, token in enumerate(tokens)]
    refuse_unwritable(rows, path)
    return rows, types


def refuse_unwritable(strings: list[str], path: Path) -> None:
    """Raise InputError where a string has a NUL byte, or half a surrogate pair, which no UTF-8 spells."""
    every = "".join(strings)
    if "\0" in every:
        raise InputError("a token has a NUL byte", where=path, expected="byte-level text")
    try:
        every.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            "a token is no text", found=ascii(every[error.start]), where=path, expected="text that UTF-8 can spell"
        ) from error  # fmt: skip


def merge_list(model: Section, path: Path) -> list[str]:
    """The merges as `left right`; a file has them so, or as pairs."""
    merges = []
    for merge in model.values["merges"] if isinstance(model.values["merges"], list) else [None]:
        pair: Any = merge if isinstance(merge, list) and len(merge) == 2 else (None, None)
        text: Any = f"{pair[0]} {pair[1]}" if type(pair[0]) is type(pair[1]) is str else merge
        if type(text) is not str or text.count(" ") != 1 or text[0] == " " or text[-1] == " ":
            raise InputError(
                "merge is not a pair of tokens",
                found=one_line(merge),
                where=f"{path}: model.merges",
            )
        merges.append(text)
    refuse_unwritable(merges, path)
    return merges


def pre_tokenizer(root: Section, model: Section, path: Path) -> str:
    """llama.cpp's name of the pre-tokenizer, looked up by its exact pattern."""
    steps = root.section("pre_tokenizer")
    listed = steps.values.get("pretokenizers") if steps else None
    every = (
        [s for s in listed if isinstance(s, dict)]
        if isinstance(listed, list)
        else [steps.values if steps else {}]
    )
    kinds_found = [step.get("type") for step in every]
    pattern: Any = next((step.get("pattern") for step in every if step.get("type") == "Split"), {})
    regex = pattern.get("Regex", "") if isinstance(pattern, dict) else ""
    name = PRE_TOKENIZERS.get((regex, bool(model.flag("ignore_merges"))))
    if name is None or set(kinds_found) - {"Split", "ByteLevel"} or "ByteLevel" not in kinds_found:
        raise InputError(
            "pre-tokenizer is not known", found=one_line(regex or kinds_found), where=f"{path}: pre_tokenizer",
            expected=" ".join(sorted(PRE_TOKENIZERS.values())),
            fix="point --target at the target's GGUF, or name it with --pre-tokenizer",
        )  # fmt: skip
    return name


def special_tokens(folder: Path, tokens: list[str], config: Section) -> dict[str, Field]:
    """Ids of the special tokens, `add_*` flags and the chat template, from tokenizer_config.json and config.json."""
    path = folder / "tokenizer_config.json"
    given = Section(read_json(inside(path, folder), MAX_TOKENIZER) if path.exists() else {}, path)
    last_first = tokens[::-1]
    fields: dict[str, Field] = {}
    for name, spelled in SPECIAL.items():
        entry = given.values.get(f"{name}_token")
        content = entry.get("content") if isinstance(entry, dict) else entry
        number = len(tokens) - 1 - last_first.index(content) if content in last_first else None
        if number is None and isinstance(config.values.get(f"{name}_token_id"), int):
            number = config.integer(f"{name}_token_id")
        if number is not None and 0 <= number < len(tokens):
            fields[f"tokenizer.ggml.{spelled}_token_id"] = u32(number)
    for name in ("add_bos_token", "add_eos_token"):
        flag = given.flag(name)
        if flag is not None:
            fields[f"tokenizer.ggml.{name}"] = boolean(flag)
    template = folder / "chat_template.jinja"
    if template.exists():
        source: Any = read_text(inside(template, folder))
    else:
        source = given.values.get("chat_template")
    if isinstance(source, str) and source and "\0" not in source:
        fields["tokenizer.chat_template"] = text(source)
    return fields


def read_text(path: Path) -> str:
    """The text of a template. Raises InputError where it is no regular file, too large or not UTF-8."""
    try:
        return read_limited(path, MAX_TEMPLATE).decode()
    except UnicodeDecodeError as error:
        raise InputError(
            "chat template is not UTF-8", found=f"byte {error.start}", where=path, expected="UTF-8"
        ) from error


BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
BYTE = 6
"""`tokenizer.ggml.token_type` of a token that stands for one byte."""


def tokenizer_fields(fields: Mapping[str, Field], where: object) -> dict[str, Field]:
    """The `tokenizer.*` fields of a GGUF that belong to the target: all but its mask token.

    Raises InputError where the vocabulary contradicts itself.
    """
    found = {
        k: f
        for k, f in fields.items()
        if k.startswith("tokenizer.") and k != "tokenizer.ggml.mask_token_id"
    }
    tokens = Questions(fields, where).texts("tokenizer.ggml.tokens")
    if tokens is None:
        return found

    def refuse(key: str, what: str, seen: object, expected: str) -> None:
        raise InputError(
            what, found=one_line(seen), where=f"{where}: tokenizer.ggml.{key}", expected=expected
        )

    for key in ("token_type", "scores"):
        items = found.get(f"tokenizer.ggml.{key}")
        if items is not None and (items.type != kinds.ARRAY or len(items.value) != len(tokens)):
            refuse(
                key,
                "vocabulary arrays differ in length",
                len(items.value) if items.item else "no array",
                f"{len(tokens)}",
            )
    types = found.get("tokenizer.ggml.token_type")
    if types is not None and types.item in kinds.DTYPES:
        for i in np.flatnonzero(types.value == BYTE):
            if not BYTE_TOKEN.fullmatch(tokens[i]):
                refuse("tokens", "byte token does not name a byte", tokens[i], "<0x00> to <0xFF>")
    for key in found:
        if key.endswith("_token_id"):
            number = Questions(fields, where).integer(key) or 0
            if not 0 <= number < max(len(tokens), 1):
                refuse(
                    key.rpartition(".")[2],
                    "special token is outside the vocabulary",
                    number,
                    f"0 to {len(tokens) - 1}",
                )
    return found


def template_note(fields: Mapping[str, Field]) -> str:
    """A warning where the chat template reaches for Python's insides; it is copied and never rendered here."""
    template = fields.get("tokenizer.chat_template")
    marks = [mark for mark in ("__", "import") if template and mark in str(template.value)]
    return (
        f"the chat template contains {' and '.join(marks)}: it is copied as it is and was not rendered"
        if marks
        else ""
    )
