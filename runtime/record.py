"""What was measured: rounds, the figures defined on them, and the record that makes two runs comparable.

Pure: opens nothing, prints nothing. The definitions of acceptance are here and nowhere else (design.md 4.4):

* a *round* is one verified draft: `d` drafted tokens, of which the leading `a` agree with the target;
* acceptance rate = sum a / sum d;
* mean accepted length = 1 + sum a / rounds: tokens a round gives, the target's own (bonus) token included;
* rate at position i = rounds with a > i / rounds; conditional = the same among rounds that reached position i
  (d > i and a >= i);
* sums, never means of means. A draft that was dropped before it was verified is no round. No rounds: None.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..convert.errors import InputError, NotComparableError
from ..convert.strict_json import parse_json
from .strict import decode

SCHEMA = 1
"""Number of the record's JSON shape and rules; it grows when a field or a definition changes its meaning."""

CUT_RULE = (
    "all block rows run, min(block_size - 1, n_max, remaining - 1) drafts are verified; "
    "remaining: to max_new or to the end of the context"
)

Round = tuple[int, int]
"""(drafted, accepted) of one verified draft."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of some rounds, from which every figure follows. Build it with `tally`."""

    rounds: int
    drafted: int
    accepted: int
    kept: tuple[int, ...]
    """kept[i]: rounds whose draft at position i (0-based) was accepted."""
    reached: tuple[int, ...]
    """reached[i]: rounds that had a draft at position i and accepted all before it."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of drafted tokens, 0 to 1; None without rounds."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens a round gives, bonus token included, 1 to block_size; None without rounds."""
        return (self.rounds + self.accepted) / self.rounds if self.rounds else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Marginal rate of each position: accepted there, of all rounds."""
        return tuple(k / self.rounds for k in self.kept)

    @property
    def per_position_conditional(self) -> tuple[float | None, ...]:
        """Rate of each position among the rounds that reached it; None where none did."""
        return tuple(k / r if r else None for k, r in zip(self.kept, self.reached, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Counts and figures under the names that `--json` prints."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "mean_accepted_length": self.mean_accepted_length,
            "per_position": list(self.per_position),
            "per_position_conditional": list(self.per_position_conditional),
        }


def tally(rounds: Iterable[Round]) -> Tally:
    """The counts of `rounds`; rounds with nothing drafted count nowhere."""
    verified = [(d, a) for d, a in rounds if d]
    positions = range(max((d for d, _ in verified), default=0))
    return Tally(
        rounds=len(verified),
        drafted=sum(d for d, _ in verified),
        accepted=sum(a for _, a in verified),
        kept=tuple(sum(a > i for _, a in verified) for i in positions),
        reached=tuple(sum(d > i and a >= i for d, a in verified) for i in positions),
    )


@dataclass(frozen=True, slots=True)
class Conditions:
    """What must be equal before two records may be compared."""

    target_sha256: str
    """Digest of the target's geometry and tensors (not of its file: metadata may differ)."""
    prompts_sha256: str
    """Digest of ids, domains and token ids of the prompts, in order."""
    variant: str
    block_size: int
    n_max: int
    """Drafted tokens a round at most, after clamping to block_size - 1."""
    max_new: int
    """New tokens a prompt at most."""
    context_length: int
    sampler: str = "greedy"
    template: str = "none"
    """Name or digest of the chat template; `none`: the prompt's text is the prompt."""
    thinking: str = "none"
    causal: str = "file"
    """Block causality: `file` (layer by layer), or an override `none` or `all`."""
    swa: str = "per_row"
    """Where a sliding window is anchored: `per_row` or `anchored` (spec-runtime 1.4)."""
    hidden_rows_after: int = 0
    """Ring capacity beyond which the draft lost rows that its masks would show; 0: it never did."""
    cut_rule: str = CUT_RULE


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to draft and to run."""

    n_max: int
    max_new: int
    context_length: int


@dataclass(frozen=True, slots=True)
class Subject:
    """What was run, and how: differs between comparable records, because this is what is judged."""

    draft_name: str
    draft_sha256: str
    """Of the file."""
    draft_values_sha256: str
    """Of the tensor values as F32; empty for a quantised draft. Equal: the same draft in another container."""
    draft_spec: dict[str, object]
    """The draft's geometry, for the report of what differs."""
    backend: str
    version: str
    kv: str = "full"
    ring: int = 0
    """Capacity of the draft's ring in rows, 0 for a full cache."""
    kv_type: str = "f32"
    isa: str = ""
    threads: int = 1


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt: what went in, what came out, and its rounds."""

    id: str
    domain: str
    prompt_sha256: str
    """`tokens_sha256` of the prompt."""
    prompt_tokens: int
    new_tokens: tuple[int, ...]
    rounds: tuple[Round, ...]
    """Rounds with d >= 1 only, in order."""
    stop: str
    """`eos`, `length` or `context`."""
    margins: tuple[float, ...] | None = None
    """Logit distance by which the closest decision fell: first of the prefill, then of each round. None: not known."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token where output with a draft differs from output without."""

    id: str
    index: int
    """New token, 0-based."""
    plain: int | None
    speculative: int | None
    """Token ids, None where one output had already ended."""
    margin: float | None
    """Target's top-1 minus top-2 logit there, in plain decoding."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and tokens of the whole run; outside the comparison."""

    prefill_s: float
    draft_s: float
    verify_s: float
    total_s: float
    """With the draft, prefill included."""
    plain_prefill_s: float
    plain_total_s: float
    """Without a draft, prefill included."""
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Record:
    """One measured run of a draft over a prompt set. Checks itself; InputError where it contradicts itself."""

    conditions: Conditions
    subject: Subject
    runs: tuple[PromptRun, ...]
    lossless: bool | None = None
    """Every token as the target alone gives it; None: not compared."""
    first_difference: Difference | None = None
    bad_drafts: int = 0
    """Drafts dropped because a logit was not finite."""
    draft_kv_bytes: int = 0
    timings: Timings | None = None

    def __post_init__(self) -> None:
        """Refuse counts that cannot be."""
        check_conditions(self.conditions)
        for run in self.runs:
            check_run(run, self.conditions)
        ids = [run.id for run in self.runs]
        _require(
            len(set(ids)) == len(ids),
            "a prompt is there twice",
            "runs",
            len(ids) - len(set(ids)),
            "distinct ids",
        )
        found = prompts_sha256(self.runs)
        _require(
            found == self.conditions.prompts_sha256, "the prompts' digest does not fit the runs",
            "conditions.prompts_sha256", self.conditions.prompts_sha256, found,
        )  # fmt: skip
        _require(
            self.bad_drafts >= 0 <= self.draft_kv_bytes,
            "a negative count",
            "bad_drafts",
            self.bad_drafts,
            ">= 0",
        )

    @property
    def total(self) -> Tally:
        """The counts of all prompts together."""
        return tally(r for run in self.runs for r in run.rounds)

    @property
    def domains(self) -> dict[str, Tally]:
        """The counts of each domain, domains in the order of the prompt set."""
        names = dict.fromkeys(run.domain for run in self.runs)
        return {
            n: tally(r for run in self.runs if run.domain == n for r in run.rounds) for n in names
        }

    def limited(self, count: int) -> Record:
        """The record of the first `count` prompts alone, as if only they had been run; without timings."""
        if count >= len(self.runs):
            return self
        runs = self.runs[:count]
        conditions = replace(self.conditions, prompts_sha256=prompts_sha256(runs))
        return replace(self, conditions=conditions, runs=runs, timings=None)

    def to_json(self) -> str:
        """The record as JSON text, one prompt a line, with its totals for the reader."""
        body: dict[str, Any] = {"schema": SCHEMA, "totals": self.total.to_json()} | asdict(self)
        runs = body.pop("runs")
        head = json.dumps(body, indent=1, ensure_ascii=False, sort_keys=True)
        lines = ",\n  ".join(
            json.dumps(run, ensure_ascii=False, separators=(",", ":")) for run in runs
        )
        return f'{head[:-2]},\n "runs": [\n  {lines}\n ]\n}}\n'


def tokens_sha256(tokens: Sequence[int]) -> str:
    """sha256 of token ids as little-endian 32-bit integers."""
    ids = array("i", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return hashlib.sha256(ids.tobytes()).hexdigest()


def prompts_sha256(runs: Iterable[PromptRun]) -> str:
    """sha256 of the prompts' ids, domains and token digests, in order."""
    lines = "".join(
        json.dumps([r.id, r.domain, r.prompt_sha256, r.prompt_tokens]) + "\n" for r in runs
    )
    return hashlib.sha256(lines.encode()).hexdigest()


def record_from_json(raw: bytes, where: str) -> Record:
    """The record in `raw`; `where` names the file in errors.

    Raises InputError where a field is missing, unknown, of the wrong type or impossible, and where the stored
    totals are not what the rounds give; NotComparableError where another version of the rules wrote it.
    """
    value = parse_json(raw, where)
    if type(value.get("schema")) is not int:
        raise InputError("not a record", where=where, expected="an object with an integer `schema`")
    if value["schema"] != SCHEMA:
        raise NotComparableError(
            "the record follows other rules", where=where, found=f"schema {value['schema']}",
            expected=f"schema {SCHEMA}", fix="make the reference anew with --update-reference",
        )  # fmt: skip
    totals = value.get("totals")
    body = {k: v for k, v in value.items() if k not in ("schema", "totals")}
    try:
        record = decode(Record, body, "record")
    except InputError as error:
        error.where = f"{where}: {error.where}"
        raise
    if totals != json.loads(json.dumps(record.total.to_json())):
        raise InputError("the totals are not what the rounds give", where=f"{where}: totals", found=json.dumps(totals), expected=json.dumps(record.total.to_json()))  # fmt: skip
    return record


def check_conditions(c: Conditions) -> None:
    """Sizes in range, digests that are digests."""
    for name in ("target_sha256", "prompts_sha256"):
        _require_digest(getattr(c, name), f"conditions.{name}")
    _require(
        2 <= c.block_size <= 1024,
        "block size is not usable",
        "conditions.block_size",
        c.block_size,
        "2 to 1024",
    )
    _require(
        1 <= c.n_max < c.block_size, "n_max does not fit the block", "conditions.n_max", c.n_max, f"1 to {c.block_size - 1}"
    )  # fmt: skip
    for name in ("max_new", "context_length"):
        value = getattr(c, name)
        _require(
            0 < value < 2**31, f"{name} is not a size", f"conditions.{name}", value, "1 to 2^31 - 1"
        )
    _require(
        c.hidden_rows_after >= 0,
        "a negative count",
        "conditions.hidden_rows_after",
        c.hidden_rows_after,
        ">= 0",
    )


def check_run(run: PromptRun, c: Conditions) -> None:
    """The rounds of one prompt can have happened under these conditions."""
    where = f"runs, id {run.id!r}"
    _require_digest(run.prompt_sha256, f"{where}: prompt_sha256")
    _require(
        run.prompt_tokens > 0,
        "an empty prompt",
        f"{where}: prompt_tokens",
        run.prompt_tokens,
        ">= 1",
    )
    for i, (d, a) in enumerate(run.rounds):
        _require(
            1 <= d <= c.n_max and 0 <= a <= d, "a round that cannot be", f"{where}: rounds[{i}]",
            [d, a], f"1 <= drafted <= {c.n_max}, 0 <= accepted <= drafted",
        )  # fmt: skip
    new = len(run.new_tokens)
    _require(
        new <= c.max_new,
        "more tokens than allowed",
        f"{where}: new_tokens",
        new,
        f"at most {c.max_new}",
    )
    least = sum(
        a + 1 for _, a in run.rounds
    )  # an end-of-text token may swallow the bonus of the last round
    _require(
        least <= new,
        "fewer tokens than the rounds gave",
        f"{where}: new_tokens",
        new,
        f"at least {least}",
    )
    if run.margins is not None:
        _require(
            len(run.margins) == len(run.rounds) + 1 and all(m >= 0 and math.isfinite(m) for m in run.margins),
            "margins do not fit the rounds", f"{where}: margins", len(run.margins), f"{len(run.rounds) + 1}, none negative",
        )  # fmt: skip


def _require_digest(text: str, where: str) -> None:
    _require(
        re.fullmatch(r"[0-9a-f]{64}", text) is not None,
        "not a sha256",
        where,
        text,
        "64 hex digits",
    )


def _require(ok: bool, what: str, where: str, found: object, expected: object) -> None:
    if not ok:
        raise InputError(what, where=f"record: {where}", found=found, expected=expected)
