"""What is wrong with a draft's file, and the option of dflash-convert that mends it. Pure but for reading on.

A file that lacks or contradicts a field cannot be read; a stand-in lets the reading go on, to find the next fault. What
the field ought to be is then taken from where it can be known: a config.json, the published draft that this one is, the
other reading of the layer ids. Where it cannot be known the option is named and its value asked for, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .canonical import FORMAT_VERSION
from .checkpoint import open_checkpoint
from .draft import Draft, read_draft
from .errors import DflashError, InputError, UsageError
from .gguf import read_gguf
from .gguf_dialects import OPTIONS, canonical_shapes, keys_of
from .names import ANY
from .published import Published, by_name, candidates, shown
from .runtimes import verdicts
from .spec import from_upstream_layers
from .spelling import READERS, spellings
from .target import Target

STAND_INS: dict[str, Any] = {
    "mask_token_id": 0,
    "block_size": 16,
    "rope_theta": 1e6,
    "sliding_window": 1,
}
"""Values that let the reading go on behind a missing field, to find the next fault; they are never shown or written."""

ASKED = {
    "--mask-token-id": "ID",
    "--target-layer-ids": "I,J,...",
    "--block-size": "ROWS",
    "--rope-theta": "BASE",
    "--sliding-window": "TOKENS",
    "--sliding-layers": "0|1,...",
    "--fc": "transposed|mislabelled",
    "--target": "TARGET",
}
"""Option to what is asked for where its value is not known."""

CONFIG_FIELDS = (*OPTIONS, "causal_layers")
"""What a config.json is asked for, where one is given."""

MULTI_SECTION = "qwen35"
"""Targets whose positions have several components have an architecture that starts like this."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is wrong."""

    error: DflashError
    options: Mapping[str, str] = field(default_factory=dict)
    """Options that mend it, besides converting the file again; a value is empty where it is not known."""
    because: str = ""
    """Where the values come from."""
    mended: bool = True
    """Whether dflash-convert mends it."""

    def to_json(self) -> dict[str, Any]:
        """The error's parts, and how it is mended."""
        parts: dict[str, Any] = dict(self.error.parts())
        parts["options"] = {o: v or None for o, v in self.options.items()}
        return parts | {"known_from": self.because, "mended_by_convert": self.mended}


@dataclass(frozen=True, slots=True)
class Reading:
    """A draft as far as it can be read."""

    draft: Draft | None
    """None where too much is missing to say what it is."""
    errors: Mapping[str, DflashError]
    """What stopped the reading, by the field that a stand-in replaced; the last may stand under an empty name."""

    @property
    def stood_in(self) -> frozenset[str]:
        """Fields that are not known; what the draft says of them means nothing."""
        return frozenset(self.errors) - {"", "fc"}


def read_on(path: Path) -> Reading:
    """The draft at `path`, behind every fault that a stand-in can replace.

    Raises InputError where the first fault is one that cannot.
    """
    errors: dict[str, DflashError] = {}
    given: dict[str, Any] = {}
    while True:
        try:
            return Reading(
                read_draft(path, given, fc="mislabelled" if "fc" in errors else ""), errors
            )
        except InputError as error:
            name = field_of(error)
            value = stand_in(name, path)
            if name == "fc" and name not in errors:
                errors[name] = error
            elif value is not None and name not in given:
                given[name] = value
                errors[name] = error
            elif errors:
                return Reading(None, errors | {"": error})
            else:
                raise


def field_of(error: DflashError) -> str:
    """The field that an error is about, where an option supplies it; empty where none does."""
    named = set(re.findall(r"--[a-z-]+", error.fix))
    about = error.where.rpartition("draft: ")[2]
    if "--fc" in named:
        return "fc"
    return next((n for n, option in OPTIONS.items() if option in named or n == about), "")


def stand_in(name: str, path: Path) -> Any:
    """A value that lets the reading go on, None where none does."""
    if name not in ("target_layer_ids", "sliding_layers"):
        return STAND_INS.get(name)
    if path.is_dir() or path.suffix == ".safetensors":
        shapes: Mapping[str, tuple[int, ...]] = open_checkpoint(path).shapes
        fc = shapes.get("fc.weight") or shapes.get("encoder.fc.weight") or ()
        width, layers = fc[0] if fc else 0, 0
    else:
        file = read_gguf(path)
        fc = canonical_shapes(file, ANY).get("fc.weight", ())
        width = file.ask.integer(f"{file.architecture}.embedding_length") or 0
        layers = file.ask.integer(f"{file.architecture}.block_count") or 0
    if name == "sliding_layers":
        return (True,) * layers if 0 < layers < 512 else None
    taps = max(fc) // width if len(fc) == 2 and width else 0
    return tuple(range(taps)) or None


def find_defects(
    path: Path, reading: Reading, target: Target | None, config: Path | None, named: str
) -> tuple[Defect, ...]:
    """Everything that is wrong with the file at `path`, which was read as far as `reading`.

    `config` and `named` (a published draft) are what the user says is true of it, where they say so.
    """
    draft = reading.draft
    truth = truth_of(path, reading, target, config, named)
    found = [
        missing(name, error, truth) if name in truth.values or name else Defect(error, mended=False)
        for name, error in reading.errors.items()
    ]
    if draft is None:
        return tuple(found)
    found += contradicted(draft, reading, truth)
    if draft.gguf is not None:
        found += [*made_before(draft, target, truth), *unloadable(draft, reading.stood_in)]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Truth:
    """What the fields ought to be, as far as that is known."""

    values: Mapping[str, Any]
    because: str = ""
    options: Mapping[str, str] | None = None
    """The options that supply all of `values` at once, where there are such."""
    sure: bool = False
    """Whether a value of the file that differs is wrong, whatever it is."""
    published: Published | None = None


def truth_of(
    path: Path, reading: Reading, target: Target | None, config: Path | None, named: str
) -> Truth:
    """What is known of the draft from outside its file, else from the other reading of its layer ids."""
    draft, unknown = reading.draft, reading.stood_in
    if config is not None:
        spec = read_draft(path, {}, config, "mislabelled" if "fc" in reading.errors else "").spec
        values = {name: getattr(spec, name) for name in CONFIG_FIELDS}
        return Truth(values, f"in {config.name}", {"--config": str(config)}, sure=True)
    if draft is None:
        return Truth({})
    if named:
        chosen = by_name(named)
        if not chosen.has_geometry(draft.spec):
            raise UsageError(
                "the published draft has another geometry", found=chosen.name, where=path, expected="the draft that this file was made of",
                fix="leave --published out",
            )  # fmt: skip
        values = chosen.values(draft.spec)
        return Truth(values, f"published {chosen.name}", {"--published": chosen.name}, True, chosen)
    likely = [
        p for p in candidates(draft.spec, name_in_file(draft), unknown) if p.is_damaged(draft.spec, unknown)
    ]  # fmt: skip
    if likely:
        best = likely[0]
        equals = [p for p in likely if p.named_in(name_in_file(draft)) == best.named_in(name_in_file(draft))
                  and len(p.differing(draft.spec, unknown)) == len(best.differing(draft.spec, unknown))]  # fmt: skip
        known = best.values(draft.spec)
        agreed = {
            name: value
            for name, value in known.items()
            if all(p.values(draft.spec).get(name) == value for p in equals)
        }
        return Truth(agreed, f"published {best.name}", published=best)
    ids = other_reading(draft, target) if "target_layer_ids" in unknown else None
    return Truth(
        {} if ids is None else {"target_layer_ids": ids}, "the one reading that is possible"
    )


def name_in_file(draft: Draft) -> str:
    """What a GGUF calls its model and its target."""
    if draft.gguf is None:
        return ""
    keys = ("general.name", "general.basename", "general.base_model.0.name")
    return " / ".join(filter(None, map(draft.gguf.ask.text, keys)))


def other_reading(draft: Draft, target: Target | None) -> tuple[int, ...] | None:
    """The only layer ids that the keys of a file can mean, None where there are several or none.

    A key holds what it says, or ids of the other convention: raw where id + 1 is due, or shifted where the raw id is due.
    """
    file = draft.gguf
    if file is None:
        return None
    raw, up = (first_ids(draft, name) for name in ("target_layer_ids", "target_layers"))
    depth = target.spec.num_hidden_layers if target else draft.spec.num_target_layers or 2**31
    if raw is not None and up is not None:
        readings = [raw, from_upstream_layers(up)]
    else:
        plain = raw if raw is not None else from_upstream_layers(up or ())
        step = -1 if raw is not None else 1
        readings = [plain, tuple(i + step for i in plain)]
    possible = {
        ids
        for ids in readings
        if ids and list(ids) == sorted(set(ids)) and ids[0] >= 0 and ids[-1] < depth
    }
    return possible.pop() if len(possible) == 1 else None


def first_ids(draft: Draft, name: str) -> tuple[int, ...] | None:
    """The layer ids as the first key of a field spells them."""
    assert draft.gguf is not None
    keys = keys_of(name, draft.gguf.architecture)
    return next((v for key in keys if (v := draft.gguf.ask.integers(key)) is not None), None)


def missing(name: str, error: DflashError, truth: Truth) -> Defect:
    """The defect of a field that stopped the reading."""
    if name == "fc":
        return Defect(error, {"--fc": ""})
    if name not in truth.values:
        return Defect(error, {OPTIONS[name]: ""})
    options = truth.options or {OPTIONS[name]: spelled(truth.values[name])}
    return Defect(error, options, truth.because)


def spelled(value: Any) -> str:
    """A field's value as its option takes it."""
    if isinstance(value, tuple):
        return ",".join(str(int(v)) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def contradicted(draft: Draft, reading: Reading, truth: Truth) -> list[Defect]:
    """Fields of the file that are wrong by what is known from outside: all that differ, or what converters damage."""
    spec, unknown, p = draft.spec, reading.stood_in, truth.published
    found = []
    if truth.sure:
        for name, value in truth.values.items():
            if name not in unknown and name in CONFIG_FIELDS and getattr(spec, name) != value:
                found.append(Defect(wrong(draft, name, value), truth.options or {}, truth.because))
        return found
    if p is None:
        return []
    if p.lost_window(spec) and not unknown & {"sliding_window", "sliding_layers"}:
        lost = {"--sliding-window": str(p.fields["sliding_window"]), "--sliding-layers": spelled(p.fields["sliding_layers"])}  # fmt: skip
        causal = truth.values.get("causal_layers", spec.causal_layers)
        if spec.causal_layers != causal and {"causal", "causal_layers"} & draft.sources.keys():
            lost["--causal"] = p.causal
        what = "the sliding window was dropped"
        error = replace_what(wrong(draft, "sliding_window", p.fields["sliding_window"]), what)
        found.append(Defect(error, lost, truth.because))
    if "target_layer_ids" not in unknown and (step := p.shift(spec)):
        ids = p.fields["target_layer_ids"]
        what = "the layer ids are stored raw where id + 1 is due" if step < 0 else "the layer ids are stored as id + 1 where the raw id is due"  # fmt: skip
        error = replace_what(wrong(draft, "target_layer_ids", ids), what)
        found.append(Defect(error, {"--target-layer-ids": spelled(ids)}, truth.because))
    return found


def wrong(draft: Draft, name: str, value: Any) -> InputError:
    """The error of a field whose value is not what it ought to be."""
    return InputError(
        f"{name} is wrong", found=shown(getattr(draft.spec, name)), where=f"{draft.path}: {draft.sources.get(name) or 'no key'}",
        expected=shown(value),
    )  # fmt: skip


def replace_what(error: InputError, what: str) -> InputError:
    """The error under another headline."""
    return InputError(what, found=error.found, where=error.where, expected=error.expected)


def made_before(draft: Draft, target: Target | None, truth: Truth) -> list[Defect]:
    """What the converter of the file did not know yet, or this one does not know."""
    file = draft.gguf
    assert file is not None
    found = []
    arch = file.architecture
    version = next((v for k in spellings("format_version", arch) if (v := file.ask.integer(k)) is not None), None)  # fmt: skip
    if version is not None and version > FORMAT_VERSION:
        error = InputError(
            "made by a later dflash-convert", found=f"format version {version}", where=f"{draft.path}: format_version",
            expected=f"at most {FORMAT_VERSION}", fix="update dflash-gguf",
        )  # fmt: skip
        found.append(Defect(error, mended=False))
    if version is not None and version < FORMAT_VERSION:
        error = InputError(
            f"made before format {FORMAT_VERSION}: rebuild it", found=f"format version {version}", where=f"{draft.path}: format_version",
            expected=str(FORMAT_VERSION),
        )  # fmt: skip
        found.append(Defect(error))
    several = (
        target.spec.multi_section_rope
        if target
        else draft.facts.architecture.startswith(MULTI_SECTION)
        or (truth.published is not None and truth.published.target.startswith(MULTI_SECTION))
    )
    if several and READERS[arch] == "gguf" and not draft.facts.multi_section_rope:
        error = InputError(
            "made before rotary sections were written: rebuild it", found="no key", where=f"{draft.path}: {arch}.rope.dimension_sections",
            expected="sections, because the target's positions have several components (with images acceptance is lost)",
        )  # fmt: skip
        found.append(Defect(error, {"--target": ""}))
    return found


def unloadable(draft: Draft, unknown: frozenset[str]) -> list[Defect]:
    """What keeps the file from the runtime it was made for, where no runtime loads it and a conversion mends that.

    Keys of `unknown` fields are left out: that they are missing has been said.
    """
    theirs = [v for v in verdicts(draft) if v.runtime != "dflash-validate"]
    if draft.gguf is None or any(v.loads is not False for v in theirs):
        return []
    nearest = min(theirs, key=lambda v: len(v.reasons))
    fields = unknown | ({"target_layers"} if "target_layer_ids" in unknown else set())
    said = {key for name in fields for key in keys_of(name, draft.gguf.architecture)}
    return [
        Defect(
            InputError(f"no runtime loads it: {text}", found=nearest.runtime, where=draft.path, expected="what its loader asks for"),
            {"--target": ""} if "tokenizer.ggml.tokens" in text else {},
        )
        for text in nearest.mended
        if not said & set(text.replace(":", " ").split())
    ]  # fmt: skip
