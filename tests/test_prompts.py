"""Prompt sets are read exactly or refused by line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from dflash_gguf.convert.errors import InputError, UsageError
from dflash_gguf.runtime.files import find, read_bytes
from dflash_gguf.runtime.prompts import MAX_LINE, Prompt, parse_prompts, prompt_ids, read_prompts


def line(**fields: Any) -> bytes:
    return json.dumps({"id": "a", "domain": "code", "prompt": "x = 1"} | fields).encode()


def tokens_line(tokens: Any) -> bytes:
    return json.dumps({"id": "a", "domain": "code", "tokens": tokens}).encode()


def test_text_and_tokens_are_read_in_order(tmp_path: Path) -> None:
    """Both kinds of prompt, other keys ignored, a last line without a newline."""
    path = tmp_path / "set.jsonl"
    path.write_bytes(line(note="kept by others") + b"\n\n" + json.dumps({"id": "b", "domain": "json", "tokens": [0, 7]}).encode())  # fmt: skip

    expected = (Prompt("a", "code", "x = 1", None), Prompt("b", "json", None, (0, 7)))
    assert expected == read_prompts(path)


HOSTILE = {
    "empty": b"",
    "blank lines only": b"\n \n",
    "not JSON": b"id: a",
    "a list": b"[1]",
    "truncated": line()[:-3],
    "not UTF-8": line().replace(b"x =", b"\xff ="),
    "byte order mark": b"\xef\xbb\xbf" + line(),
    "NUL in the text": line(prompt="a\0b"),
    "half a surrogate pair": line().replace(b"x = 1", rb"\ud800"),
    "half a surrogate pair in the id": line(id="a").replace(b'"a"', rb'"\udfff"'),
    "line too long": line(prompt="x" * MAX_LINE),
    "duplicate key": b'{"id": "a", "id": "b", "domain": "c", "prompt": "x"}',
    "NaN": b'{"id": "a", "domain": "c", "prompt": "x", "t": NaN}',
    "no id": json.dumps({"domain": "code", "prompt": "x"}).encode(),
    "id is a number": line(id=3),
    "empty id": line(id=""),
    "id with a newline": line(id="a\nb"),
    "no domain": json.dumps({"id": "a", "prompt": "x"}).encode(),
    "neither prompt nor tokens": json.dumps({"id": "a", "domain": "code"}).encode(),
    "both prompt and tokens": line(tokens=[1]),
    "empty prompt": line(prompt=""),
    "prompt is a list": line(prompt=["x"]),
    "no tokens": tokens_line([]),
    "negative token": tokens_line([1, -1]),
    "token is a float": tokens_line([1.0]),
    "token is a bool": tokens_line([True]),
    "token is a string": tokens_line(["1"]),
    "token beyond 32 bits": tokens_line([2**31]),
    "tokens is an object": tokens_line({"0": 1}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_broken_set_is_refused(name: str) -> None:
    """Each fault is refused with the file in the message."""
    with pytest.raises(InputError, match=r"set\.jsonl"):
        parse_prompts(HOSTILE[name], "set.jsonl")


def test_the_broken_line_is_named() -> None:
    """The second of three lines is at fault: the message says line 2."""
    raw = b"\n".join([line(), b"{", line(id="c")])

    with pytest.raises(InputError, match="line 2"):
        parse_prompts(raw, "set.jsonl")


def test_an_id_that_is_there_twice_is_refused_with_both_lines() -> None:
    """Two prompts of one id cannot be paired with a reference."""
    with pytest.raises(InputError, match=r"line 3.*line 1"):
        parse_prompts(b"\n".join([line(), line(id="b"), line()]), "set.jsonl")


@pytest.mark.parametrize(("tokens", "what"), [([100], "vocabulary"), ([1] * 64, "context")])
def test_tokens_that_do_not_fit_the_target_are_refused(tokens: list[int], what: str) -> None:
    """Ids beyond the vocabulary, and prompts as long as the context, name the prompt."""
    prompts = parse_prompts(tokens_line(tokens), "set.jsonl")

    with pytest.raises(InputError, match=rf"{what}.*prompt a"):
        prompt_ids(prompts, lambda _: [], vocab_size=100, context_length=64)


def test_text_without_tokens_is_refused() -> None:
    """A tokenizer that gives nothing leaves nothing to run."""
    with pytest.raises(InputError, match="no tokens"):
        prompt_ids(parse_prompts(line(), "s"), lambda _: [], vocab_size=100, context_length=64)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    """A FIFO without a writer, a device and a folder do not hang and are not read."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="not a regular file"):
            read_bytes(path, 100)


def test_a_file_above_the_limit_is_refused_unread(tmp_path: Path) -> None:
    """A sparse gigabyte is refused by its size."""
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(1 << 30)

    with pytest.raises(InputError, match="too large"):
        read_bytes(path, 1 << 20)


def test_an_unknown_set_names_the_packaged_ones() -> None:
    """Neither a file nor a packaged name: usage error."""
    with pytest.raises(UsageError, match="no file and no packaged set"):
        find("no-such-set", "prompts", ".jsonl")
