"""Coverage-guided fuzzing of every reader: anything but InputError (or a sound file) is a fault of ours.

    python fuzz/readers.py gguf|draft|safetensors|config|target [libFuzzer options, e.g. -max_total_time=60]

`gguf` and `safetensors` get raw bytes, started from sound files. `draft` reads a GGUF on to its DraftSpec, `config` puts
the bytes in the place of a draft's config.json, `target` in the place of a target's tokenizer.json. A crash is written
to the working folder by libFuzzer as `crash-...`; give it as an argument to run it again.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

# An editable install is loaded by an import hook that atheris cannot instrument; plain folders are.
PACKAGE = Path(tempfile.mkdtemp(prefix="dflash-fuzz-")) / "dflash_gguf"
PACKAGE.mkdir()
for part in ("convert", "manifests"):
    (PACKAGE / part).symlink_to(Path(__file__).resolve().parent.parent / part)
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, str(PACKAGE.parent))

with atheris.instrument_imports(include=["dflash_gguf.convert"]):
    from dflash_gguf.convert.checkpoint import open_checkpoint
    from dflash_gguf.convert.dialects import spec_from_config
    from dflash_gguf.convert.draft import draft_from_gguf
    from dflash_gguf.convert.errors import InputError
    from dflash_gguf.convert.gguf import read_gguf
    from dflash_gguf.convert.safetensors import read_safetensors
    from dflash_gguf.convert.target import read_target

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import hostile  # noqa: E402 - the builders of the tests make the first inputs
import tiny  # noqa: E402

FOLDER = PACKAGE.parent


def gguf(path: Path) -> None:
    """The header and table of a GGUF."""
    read_gguf(path)


def draft(path: Path) -> None:
    """A GGUF read on to its spec and matched tensors."""
    draft_from_gguf(read_gguf(path), {})


def safetensors(path: Path) -> None:
    """The table of a safetensors file."""
    read_safetensors(path)


def config(path: Path) -> None:
    """A config.json beside sound weights."""
    checkpoint = open_checkpoint(FOLDER / "draft", path)
    spec_from_config(checkpoint.config, checkpoint.shapes)


def target(path: Path) -> None:
    """A tokenizer.json in a sound target folder."""
    path.replace(FOLDER / "target" / "tokenizer.json")
    read_target(FOLDER / "target")


READERS: dict[str, Callable[[Path], None]] = {
    f.__name__: f for f in (gguf, draft, safetensors, config, target)
}


def seeds(folder: Path) -> dict[str, list[bytes]]:
    """Sound inputs for each reader."""
    checkpoint = tiny.write_draft(folder / "draft")
    goal = tiny.write_target(folder / "target")
    whole = hostile.canonical_bytes(folder)
    small = {"x": ("F32", tiny.np.zeros(2, tiny.np.float32))}
    tiny.write_safetensors(folder / "small.safetensors", small)
    return {
        "gguf": [hostile.gguf(), whole],
        "draft": [whole],
        "safetensors": [
            (folder / "small.safetensors").read_bytes(),
            (checkpoint / "model.safetensors").read_bytes(),
        ],
        "config": [(checkpoint / "config.json").read_bytes()],
        "target": [(goal / "tokenizer.json").read_bytes()],
    }


def main() -> None:
    """Fuzz the reader that is named first."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in READERS:
        sys.exit(f"usage: readers.py {'|'.join(READERS)} [libFuzzer options]")
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for i, raw in enumerate(seeds(FOLDER)[name]):
        (corpus / str(i)).write_bytes(raw)
    path = FOLDER / "input"

    def one(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(InputError):
            READERS[name](path)

    atheris.Setup([*sys.argv, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
