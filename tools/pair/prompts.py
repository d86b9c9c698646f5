"""Cuts the prompt sets from held-out documents. Pure: returns records, writes nothing."""

from __future__ import annotations

from tokenizers import Tokenizer

from . import corpus

LONG_SET = (24, 40, 64, 96, 160, 200, 240, 280)
SMOKE_SET = (20, 32)
SETS = {"pair": (8, LONG_SET), "pair-smoke": (2, SMOKE_SET), "pair-calibration": (100, LONG_SET)}
"""Name of a set: what is added to the seed, and the lengths of its prompts in tokens."""
TO_COME = 136  # tokens of the document that must be left, so that generation goes on naturally


def cut(tokenizer: Tokenizer, text: str, length: int) -> str | None:
    """The longest opening of at most `length` tokens that encodes to itself; None if too short."""
    ids = tokenizer.encode(text).ids
    if len(ids) < length + TO_COME:
        return None
    for size in range(length, length - 8, -1):
        opening = tokenizer.decode(ids[:size], skip_special_tokens=False)
        if tokenizer.encode(opening).ids == ids[:size]:
            return opening
    return None


def prompt_set(tokenizer: Tokenizer, seed: int, lengths: tuple[int, ...]) -> list[dict[str, str]]:
    """One prompt a domain and length, as records with id, domain and prompt."""
    records = []
    for domain in corpus.DOMAINS:
        stream = corpus.documents(seed, domain, held_out=True)
        for number, length in enumerate(lengths, 1):
            opening = None
            while opening is None:
                opening = cut(tokenizer, next(stream), length)
            records.append({"id": f"{domain}-{number:02}", "domain": domain, "prompt": opening})
    return records
