"""The real client: llama.cpp loads the files that our commands write, and accepts what our engine accepts.

The pair's target and both drafts. In F32 both compute the same, and each prompt's counts are compared one by one. With
BF16 or quantised weights llama.cpp rounds its activations too, so single rounds differ and the rates are compared; and
since it verifies several rows with other kernels than one, two greedy texts may part where the target's two best tokens
are nearly equal: such a parting is excused by the margin at that token, and nothing else is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
from dflash_gguf.convert.target import read_target
from dflash_gguf.runtime.engine import Engine, EngineOptions, Generation
from dflash_gguf.runtime.prompts import read_prompts
from dflash_gguf.runtime.tokenizer import target_ids
from llama_client import Completion, LlamaCrashed, LlamaServer

ROOT = Path(__file__).parent.parent
PAIR = ROOT / "examples" / "pair"
TARGET = PAIR / "Pair-Target-BF16.gguf"
PROMPTS = ROOT / "manifests" / "prompts" / "pair.jsonl"
LENGTHS = ("02", "05", "08")
"""Which prompts of a domain are run: 40, 160 and 280 tokens, that is up to four windows of context."""
MAX_NEW = 64
TIE = 0.15
"""Logits: a margin under which llama.cpp may choose the other token."""
POINTS = 0.02
"""How far two acceptance rates over all prompts may be apart."""


@dataclass(frozen=True)
class Job:
    """A prompt: text for llama.cpp's tokenizer, ids for both."""

    id: str
    text: str
    ids: list[int]


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    """Three prompts a domain, short to long."""
    prompts = [p for p in read_prompts(PROMPTS) if p.id.endswith(LENGTHS)]
    spec = read_target(TARGET).spec
    ids = target_ids(TARGET, prompts, spec.vocab_size, spec.context_length)
    return [Job(p.id, p.text or "", i) for p, i in zip(prompts, ids, strict=True)]


@pytest.fixture(scope="module")
def draft_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a draft's GGUF with our commands: variant, scheme, more options of dflash-convert."""
    folder = tmp_path_factory.mktemp("drafts")

    def make(variant: str, scheme: str = "bf16", *options: str) -> Path:
        name = "-".join([variant, scheme, *(o.strip("-").replace(",", "_") for o in options)])
        out = folder / f"dflash-Pair-{name}.gguf"
        if out.exists():
            return out
        if scheme == "bf16":
            source = PAIR / f"draft-{variant}"
            command("dflash-convert", source, out, "--target", TARGET, *options)
        else:
            command("dflash-quantize", make(variant), out, "--scheme", scheme)
        return out

    return make


@pytest.fixture(scope="module")
def f32_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair's target with its BF16 tensors widened to F32."""
    reader = gguf.GGUFReader(TARGET)
    out = tmp_path_factory.mktemp("target") / "Pair-Target-F32.gguf"
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, item = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), kind, item)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor(tensor.name, widened(tensor).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def widened(tensor: gguf.ReaderTensor) -> np.ndarray:
    """The values of an F32 or BF16 tensor as F32."""
    if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
        return tensor.data
    return (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def command(name: str, *words: object) -> None:
    """Run one of our commands."""
    program = Path(sys.executable).with_name(name)
    subprocess.run([program, *map(str, words), "--quiet"], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def plain(jobs: list[Job]) -> list[Generation]:
    """Our engine's greedy text without a draft."""
    engine = Engine(TARGET, options=EngineOptions(threads=1))
    return [run(engine, job) for job in jobs]


def run(engine: Engine, job: Job) -> Generation:
    """Our engine's greedy text, ended by the target's end token."""
    return engine.generate(job.ids, MAX_NEW, eos=engine.target_spec.eos_token_ids)


def served(
    jobs: Sequence[Job], draft: Path | None = None, target: Path = TARGET
) -> list[Completion]:
    """llama.cpp's greedy text for every prompt."""
    with LlamaServer(target, draft, threads=1) as server:
        return [server.complete(job.ids, MAX_NEW) for job in jobs]


def parted(ours: Generation, theirs: Completion) -> int | None:
    """Where the texts part, None where they do not."""
    pairs = enumerate(zip(ours.tokens, theirs.tokens, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), None)
    assert at is not None or len(theirs.tokens) == len(ours.tokens)
    return at


def check_texts(jobs: list[Job], ours: list[Generation], theirs: list[Completion]) -> list[int]:
    """Every parting is a near tie; gives the prompts whose texts are the same, at least two thirds of all."""
    places = [parted(g, c) for g, c in zip(ours, theirs, strict=True)]
    wide = {
        job.id: (i, g.margins[i])
        for job, i, g in zip(jobs, places, ours, strict=True)
        if i is not None and g.margins[i] > TIE
    }
    assert wide == {}
    same = [n for n, i in enumerate(places) if i is None]
    assert len(same) >= 2 * len(jobs) // 3
    return same


def captured(variant: str) -> list[int]:
    """The captured layers as the draft's config has them."""
    config = json.loads((PAIR / f"draft-{variant}" / "config.json").read_text())
    return list(config["dflash_config"]["target_layer_ids"])


def listed(ids: Sequence[int]) -> str:
    """`ids` as the command takes them."""
    return ",".join(map(str, ids))


def rate(counts: Sequence[tuple[int, int]]) -> float:
    """Accepted over drafted."""
    return sum(a for _, a in counts) / sum(d for d, _ in counts)


def counts(target: Path, draft: Path, jobs: Sequence[Job]) -> list[tuple[int, int]]:
    """(drafted, accepted) of every prompt in our engine, blocks two-sided as in llama.cpp."""
    engine = Engine(target, draft, EngineOptions(threads=1, causal="none"))
    rounds = [run(engine, job).rounds for job in jobs]
    return [(sum(d for d, _ in r), sum(a for _, a in r)) for r in rounds]


def test_llama_cpp_reads_a_prompt_as_the_same_tokens(jobs: list[Job]) -> None:
    """The target's GGUF gives llama.cpp's tokenizer and ours the same ids for every text of the set."""
    with LlamaServer(TARGET, threads=1) as server:
        assert [job.ids for job in jobs] == [server.tokenize(job.text) for job in jobs]


def test_the_target_alone_says_the_same_in_both(jobs: list[Job], plain: list[Generation]) -> None:
    """Without a draft, llama.cpp's greedy text is our engine's."""
    check_texts(jobs, plain, served(jobs))


@pytest.mark.parametrize("scheme", ["bf16", "q8_0", "q4-mix"])
@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_llama_cpp_accepts_what_our_engine_accepts(
    variant: str,
    scheme: str,
    jobs: list[Job],
    plain: list[Generation],
    draft_file: Callable[..., Path],
) -> None:
    """Our file loads in llama.cpp as it is, drafts losslessly, and its acceptance is ours within 2 points.

    llama.cpp has one causality flag: the v1 draft's layers differ, so both run it two-sided (`causal="none"`).
    """
    draft = draft_file(variant, scheme)
    theirs = served(jobs, draft)
    assert all(c.drafted for c in theirs)
    same = check_texts(jobs, plain, theirs)
    ours = rate(counts(TARGET, draft, [jobs[n] for n in same]))
    assert abs(rate([(theirs[n].drafted, theirs[n].accepted) for n in same]) - ours) <= POINTS


@pytest.mark.parametrize(
    ("variant", "shift", "least", "most"),
    [
        pytest.param("v1", 0, 0.9, 1, id="v1"),
        pytest.param("v2", 0, 0.9, 1, id="v2"),
        pytest.param("v2", 1, 0, 0.5, id="v2-one-layer-early"),
    ],
)
def test_in_f32_every_prompt_has_the_same_counts(
    variant: str,
    shift: int,
    least: float,
    most: float,
    jobs: list[Job],
    f32_target: Path,
    draft_file: Callable[..., Path],
) -> None:
    """Drafted and accepted are equal prompt by prompt; a file that captures one layer early is seen at once."""
    ours = counts(f32_target, draft_file(variant, "bf16", "--outtype", "f32"), jobs)
    ids = [i - shift for i in captured(variant)]
    file = draft_file(variant, "bf16", "--outtype", "f32", "--target-layer-ids", listed(ids))
    theirs = [(c.drafted, c.accepted) for c in served(jobs, file, f32_target)]
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    assert least <= equal / len(jobs) <= most


def test_capturing_the_last_layer_kills_llama_cpp_and_not_us(
    jobs: list[Job], plain: list[Generation], draft_file: Callable[..., Path]
) -> None:
    """llama.cpp aborts on a captured last layer, which arrives here as an error; our engine runs the file."""
    ids = [*captured("v2")[:-1], read_target(TARGET).spec.num_hidden_layers - 1]
    draft = draft_file("v2", "bf16", "--target-layer-ids", listed(ids))
    with (
        LlamaServer(TARGET, draft, threads=1) as server,
        pytest.raises(LlamaCrashed, match="layer"),
    ):
        server.complete(jobs[0].ids, 8)
    ours = run(Engine(TARGET, draft, EngineOptions(threads=1)), jobs[0])
    assert plain[0].tokens == ours.tokens
