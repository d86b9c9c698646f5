"""Coverage-guided fuzzing of every reader: anything but a refusal (or a sound file) is a fault of ours.

    python fuzz/readers.py READER [libFuzzer options, e.g. -max_total_time=60]

READER is one of the functions below, each of which puts the fuzzer's bytes in the place of one file, beside others that
are sound; without one they are listed, a line each. Runs start from sound files. A crash is written to the working
folder by libFuzzer as `crash-...`; give it as an argument to run it again.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("convert", "quantize", "runtime", "manifests")

# An editable install is loaded by an import hook that atheris cannot instrument; plain folders are.
native = importlib.util.find_spec("dflash_gguf._native")
assert native is not None
assert native.origin is not None
PACKAGE = Path(tempfile.mkdtemp(prefix="dflash-fuzz-")) / "dflash_gguf"
PACKAGE.mkdir()
for part in PARTS:
    (PACKAGE / part).symlink_to(ROOT / part)
(PACKAGE / Path(native.origin).name).symlink_to(native.origin)
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
for name in [name for name in sys.modules if name.partition(".")[0] == "dflash_gguf"]:
    del sys.modules[name]
sys.path.insert(0, str(PACKAGE.parent))

with atheris.instrument_imports(include=[f"dflash_gguf.{part}" for part in PARTS]):
    from dflash_gguf.convert.checkpoint import open_checkpoint
    from dflash_gguf.convert.defects import find_defects, read_on
    from dflash_gguf.convert.dialects import spec_from_config
    from dflash_gguf.convert.draft import draft_from_gguf
    from dflash_gguf.convert.errors import EnvironmentFault, InputError, NotComparableError
    from dflash_gguf.convert.gguf import read_gguf
    from dflash_gguf.convert.published import parse_table
    from dflash_gguf.convert.safetensors import read_safetensors
    from dflash_gguf.convert.strict_json import read_json
    from dflash_gguf.convert.target import read_target
    from dflash_gguf.convert.torch_file import read_torch
    from dflash_gguf.quantize.cli import find_scheme
    from dflash_gguf.quantize.imatrix import Imatrix, read_imatrix, write_imatrix
    from dflash_gguf.runtime.prompts import read_prompts
    from dflash_gguf.runtime.record import record_from_json

sys.path.insert(0, str(ROOT / "tests"))
import hostile  # noqa: E402 - the builders of the tests make the first inputs
import numpy as np  # noqa: E402
import tiny  # noqa: E402

FOLDER = PACKAGE.parent


def gguf(path: Path) -> None:
    """The header and table of a GGUF."""
    read_gguf(path)


def draft(path: Path) -> None:
    """A GGUF read on to its spec and matched tensors."""
    draft_from_gguf(read_gguf(path), {})


def defects(path: Path) -> None:
    """A GGUF read on behind its faults, as dflash-inspect does."""
    find_defects(path, read_on(path), None, None, "")


def safetensors(path: Path) -> None:
    """The table of a safetensors file."""
    read_safetensors(path)


def config(path: Path) -> None:
    """A config.json beside sound weights."""
    checkpoint = open_checkpoint(FOLDER / "draft", path)
    spec_from_config(checkpoint.config, checkpoint.shapes)


def index(path: Path) -> None:
    """The index of a sharded checkpoint whose shards are sound."""
    path.replace(FOLDER / "shards" / "model.safetensors.index.json")
    open_checkpoint(FOLDER / "shards")


def json(path: Path) -> None:
    """One strict JSON object."""
    read_json(path)


def target(path: Path) -> None:
    """A tokenizer.json in a sound target folder."""
    path.replace(FOLDER / "target" / "tokenizer.json")
    read_target(FOLDER / "target")


def target_gguf(path: Path) -> None:
    """A target's GGUF."""
    read_target(path)


def imatrix(path: Path) -> None:
    """An importance matrix, GGUF or legacy by its first bytes."""
    read_imatrix(path)


def legacy_imatrix(path: Path) -> None:
    """An importance matrix that is not a GGUF."""
    raw = path.read_bytes()
    path.write_bytes(b"\1\0\0\0" + raw[4:] if raw.startswith(b"GGUF") else raw)
    read_imatrix(path)


def scheme(path: Path) -> None:
    """A scheme file of the user's."""
    named = path.with_suffix(".toml")
    path.replace(named)
    find_scheme(str(named))


def prompts(path: Path) -> None:
    """A prompt set."""
    read_prompts(path)


def record(path: Path) -> None:
    """A record or reference of acceptance."""
    record_from_json(path.read_bytes(), str(path))


def torch(path: Path) -> None:
    """A file of torch.save, as far as it is looked at without PyTorch, and by it where that found nothing."""
    read_torch(path)


def published(path: Path) -> None:
    """A table of published drafts."""
    parse_table(path.read_bytes(), path.name)


READERS: dict[str, Callable[[Path], None]] = {
    f.__name__: f
    for f in (
        gguf, draft, defects, safetensors, config, index, json, target, target_gguf, imatrix, legacy_imatrix, scheme, prompts,
        record, torch, published,
    )
}  # fmt: skip


def torch_file(path: Path) -> bytes:
    """Two tensors and a number as torch.save writes them."""
    import torch as pytorch

    pytorch.save(
        {"w": pytorch.ones(2, 3), "b": pytorch.zeros(1, dtype=pytorch.bfloat16), "n": 7}, path
    )
    return path.read_bytes()


def seeds(name: str, folder: Path) -> list[bytes]:
    """Sound inputs for a reader; what stands beside them is written to `folder`."""
    checkpoint = tiny.write_draft(folder / "draft")
    goal = tiny.write_target(folder / "target")
    sharded = tiny.write_draft(folder / "shards", shards=2)
    whole = hostile.canonical_bytes(folder)
    small = {"x": ("F32", np.zeros(2, np.float32))}
    tiny.write_safetensors(folder / "small.safetensors", small)
    ones = {"a.weight": np.ones((1, 4), np.float32)}
    write_imatrix(folder / "i.gguf", Imatrix(ones, {"a.weight": np.ones(1, np.float32)}, ("x",)))
    legacy = bytes([1, 0, 0, 0, 1, 0, 0, 0]) + b"a" + bytes([1, 0, 0, 0, 1, 0, 0, 0]) + bytes(4)
    config_json = (checkpoint / "config.json").read_bytes()
    return {
        "gguf": [hostile.gguf(), whole],
        "draft": [whole],
        "defects": [whole],
        "safetensors": [(folder / "small.safetensors").read_bytes(), (checkpoint / "model.safetensors").read_bytes()],
        "config": [config_json],
        "index": [next(sharded.glob("*.index.json")).read_bytes()],
        "json": [config_json, b'{"a": [1, 2.5, true, null, "x"]}'],
        "target": [(goal / "tokenizer.json").read_bytes()],
        "target_gguf": [tiny.write_target_gguf(folder / "t.gguf").read_bytes()],
        "imatrix": [(folder / "i.gguf").read_bytes(), legacy],
        "legacy_imatrix": [legacy, legacy + bytes([1, 0, 0, 0, 1, 0, 0, 0]) + b"x"],
        "scheme": [b'default = "q4_k"\nrules = [{ match = ["fc.*", "x"], type = "keep", when = "more-bits", count = "blocks" }]'],
        "prompts": [(ROOT / "manifests/prompts/pair.jsonl").read_bytes()[:2000].rpartition(b"\n")[0], b'{"id": "a", "domain": "d", "tokens": [1]}'],
        "record": [(ROOT / "manifests/references/pair-v1.json").read_bytes()],
        "torch": [torch_file(folder / "t.pt")] if name == "torch" else [],
        "published": [path.read_bytes() for path in sorted((ROOT / "manifests/drafts").glob("*.toml"))],
    }[name]  # fmt: skip


def main() -> None:
    """Fuzz the reader that is named first."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in READERS:
        print("\n".join(READERS))
        sys.exit(f"usage: readers.py READER [libFuzzer options]; no reader {name!r}" if name else 0)
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    path = FOLDER / "input"
    for i, raw in enumerate(seeds(name, FOLDER)):
        (corpus / str(i)).write_bytes(raw)
        path.write_bytes(raw)
        # What a first call imports is no input's time; and the first inputs must be sound.
        READERS[name](path)

    def one(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(EnvironmentFault, InputError, NotComparableError):
            READERS[name](path)

    atheris.Setup([*sys.argv, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
