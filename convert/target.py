"""What a draft must know of its target: geometry, tokenizer and end tokens, from a GGUF or a Hugging Face folder.

Reads no weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .errors import InputError
from .fields import Field, Value
from .gguf import GgufFile, read_gguf
from .strict_json import Section, read_json
from .vocabulary import read_vocabulary, tokenizer_fields, tokenizer_hash

ARCHITECTURES = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "qwen3_5": "qwen35",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe_text": "qwen35moe",
    "llama": "llama",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "gpt_oss": "gpt-oss",
}
"""`model_type` of a config to the architecture name of GGUF, where they differ or are known to agree."""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Geometry of the target, in config.json spellings."""

    architecture: str
    """GGUF spelling: `qwen3`, `llama`, `qwen35`, ..."""
    num_hidden_layers: int
    """Trunk layers; prediction layers behind the trunk are not counted."""
    hidden_size: int
    intermediate_size: int
    """Feed-forward width, of one expert in a mixture without a dense one."""
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding."""
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_dimension_count: int
    eos_token_ids: tuple[int, ...]
    """Tokens that end a reply; ascending."""
    multi_section_rope: bool = False
    """True where positions have several components (M-RoPE)."""
    name: str = ""
    """`general.name` of a GGUF, empty for a folder: a folder's name is the machine's business."""


@dataclass(frozen=True)
class Target:
    """The target a draft speaks for."""

    path: Path
    spec: TargetSpec
    tokenizer_fields: dict[str, Field]
    """The `tokenizer.*` metadata in GGUF form, types kept."""

    @property
    def tokenizer(self) -> dict[str, Value]:
        """The bare values of `tokenizer_fields`."""
        return {key: field.value for key, field in self.tokenizer_fields.items()}

    @cached_property
    def tokenizer_hash(self) -> str:
        """See `vocabulary.tokenizer_hash`."""
        return tokenizer_hash(self.tokenizer_fields)


def read_target(path: str | os.PathLike[str], pre_tokenizer: str | None = None) -> Target:
    """The target at `path`, a GGUF file or a Hugging Face folder.

    `pre_tokenizer` overrides the name that a folder's tokenizer.json is recognised by. Raises InputError where
    something needed is missing or of the wrong kind.
    """
    path = Path(path)
    if path.is_dir():
        return target_from_folder(path, pre_tokenizer)
    return target_from_gguf(read_gguf(path))


def target_from_gguf(file: GgufFile) -> Target:
    """The target that an opened GGUF holds."""
    arch, ask = file.architecture, file.ask

    def largest(key: str) -> int | None:
        field = file.fields.get(f"{arch}.{key}")
        if field is not None and field.item:
            return max(ask.integers(f"{arch}.{key}") or (0,))
        return ask.integer(f"{arch}.{key}")

    def size(*keys: str) -> int:
        value = next((v for v in map(largest, keys) if v), None)
        if value is None or not 0 < value < 2**31:
            raise InputError(
                "target lacks a size",
                found=value,
                where=f"{file.path}: {arch}.{keys[0]}",
                expected="1 to 2^31 - 1",
            )
        return value

    embedding = file.tensors.get("token_embd.weight")
    tokens = file.kv.get("tokenizer.ggml.tokens", ())
    heads, hidden = size("attention.head_count"), size("embedding_length")
    head_dim = largest("attention.key_length") or hidden // heads
    spec = TargetSpec(
        architecture=arch,
        num_hidden_layers=size("block_count") - (largest("nextn_predict_layers") or 0),
        hidden_size=hidden,
        intermediate_size=size("feed_forward_length", "expert_feed_forward_length"),
        num_attention_heads=heads,
        num_key_value_heads=largest("attention.head_count_kv") or heads,
        head_dim=head_dim,
        vocab_size=embedding.shape[1] if embedding and len(embedding.shape) == 2 else len(tokens),
        context_length=size("context_length"),
        rms_norm_eps=ask.number(f"{arch}.attention.layer_norm_rms_epsilon") or 0.0,
        rope_theta=ask.number(f"{arch}.rope.freq_base") or 10000.0,  # the format's own default
        rope_dimension_count=largest("rope.dimension_count") or head_dim,
        eos_token_ids=end_tokens(
            ask.integer(f"tokenizer.ggml.{k}_token_id") for k in ("eos", "eot", "eom")
        ),
        multi_section_rope=f"{arch}.rope.dimension_sections" in file.fields,
        name=ask.text("general.name") or "",
    )
    return Target(file.path, spec, tokenizer_fields(file.fields, file.path))


def end_tokens(ids: Any) -> tuple[int, ...]:
    """The ids that are there, ascending, each once."""
    return tuple(sorted({int(i) for i in ids if i is not None}))


def target_from_folder(folder: Path, pre_tokenizer: str | None = None) -> Target:
    """The target whose config.json and tokenizer.json lie in `folder`."""
    outer = Section(read_json(folder / "config.json"), folder / "config.json")
    c = outer.section("text_config") or outer
    rope = c.section("rope_parameters") or Section({}, c.where)

    def size(key: str) -> int:
        value = c.integer(key)
        if value is None or not 0 < value < 2**31:
            raise InputError(
                "target lacks a size",
                found=value,
                where=f"{c.where}: {key}",
                expected="1 to 2^31 - 1",
            )
        return value

    model_type = c.text("model_type") or ""
    heads, hidden = size("num_attention_heads"), size("hidden_size")
    head_dim = c.integer("head_dim") or hidden // heads
    rotary = c.number("partial_rotary_factor") or rope.number("partial_rotary_factor") or 1.0
    spec = TargetSpec(
        architecture=ARCHITECTURES.get(model_type, model_type),
        num_hidden_layers=size("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=size(
            "intermediate_size" if "intermediate_size" in c else "moe_intermediate_size"
        ),
        num_attention_heads=heads,
        num_key_value_heads=c.integer("num_key_value_heads") or heads,
        head_dim=head_dim,
        vocab_size=size("vocab_size"),
        context_length=size("max_position_embeddings"),
        rms_norm_eps=c.number("rms_norm_eps") or 0.0,
        rope_theta=rope.number("rope_theta") or c.number("rope_theta") or 10000.0,
        rope_dimension_count=int(head_dim * rotary),
        eos_token_ids=folder_end_tokens(folder, c),
        multi_section_rope="mrope_section" in rope,
    )
    return Target(folder, spec, read_vocabulary(folder, spec.vocab_size, c, pre_tokenizer))


def folder_end_tokens(folder: Path, config: Section) -> tuple[int, ...]:
    """`eos_token_id`, one or a list, of generation_config.json, else of config.json."""
    path = folder / "generation_config.json"
    for section in (Section(read_json(path), path) if path.exists() else config, config):
        value = section.values.get("eos_token_id")
        if value is not None:
            return end_tokens(
                section.integers("eos_token_id")
                if isinstance(value, list)
                else [section.integer("eos_token_id")]
            )
    return ()
