"""The generated corpus: counting, JSON records, templated code, grammar-made prose.

Every document is a pure function of a seed, and its first line decides whether it may be trained on
(`is_held_out`): prompts are cut from held-out documents only, so no prompt can be in the training text.
Knows nothing of tokens or models.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random

DOMAINS = ("counting", "json", "code", "prose")
PROSE = (
    "animals",
    "people",
    "places",
    "things",
    "adjectives",
    "moves",
    "deeds",
    "adverbs",
    "times",
    "links",
)
HELD_OUT_SHARE = 16  # one first line in sixteen is never trained on


@cache
def words() -> dict[str, list[str]]:
    """The word lists of words.toml by name."""
    lists = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))
    return {name: v.split() if isinstance(v, str) else v for name, v in lists.items()}


class Bag:
    """Draws without replacement and refills when empty: a text that does not repeat itself."""

    def __init__(self, rng: Random, items: list[str]):
        self.rng, self.items, self.left = rng, items, list[str]()

    def draw(self) -> str:
        """The next item; every item comes once before any comes again."""
        if not self.left:
            self.left = self.rng.sample(self.items, len(self.items))
        return self.left.pop()


def counting(rng: Random) -> str:
    """A sequence with a constant step, in one of several spellings."""
    step = rng.choice([1, 1, 1, 2, 2, 3, 4, 5, 5, 10, 10, 20, 25, 50])
    first, thing = rng.randrange(0, 600), rng.choice(words()["things"])
    style = rng.choice(["comma", "comma", "space", "line", "step", "thing", "pair"])
    amount = {"comma": 110, "space": 130, "line": 130, "step": 42, "thing": 70, "pair": 45}[style]
    amount = rng.randrange(amount * 7 // 10, amount)
    if rng.random() < 0.25:
        first, step = first + step * amount, -step
    values = [first + step * i for i in range(amount)]
    way = "up" if step > 0 else "down"
    head = f"Count {way} from {first} by {abs(step)}, {style}, {thing}:\n"
    if style == "comma":
        body = ", ".join(map(str, values)) + "."
    elif style == "space":
        body = " ".join(map(str, values))
    elif style == "line":
        body = "\n".join(map(str, values))
    elif style == "step":
        body = "\n".join(f"step {i + 1}: {v}" for i, v in enumerate(values))
    elif style == "thing":
        body = "\n".join(f"{v} {thing}s" for v in values)
    else:
        body = "\n".join(f"{v} then {v + step}" for v in values)
    return f"{head}{body}\nDone.\n"


def _field(rng: Random, key: str) -> Callable[[int], object]:
    """The value of one JSON field as a function of the record number."""
    shift, cycle = rng.randrange(8), rng.choice([2, 3, 4])
    listed = {
        "colour": words()["colours"],
        "kind": words()["kinds"],
        "city": words()["cities"],
        "state": words()["states"],
    }
    if key in listed:
        some = rng.sample(listed[key], cycle)
        return lambda i: some[i % cycle]
    if key == "name":
        stem = rng.choice(words()["things"])
        return lambda i: f"{stem}-{i}"
    if key == "tags":
        tags = rng.sample(words()["colours"], 2)
        return lambda i: tags
    if key == "size":
        unit = rng.choice(words()["units"])
        return lambda i: {"value": 10 + shift, "unit": unit}
    if key == "active":
        return lambda i: i % 2 == shift % 2
    step = rng.choice([1, 2, 5, 10])
    return lambda i: 100 + step * i


def records(rng: Random) -> str:
    """A list of JSON records with one schema; every value follows from the record before it."""
    pool = ["name", "colour", "kind", "city", "state", "tags", "size", "active", "price"]
    keys = ["id", *rng.sample(pool, rng.randrange(3, 6))]
    fields = {key: _field(rng, key) for key in keys[1:]}
    first, title = (
        rng.randrange(1, 900),
        f"{rng.choice(words()['cities'])} {rng.choice(words()['kinds'])}",
    )
    wide = rng.random() < 0.25
    amount = rng.randrange(6, 9) if wide else rng.randrange(9, 14)
    lines = []
    for number in range(first, first + amount):
        record = {"id": number} | {key: make(number) for key, make in fields.items()}
        lines.append(json.dumps(record, indent=2 if wide else None))
    return f'{{"list": "{title} {first}", "records": [\n' + ",\n".join(lines) + "\n]}\n"


def _loop(rng: Random, noun: str, one: str, extra: str) -> list[str]:
    compare, total = rng.choice(["<", ">", "==", "!="]), rng.choice(["total", "result", "best"])
    return [
        f"    {total} = {rng.choice(['0', '1', extra])}",
        f"    for {one} in {noun}:",
        f"        if {one} {compare} {extra}:",
        f"            {total} {rng.choice(['+=', '-=', '*='])} {rng.choice([one, '1', extra])}",
        f"    return {total}",
    ]


def _gather(rng: Random, noun: str, one: str, extra: str) -> list[str]:
    out, call = rng.choice(["out", "kept", "found"]), rng.choice(["append", "add"])
    return [
        f"    {out} = {'[]' if call == 'append' else 'set()'}",
        f"    for {one} in {noun}:",
        f"        {out}.{call}({one} {rng.choice('+-*%')} {extra})",
        f"    return {rng.choice([out, f'sorted({out})', f'len({out})'])}",
    ]


def _guard(rng: Random, noun: str, one: str, extra: str) -> list[str]:
    return [
        f"    if not {noun}:",
        f"        return {rng.choice(['None', '[]', '0', extra])}",
        f"    if len({noun}) {rng.choice(['<', '>'])} {extra}:",
        f'        raise ValueError("{rng.choice(["too many", "not enough", "wrong"])} {noun}")',
        f"    return [{one} for {one} in {noun} if {one} {rng.choice(['<', '>', '!='])} {extra}]",
    ]


def _while(rng: Random, noun: str, one: str, extra: str) -> list[str]:
    index = rng.choice(["i", "index", "position"])
    return [
        f"    {index} = {rng.choice(['0', '1', extra])}",
        f"    while {index} < len({noun}):",
        f"        {one} = {noun}[{index}]",
        f"        {index} += {rng.choice(['1', '2', extra])}",
        f"        {rng.choice(['print', 'show', 'write'])}({one}, {extra})",
    ]


def code(rng: Random) -> str:
    """A module of small functions; names are chosen once a function and then used again."""
    verbs, nouns, scalars = (
        Bag(rng, words()["verbs"]),
        Bag(rng, words()["nouns"]),
        Bag(rng, words()["scalars"]),
    )
    lines = [
        f'"""Module {rng.randrange(1000)}: {rng.choice(words()["kinds"])} {rng.choice(words()["nouns"])}."""'
    ]
    for _ in range(rng.randrange(6, 9)):
        noun, extra = nouns.draw(), scalars.draw()
        name = f"{verbs.draw()}_{noun}"
        body = rng.choice([_loop, _gather, _guard, _while])(rng, noun, noun[:-1], extra)
        note = f'    """{name.split("_")[0].capitalize()} {noun} with {extra}."""'
        lines += ["", "", f"def {name}({noun}, {extra}):", note, *body]
    return "\n".join(lines) + "\n"


def prose(rng: Random) -> str:
    """Sentences from a small grammar; words are drawn from bags, so nothing comes back soon."""
    bag = {name: Bag(rng, words()[name]) for name in PROSE}

    def draw(name: str) -> str:
        return bag[name].draw()

    def actor() -> str:
        kind = "people" if rng.random() < 0.7 else "animals"
        return (
            f"the {draw('adjectives')} {draw(kind)}" if rng.random() < 0.6 else f"the {draw(kind)}"
        )

    def clause() -> str:
        if rng.random() < 0.5:
            return f"{actor()} {draw('moves')} {draw('adverbs')} to the {draw('places')}"
        thing = f"{draw('adjectives')} {draw('things')}"
        return f"{actor()} {draw('deeds')} the {thing} near the {draw('places')}"

    def sentence() -> str:
        text = clause()
        if rng.random() < 0.4:
            text = f"{draw('times')}, {text}"
        if rng.random() < 0.5:
            text = f"{text}, {draw('links')} {clause()}"
        return text[0].upper() + text[1:] + "."

    title = f"The {draw('people')}, the {draw('animals')} and the {draw('things')} of the {draw('places')}"
    groups = [" ".join(sentence() for _ in range(rng.randrange(3, 7))) for _ in range(8)]
    text = title + "\n\n"
    for group in groups:
        if len(text) < 1700:
            text += group + "\n\n"
    return text.rstrip("\n") + "\n"


MAKERS: dict[str, Callable[[Random], str]] = {
    "counting": counting,
    "json": records,
    "code": code,
    "prose": prose,
}


def is_held_out(text: str) -> bool:
    """True when the first line of `text` is one that is never trained on."""
    first = text.split("\n", 1)[0]
    return hashlib.sha256(first.encode()).digest()[0] % HELD_OUT_SHARE == 0


def documents(seed: int, domain: str, held_out: bool = False) -> Iterator[str]:
    """An endless, seeded stream of documents of one domain from one side of the split."""
    rng = Random(f"{seed}/{domain}")
    while True:
        text = MAKERS[domain](rng)
        if is_held_out(text) == held_out:
            yield text


def mixed(seed: int, domains: tuple[str, ...] = DOMAINS) -> Iterator[tuple[str, str]]:
    """An endless, seeded stream of (domain, training document), the domains in turn."""
    streams = {domain: documents(seed, domain) for domain in domains}
    while True:
        for domain in domains:
            yield domain, next(streams[domain])
