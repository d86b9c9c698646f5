"""Reference records from the oracle: the command behind `python -m dflash_gguf.runtime.oracle`.

Needs torch, which is imported when the command runs. The target's GGUF is compared with its checkpoint first: a
reference of other values would judge nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from tqdm import tqdm

from ..convert import ggml
from ..convert.errors import InputError, UsageError, command_errors
from ..convert.gguf import GgufFile, read_gguf
from ..convert.target import read_target
from . import files, identity
from .prompts import Prompt, read_prompts
from .record import Conditions, Limits, PromptRun, Record, Subject, prompts_sha256, tokens_sha256
from .tokenizer import target_ids

if TYPE_CHECKING:
    from .oracle_draft import Draft
    from .oracle_target import Target, Text

MARGIN_DIGITS = 4

TARGET_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""Checkpoint names of a Qwen3 target (without `.weight`) to GGUF's."""


def gguf_name(name: str) -> str:
    """The GGUF name of a checkpoint tensor of the target."""
    stem = name.removesuffix(".weight")
    layer = re.match(r"model\.layers\.(\d+)\.", stem)
    prefix = f"blk.{layer[1]}." if layer else ""
    stem = stem[layer.end() :] if layer else stem
    return f"{prefix}{TARGET_NAMES.get(stem, stem)}.weight"


def check_same_target(target: Target, file: GgufFile) -> None:
    """Refuse unless the GGUF holds the checkpoint's values, tensor by tensor, and its RoPE base and epsilon."""
    spec = read_target(file.path).spec
    for name, ours, theirs in (
        ("rope_theta", target.theta, spec.rope_theta),
        ("rms_norm_eps", target.eps, spec.rms_norm_eps),
    ):
        if not math.isclose(ours, theirs, rel_tol=1e-6):
            raise InputError(
                f"target GGUF has another {name}", found=theirs, where=file.path, expected=ours
            )
    names = {gguf_name(name): name for name in target.weights}
    odd = set(file.tensors) ^ set(names)
    if odd - {"output.weight"}:  # a tied head may be there or not
        raise InputError(
            "target GGUF and checkpoint have other tensors",
            found=", ".join(sorted(odd)[:4]),
            where=file.path,
        )
    for name, tensor in file.tensors.items():
        weight = target.weights[names[name]] if name in names else target.head
        if tensor.type not in ggml.FLOATS or not np.array_equal(
            identity.tensor_values(file.path, tensor), weight.numpy().ravel()
        ):
            raise InputError(
                "target GGUF holds other values than the checkpoint", found=ggml.type_name(tensor.type),
                where=f"{file.path}: {name}", expected="the checkpoint's values as F32, F16 or BF16",
            )  # fmt: skip


def reference_run(draft: Draft, prompt: Prompt, text: Text, n_max: int) -> PromptRun:
    """The oracle's rounds of one prompt, with margins."""
    from .oracle import speculate

    rounds, margins = speculate(draft, text, n_max)
    return PromptRun(
        id=prompt.id,
        domain=prompt.domain,
        prompt_sha256=tokens_sha256(text.prompt),
        prompt_tokens=len(text.prompt),
        new_tokens=tuple(text.new),
        rounds=tuple(rounds),
        stop=text.stop,
        margins=tuple(float(f"{m:.{MARGIN_DIGITS}g}") for m in margins),
    )


def reference_record(
    draft: Draft, folder: Path, target_sha256: str, runs: list[PromptRun], limits: Limits
) -> Record:
    """The record of `runs`, as the oracle's own."""
    import torch

    c = draft.config
    weights: Mapping[str, Any] = {n: w.numpy().ravel for n, w in draft.weights.items()}
    return Record(
        conditions=Conditions(
            target_sha256=target_sha256,
            prompts_sha256=prompts_sha256(runs),
            variant="dflash2" if c.top_k else "dflash1",
            block_size=c.block_size,
            n_max=limits.n_max,
            max_new=limits.max_new,
            context_length=limits.context_length,
        ),
        subject=Subject(
            draft_name=folder.name,
            draft_sha256=identity.file_sha256(folder / "model.safetensors"),
            draft_values_sha256=identity.values_sha256(weights),
            draft_spec=draft_fields(asdict(c)),
            backend=f"pytorch {torch.__version__.partition('+')[0]}",
            version=metadata.version("dflash-gguf"),
        ),
        runs=tuple(runs),
    )


def draft_fields(config: Mapping[str, Any]) -> dict[str, object]:
    """The oracle's config under DraftSpec's names, for the notes of a comparison."""
    names = {
        "layers": "num_hidden_layers", "eps": "rms_norm_eps", "theta": "rope_theta", "window": "sliding_window",
        "sliding": "sliding_layers", "causal": "causal_layers", "softcap": "final_logit_softcapping",
    }  # fmt: skip
    skipped = ("top_k", "group_size")
    return {
        names.get(k, k): list(v) if isinstance(v, tuple) else v
        for k, v in config.items()
        if k not in skipped
    }


@dataclass(frozen=True, slots=True)
class Request:
    """The command line, typed."""

    target_hf: Path
    target_gguf: Path
    draft: tuple[Path, ...]
    prompts: str
    out: tuple[Path, ...]
    n_max: int | None
    max_new: int
    threads: int


FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
FILE = click.Path(path_type=Path)


@click.command("oracle")
@click.option("--target-hf", type=FOLDER, required=True, help="Checkpoint folder of the target.")
@click.option("--target-gguf", type=FILE, required=True, help="GGUF of the same target.")
@click.option(
    "--draft",
    type=FOLDER,
    required=True,
    multiple=True,
    help="Checkpoint folder of a draft; repeatable.",
)
@click.option("--prompts", required=True, help="JSONL prompt set, a path or a packaged name.")
@click.option(
    "--out",
    type=FILE,
    required=True,
    multiple=True,
    help="Reference to write, one a draft; an old one is replaced.",
)
@click.option(
    "--n-max",
    type=click.IntRange(1),
    help="Drafted tokens a round at most.  [default: block_size - 1]",
)
@click.option("--max-new", type=click.IntRange(1), default=128, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
def main(**options: Any) -> None:
    """Write the reference records of drafts from F32 PyTorch."""
    request = Request(**options)
    with command_errors("oracle", as_json=False):
        if len(request.draft) != len(request.out):
            raise UsageError(
                "one --out a --draft",
                found=f"{len(request.draft)} drafts, {len(request.out)} outputs",
            )
        write_references(request)


def write_references(request: Request) -> None:
    """Decode every prompt once, let each draft guess along, write each draft's record."""
    import torch

    from .oracle_draft import Draft
    from .oracle_target import Target

    torch.set_num_threads(request.threads)
    target, file = Target(request.target_hf), read_gguf(request.target_gguf)
    check_same_target(target, file)
    digest = identity.target_sha256(file)
    prompts = read_prompts(files.find(request.prompts, "prompts", ".jsonl"))
    ids = target_ids(request.target_gguf, prompts, len(target.embed), target.context_length)
    texts = [target.decode(i, request.max_new) for i in tqdm(ids, unit="text", disable=None)]
    for folder, out in zip(request.draft, request.out, strict=True):
        draft = Draft.read(folder, target)
        block = draft.config.block_size
        limits = Limits(
            min(request.n_max or block, block - 1), request.max_new, target.context_length
        )
        pairs = tqdm(list(zip(prompts, texts, strict=True)), unit="prompt", disable=None)
        runs = [reference_run(draft, prompt, text, limits.n_max) for prompt, text in pairs]
        record = reference_record(draft, folder, digest, runs, limits)
        files.write_text(out, record.to_json(), overwrite=True)
        click.echo(f"{out}: {record.total.to_json()}", err=True)
