"""Reference records from the oracle: the command behind `python -m dflash_gguf.runtime.oracle`.

Needs torch, which is imported when the command runs. The target's GGUF is compared with its checkpoint first: a
reference of other values would judge nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from tqdm import tqdm

from ..convert import ggml
from ..convert.errors import InputError, command_errors
from ..convert.gguf import GgufFile, read_gguf
from ..convert.target import read_target
from . import files, identity
from .prompts import Prompt, read_prompts
from .record import Conditions, PromptRun, Record, Subject, prompts_sha256, tokens_sha256
from .tokenizer import target_ids

if TYPE_CHECKING:
    from .oracle_model import Draft, Target

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


def reference_runs(
    draft: Draft, prompts: Iterable[tuple[Prompt, list[int]]], n_max: int, max_new: int
) -> list[PromptRun]:
    """The oracle's rounds of every prompt, with margins."""
    from .oracle import speculate

    result = []
    for prompt, ids in prompts:
        budget = min(max_new, draft.target.context_length - len(ids))
        text = draft.target.decode(ids, budget)
        rounds, margins = speculate(draft, text, n_max, budget)
        result.append(
            PromptRun(
                id=prompt.id, domain=prompt.domain, prompt_sha256=tokens_sha256(ids), prompt_tokens=len(ids),
                new_tokens=tuple(text.new), rounds=tuple(rounds), stop=text.stop if budget == max_new or text.stop == "eos" else "context",
                margins=tuple(float(f"{m:.{MARGIN_DIGITS}g}") for m in margins),
            )
        )  # fmt: skip
    return result


def reference_record(
    draft: Draft, folder: Path, file: GgufFile, runs: list[PromptRun], n_max: int, max_new: int
) -> Record:
    """The record of `runs`, as the oracle's own."""
    import torch

    c = draft.config
    weights: Mapping[str, Any] = {n: w.numpy().ravel for n, w in draft.weights.items()}
    return Record(
        conditions=Conditions(
            target_sha256=identity.target_sha256(file),
            prompts_sha256=prompts_sha256(runs),
            variant="dflash2" if c.top_k else "dflash1",
            block_size=c.block_size,
            n_max=n_max,
            max_new=max_new,
            context_length=draft.target.context_length,
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


FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
FILE = click.Path(path_type=Path)


@click.command("oracle")
@click.option("--target-hf", type=FOLDER, required=True, help="Checkpoint folder of the target.")
@click.option("--target-gguf", type=FILE, required=True, help="GGUF of the same target.")
@click.option(
    "--draft", "folder", type=FOLDER, required=True, help="Checkpoint folder of the draft."
)
@click.option(
    "--prompts", "prompt_set", required=True, help="JSONL prompt set, a path or a packaged name."
)
@click.option("--out", type=FILE, required=True, help="Reference to write; an old one is replaced.")
@click.option(
    "--n-max",
    type=click.IntRange(1),
    help="Drafted tokens a round at most.  [default: block_size - 1]",
)
@click.option("--max-new", type=click.IntRange(1), default=128, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
def main(target_hf: Path, target_gguf: Path, folder: Path, prompt_set: str, out: Path, n_max: int | None, max_new: int, threads: int) -> None:  # fmt: skip
    """Write the reference record of a draft from F32 PyTorch."""
    import torch

    from .oracle_model import Draft, Target

    with command_errors("oracle", as_json=False):
        torch.set_num_threads(threads)
        target, file = Target(target_hf), read_gguf(target_gguf)
        check_same_target(target, file)
        draft = Draft.read(folder, target)
        prompts = read_prompts(files.find(prompt_set, "prompts", ".jsonl"))
        ids = target_ids(target_gguf, prompts, len(target.embed), target.context_length)
        most = min(n_max or draft.config.block_size, draft.config.block_size - 1)
        runs = reference_runs(
            draft, tqdm(zip(prompts, ids, strict=True), total=len(ids), disable=None), most, max_new
        )
        record = reference_record(draft, folder, file, runs, most, max_new)
        files.write_text(out, record.to_json(), overwrite=True)
        click.echo(f"{out}: {record.total.to_json()}", err=True)
