"""The engine as Python sees it: two GGUF files in, tokens, logits and exact acceptance out.

Reads and checks the metadata; the tensors' bytes are mapped and checked again by `csrc/engine`, which parses no
files. Knows nothing of text, prompts or records.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from dflash_gguf import _native
from numpy.typing import NDArray

from ..convert.errors import InputError, UsageError
from ..convert.gguf import GgufFile, read_gguf
from ..convert.gguf_dialects import spec_from_gguf, spelling
from ..convert.spec import DraftSpec
from ..convert.target import TargetSpec, target_from_gguf

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to run; every field is part of a record, because most of them can change acceptance."""

    kv: Literal["ring", "full"] = "ring"
    """The draft's context cache: a ring of fixed capacity, or the whole context (the yardstick)."""
    ring: int = 0
    """Ring capacity in positions, at least the block size; 0 for max(2048, sliding window)."""
    kv_type: Literal["f16", "f32"] = "f16"
    """Type of all K/V caches, the target's and the draft's."""
    threads: int = 2
    """Never changes a bit."""
    isa: str = "auto"
    """`auto`, `scalar`, `avx2`, `avx512`: never changes a bit."""
    causal: Literal["file", "none", "all"] = "file"
    """Causality inside the block: layer by layer as the file says, or one rule for all layers."""
    swa: Literal["per_row", "anchored"] = "per_row"
    """Window of sliding layers: every row its own (the reference), or anchored at the last committed token."""
    max_context: int = 0
    """Positions of the target's cache; 0 for the target's context_length."""
    micro_batch: int = 64
    """Prefill rows at a time: never changes a bit."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What `Engine.generate` gave."""

    tokens: list[int]
    """New tokens, an end token included."""
    rounds: list[tuple[int, int]]
    """(drafted, accepted) of every step that verified a draft."""
    margins: list[float]
    """Top-1 minus top-2 target logit of every token."""
    steps: int
    """Target passes after the prefill; len(tokens) = 1 + steps + accepted, less a bonus cut by an end token."""
    prefill_s: float
    draft_s: float
    verify_s: float
    total_s: float
    stop: str
    """`eos`, `length` or `context`."""
    bad_drafts: int
    """Proposals dropped because they were not finite."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One block of the draft."""

    tokens: list[int]
    """block_size - 1 tokens; empty where the draft is not finite."""
    logits: NDArray[np.float32]
    """(block_size, V), after scale and soft cap; row 0 is the anchor's and predicts nothing."""
    hidden: NDArray[np.float32]
    """(block_size, H), final-normed states."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's bytes in one of ggml's types, as a GGUF would hold them; the shape stays that of the file."""

    type: int
    """ggml's type id."""
    data: bytes


@dataclass(frozen=True, slots=True)
class InputSquares:
    """What one matrix of the draft was multiplied with."""

    sums: NDArray[np.float64]
    """(columns,): sum of squares of each input column."""
    rows: int
    """Rows that were summed."""


class Engine:
    """A target, perhaps a draft, and one sequence at a time.

    Raises InputError when a file is not what it claims or the two do not fit, UsageError for options that cannot
    be meant, EnvironmentFault when the machine lacks the memory or the instruction set.
    """

    def __init__(
        self,
        target_path: str | os.PathLike[str],
        draft_path: str | os.PathLike[str] | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        self.options = options = options or EngineOptions()
        target = read_gguf(Path(target_path))
        self.target_spec: TargetSpec = target_from_gguf(target).spec
        target_args = (*native_file(target), target_config(self.target_spec, target))
        run = run_config(options)
        self.spec: DraftSpec | None = None
        if draft_path is None:
            self.native = _native.open_engine(*target_args, run)
            return
        draft = read_gguf(Path(draft_path))
        self.spec = spec_from_gguf(draft)
        config = draft_config(self.spec, draft, options.causal)
        draft_args = native_file(draft)
        self.draft_table = draft_args[1]
        self.native = _native.open_pair(*target_args, *draft_args, config, run)

    @property
    def draft_kv_bytes(self) -> int:
        """Bytes of the draft's K/V cache, noise rows included; 0 without a draft."""
        return self.native.draft_kv_bytes

    def describe(self) -> dict[str, Any]:
        """The settings in effect: the options, and what `auto` and 0 stood for."""
        effective: dict[str, Any] = {
            "isa": self.native.isa,
            "max_context": self.native.max_context,
            "draft_kv_bytes": self.draft_kv_bytes,
        }
        if self.spec is not None:
            cap = self.native.ring_cap
            effective["ring"] = cap
            effective["kv_total"] = _native.kv_total(cap, self.spec.block_size)
        return asdict(self.options) | effective

    def generate(
        self, prompt_tokens: Tokens, max_new: int, n_max: int | None = None, eos: Tokens = ()
    ) -> Generation:
        """Greedy continuation of `prompt_tokens`: at most `max_new` tokens, ended by one of `eos`.

        Drafts at most `n_max` tokens a round, a whole block by default; without a draft, or with 0, decodes
        plainly. The tokens are the same in every case. Raises UsageError for a prompt that is empty, does not fit
        the context or holds a token outside the vocabulary.
        """
        limit = self.spec.block_size - 1 if self.spec else 0
        most = limit if n_max is None else n_max
        if most < 0 or max_new < 0:
            raise UsageError("a limit is negative", found=f"n_max = {n_max}, max_new = {max_new}")
        g = self.native.generate(list(prompt_tokens), max_new, min(most, limit), list(eos))
        return Generation(
            tokens=g.tokens,
            rounds=g.rounds,
            margins=g.margins,
            steps=g.steps,
            prefill_s=g.prefill_s,
            draft_s=g.draft_s,
            verify_s=g.verify_s,
            total_s=g.total_s,
            stop=g.stop.name,
            bad_drafts=g.bad_drafts,
        )

    def logits(self, tokens: Tokens) -> NDArray[np.float32]:
        """The target's logits after every token, (n, V) float32."""
        return self.native.logits(list(tokens))

    def features(self, tokens: Tokens) -> NDArray[np.float32]:
        """The states the draft reads, (n, len(target_layer_ids) * H) float32, captures side by side in id order."""
        return self.native.features(list(tokens))

    def propose(self, tokens: Tokens) -> Proposal:
        """The draft's block for the anchor `tokens[-1]` behind the context `tokens[:-1]`."""
        if len(tokens) < 2:
            raise UsageError(
                "a proposal needs context and anchor",
                found=f"{len(tokens)} tokens",
                expected="at least 2",
            )
        self.native.reset()
        self.native.extend(list(tokens[:-1]))
        return Proposal(*self.native.propose(tokens[-1]))

    def replace_tensors(self, tensors: Mapping[str, StoredTensor]) -> None:
        """Run the draft with these tensors in place of its file's; those of an earlier call are the file's again.

        Resets the sequence and ends a collection. Costs the reading of the replaced bytes: the target stays open,
        the file's other tensors stay mapped. Raises UsageError for a name that the draft has not, InputError for
        a type the runtime cannot read or bytes that do not fit the shape; the draft is then what it was.
        """
        names = {row[0] for row in self.draft_table} if self.spec else set()
        unknown = sorted(tensors.keys() - names)
        if unknown:
            raise UsageError("the draft has no such tensor", found=unknown[0])
        kept = [row for row in self.draft_table if row[0] not in tensors]
        replaced = [row for row in self.draft_table if row[0] in tensors]
        table = [
            (name, tensors[name].type, shape, 0, len(tensors[name].data))
            for name, _, shape, _, _ in replaced
        ]
        self.native.replace(table + kept, [tensors[name].data for name, *_ in table])

    def collect_inputs(self) -> None:
        """Count from now on, and from nothing, what every matrix of the draft is multiplied with.

        Changes no result. Raises UsageError without a draft.
        """
        self.native.collect()

    def collected(self) -> dict[str, InputSquares]:
        """The inputs by tensor, in the order of the names, of the matrices that were used since `collect_inputs`.

        Raises UsageError where that was not called.
        """
        return {name: InputSquares(sums, rows) for name, sums, rows in self.native.collected()}


def native_file(file: GgufFile) -> tuple[bytes, list[tuple[str, int, list[int], int, int]]]:
    """Path and tensor table as the native side takes them."""
    table = [(t.name, t.type, list(t.shape), t.offset, t.nbytes) for t in file.tensors.values()]
    return os.fsencode(file.path), table


def layer_dims(spec: TargetSpec | DraftSpec) -> _native.LayerDims:
    """The sizes that target and draft layers share."""
    dims = _native.LayerDims()
    dims.hidden = spec.hidden_size
    dims.ff = spec.intermediate_size
    dims.heads = spec.num_attention_heads
    dims.kv_heads = spec.num_key_value_heads
    dims.head_dim = spec.head_dim
    dims.rope_dimension_count = spec.rope_dimension_count
    dims.eps = spec.rms_norm_eps
    return dims


def target_config(spec: TargetSpec, file: GgufFile) -> _native.TargetConfig:
    """The native form of `spec`; refuses a target that has no forward pass here."""
    scaling = file.ask.text(f"{spec.architecture}.rope.scaling.type") or "none"
    reasons: dict[str, tuple[object, bool, str]] = {
        "general.architecture": (spec.architecture, spec.architecture == "qwen3", "qwen3"),
        "rope.scaling.type": (scaling, scaling == "none", "none"),
        "rope.dimension_sections": (spec.multi_section_rope, not spec.multi_section_rope, "absent"),
    }
    refuse(reasons, "target", file)
    config = _native.TargetConfig()
    config.dims = layer_dims(spec)
    for name in ("num_hidden_layers", "vocab_size", "context_length", "rope_theta"):
        setattr(config, name, getattr(spec, name))
    return config


DRAFT_FIELDS = (
    "num_hidden_layers", "vocab_size", "rope_theta", "block_size", "mask_token_id",
    "target_layer_ids", "target_hidden_size", "sliding_window", "sliding_layers", "causal_layers",
    "embedding_scale", "logit_scale", "attention_value_scale", "final_logit_softcapping",
)  # fmt: skip
"""Fields that DraftSpec and the native DraftConfig share by name."""


def draft_config(spec: DraftSpec, file: GgufFile, causal: str) -> _native.DraftConfig:
    """The native form of `spec`, causality overridden where `causal` says so; refuses what is not computed here."""
    refuse_unsupported(spec, file)
    config = _native.DraftConfig()
    config.dims = layer_dims(spec)
    for name in DRAFT_FIELDS:
        value = getattr(spec, name)
        setattr(config, name, list(value) if isinstance(value, tuple) else value)
    if causal != "file":
        config.causal_layers = [causal == "all"] * spec.num_hidden_layers
    config.hidden_act = _native.Act[spec.hidden_act]
    if spec.rope_scaling:
        config.rope_factor = spec.rope_scaling.factor
    if spec.conv:
        config.conv_kernel_size = spec.conv.kernel_size
        config.conv_group_size = spec.conv.group_size
    if spec.selector:
        config.selector_rank = spec.selector.rank
        config.selector_top_k = spec.selector.top_k
    return config


def refuse_unsupported(spec: DraftSpec, file: GgufFile) -> None:
    """Raise InputError, by name, for a draft that the runtime would compute wrongly."""
    dialect = spelling(file)
    scaling = spec.rope_scaling.type if spec.rope_scaling else "linear"
    reasons: dict[str, tuple[object, bool, str]] = {
        "dialect": (dialect, dialect == "gguf", "canonical names; dflash-convert writes them"),
        "variant": (spec.variant, spec.variant in ("dflash1", "dflash2"), "dflash1 or dflash2"),
        "rope_scaling": (scaling, scaling == "linear", "none or linear"),
        "draft_vocab_size": (
            spec.draft_vocab_size,
            spec.draft_vocab_size == 0,
            "0: the target's vocabulary",
        ),
        "sample_from_anchor": (spec.sample_from_anchor, not spec.sample_from_anchor, "False"),
    }
    refuse(reasons, "draft", file)


def refuse(reasons: dict[str, tuple[object, bool, str]], what: str, file: GgufFile) -> None:
    """Raise InputError for the first of `reasons` (name to found, fine, expected) that is not fine."""
    for name, (found, ok, expected) in reasons.items():
        if not ok:
            raise InputError(
                f"the runtime does not compute this kind of {what}",
                found=f"{name} = {found}",
                where=file.path,
                expected=expected,
            )


def run_config(options: EngineOptions) -> _native.RunConfig:
    """The native form of `options`; refuses a word that is not a choice."""
    choices = {
        "kv": ("ring", "full"),
        "kv_type": ("f16", "f32"),
        "causal": ("file", "none", "all"),
        "swa": ("per_row", "anchored"),
    }
    for name, words in choices.items():
        if getattr(options, name) not in words:
            raise UsageError(
                f"{name} is not a choice", found=getattr(options, name), expected=" ".join(words)
            )
    run = _native.RunConfig()
    run.kv_full = options.kv == "full"
    run.kv_type = _native.KvType[options.kv_type]
    run.window = _native.Window[options.swa]
    for name in ("ring", "threads", "isa", "max_context", "micro_batch"):
        setattr(run, name, getattr(options, name))
    return run
