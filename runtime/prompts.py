"""Prompt sets: JSON lines with `id`, `domain`, and `prompt` (text) or `tokens` (ids); other keys are ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..convert.errors import InputError, one_line
from ..convert.strict_json import parse_json
from .files import read_bytes

MAX_FILE = 64 << 20
MAX_LINE = 4 << 20
MAX_ID = 200


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the set has it: `text` or `tokens`, the other None."""

    id: str
    domain: str
    text: str | None
    tokens: tuple[int, ...] | None


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of the JSONL file at `path`, in its order."""
    return parse_prompts(read_bytes(path, MAX_FILE), str(path))


def parse_prompts(raw: bytes, where: str) -> tuple[Prompt, ...]:
    """The prompts in `raw`; `where` names the file in errors.

    Raises InputError naming the line: bytes that are not UTF-8, NUL, a byte order mark, a line that is no JSON
    object or too long, a field that is missing or of the wrong type, an id that is there twice; and for an empty set.
    """
    if raw.startswith(b"\xef\xbb\xbf"):
        raise InputError(
            "the file starts with a byte order mark", where=where, expected="plain UTF-8"
        )
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(raw.splitlines() if raw else [], 1):
        if not line.strip():
            continue
        prompt = parse_line(line, f"{where}, line {number}")
        if prompt.id in lines:
            raise InputError(
                "a prompt id is there twice", found=one_line(prompt.id), where=f"{where}, line {number}",
                expected=f"distinct ids (first on line {lines[prompt.id]})",
            )  # fmt: skip
        lines[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise InputError("no prompts", where=where, expected="at least one line of JSON")
    return tuple(prompts)


def parse_line(line: bytes, where: str) -> Prompt:
    """The prompt on one line."""
    if len(line) > MAX_LINE:
        raise InputError(
            "the line is too long",
            found=f"{len(line)} bytes",
            where=where,
            expected=f"at most {MAX_LINE}",
        )
    value = parse_json(line, where)
    has = [key for key in ("prompt", "tokens") if key in value]
    if len(has) != 1:
        raise InputError(
            "a prompt is text or tokens", found=" and ".join(has) or "neither", where=where, expected="prompt or tokens"
        )  # fmt: skip
    return Prompt(
        id=name(value, "id", where),
        domain=name(value, "domain", where),
        text=prompt_text(value["prompt"], where) if "prompt" in value else None,
        tokens=prompt_tokens(value["tokens"], where) if "tokens" in value else None,
    )


def wrong(key: str, value: Any, where: str, expected: str) -> NoReturn:
    """Refuse the field `key`."""
    found = one_line(repr(value), 60)
    raise InputError(
        f"{key} is not usable", found=found, where=f"{where}: {key}", expected=expected
    )


def name(value: dict[str, Any], key: str, where: str) -> str:
    """A short printable string."""
    text = value.get(key)
    if not isinstance(text, str) or not 0 < len(text) <= MAX_ID or not text.isprintable():
        wrong(key, text, where, f"1 to {MAX_ID} printable characters")
    return text


def prompt_text(text: Any, where: str) -> str:
    """A non-empty string without NUL."""
    if not isinstance(text, str) or not text or "\0" in text or not encodable(text):
        wrong("prompt", text, where, "Unicode text that is not empty and has no NUL")
    return text


def encodable(text: str) -> bool:
    """False where the text holds half a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def prompt_tokens(tokens: Any, where: str) -> tuple[int, ...]:
    """A non-empty list of ids that are not negative."""
    if not isinstance(tokens, list) or not tokens:
        wrong("tokens", tokens, where, "a list that is not empty")
    for i, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < 2**31:
            wrong(f"tokens[{i}]", token, where, "an integer, 0 to 2^31 - 1")
    return tuple(tokens)


def prompt_ids(
    prompts: Sequence[Prompt],
    encode: Callable[[str], list[int]],
    vocab_size: int,
    context_length: int,
) -> list[list[int]]:
    """The token ids of each prompt; `encode` turns text into ids.

    Raises InputError where an id is outside the vocabulary, a prompt has no token, or leaves the context no room.
    """
    result = []
    for prompt in prompts:
        ids = list(prompt.tokens) if prompt.tokens is not None else encode(prompt.text or "")
        where = f"prompt {prompt.id}"
        if not ids:
            raise InputError("the prompt has no tokens", where=where, expected="at least one")
        if max(ids) >= vocab_size:
            raise InputError(
                "a token is outside the vocabulary", found=max(ids), where=where, expected=f"0 to {vocab_size - 1}"
            )  # fmt: skip
        if len(ids) >= context_length:
            raise InputError(
                "the prompt leaves no room in the context", found=f"{len(ids)} tokens", where=where,
                expected=f"fewer than {context_length}",
            )  # fmt: skip
        result.append(ids)
    return result
