"""What the engine refuses: pairs that do not fit, tensors it would not use, settings that cannot be meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dflash_gguf import _native
from dflash_gguf.convert.errors import EnvironmentFault, InputError, UsageError
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.target import target_from_gguf
from dflash_gguf.runtime.engine import Engine, native_file, run_config, target_config
from tiny_engine import EXACT, open_pair
from tiny_gguf import (
    V1,
    Arrays,
    Change,
    Sizes,
    geometry,
    weights_of,
    write_draft,
    write_gguf,
    write_target,
)

SIZES = Sizes()


def as_it_is(weights: Arrays) -> None:
    """No change."""


def refused(folder: Path, target: Sizes = SIZES, edit: Change = as_it_is) -> InputError:
    """The error of opening the draft with a target of other sizes, or with weights that `edit` changed."""
    write_target(folder / "t.gguf", target, change=edit)
    write_draft(folder / "d.gguf", V1)
    with pytest.raises(InputError) as caught:
        Engine(folder / "t.gguf", folder / "d.gguf", EXACT)
    return caught.value


def test_a_pair_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Other vocabulary, other hidden size, a captured layer the target lacks: named, with both numbers."""
    error = refused(tmp_path, Sizes(vocab=90))
    assert ("100", True) == (error.found, "90" in error.expected)

    error = refused(tmp_path, Sizes(hidden=32))
    assert ("64", True) == (error.found, "32" in error.expected)

    error = refused(tmp_path, Sizes(layers=2))
    assert ("2", "0 to 1") == (error.found, error.expected)


def test_tensors_the_pass_would_not_use_are_refused_by_name(tmp_path: Path) -> None:
    """Biases and strangers in the target, a missing tensor, another shape: each is an error that names it."""
    bias = refused(
        tmp_path, edit=lambda w: w.update({"blk.0.attn_q.bias": np.zeros(64, np.float32)})
    )
    assert "biases" in bias.what
    assert "blk.0.attn_q.bias" in bias.found

    stray = refused(
        tmp_path, edit=lambda w: w.update({"rope_freqs.weight": np.ones(8, np.float32)})
    )
    assert "rope_freqs.weight" in stray.found

    missing = refused(tmp_path, edit=lambda w: w.pop("blk.3.ffn_up.weight"))
    assert "blk.3.ffn_up.weight" in missing.where

    shape = refused(
        tmp_path, edit=lambda w: w.update({"blk.1.ffn_norm.weight": np.ones(32, np.float32)})
    )
    assert ("[32]", "[64]") == (shape.found, shape.expected)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("rope.dimension_count", 64, "rope_dimension_count = 64"),
        ("rope.dimension_count", 7, "rope_dimension_count = 7"),
        ("attention.head_count_kv", 3, "num_key_value_heads = 3"),
        ("attention.layer_norm_rms_epsilon", 0.0, "rms_norm_eps = 0"),
        ("rope.freq_base", -1.0, "rope_theta = -1"),
        ("rope.scaling.type", "yarn", "rope.scaling.type = yarn"),
    ],
)
def test_a_target_whose_metadata_cannot_be_meant_is_refused(
    tmp_path: Path, key: str, value: object, named: str
) -> None:
    """Sizes that tensor shapes do not show, and a scaling that would silently be left out: refused by field."""
    write_gguf(tmp_path / "t.gguf", "qwen3", geometry(SIZES) | {key: value}, weights_of(SIZES))

    with pytest.raises(InputError) as caught:
        Engine(tmp_path / "t.gguf", options=EXACT)

    assert named in f"{caught.value.found} {caught.value.expected}"


def test_a_tensor_outside_the_file_is_refused(tmp_path: Path) -> None:
    """Whatever the table says, the mapping is checked again: past the end, and so far that a sum would wrap."""
    write_target(tmp_path / "t.gguf")
    file = read_gguf(tmp_path / "t.gguf")
    path, table = native_file(file)
    config = target_config(target_from_gguf(file).spec, file)
    for offset in (file.size - 4, 2**64 - 16):
        broken = [
            (n, t, s, offset, size) if n == "output.weight" else (n, t, s, o, size)
            for n, t, s, o, size in table
        ]

        with pytest.raises(InputError, match="outside the file"):
            _native.open_engine(path, broken, config, run_config(EXACT))


def test_settings_that_cannot_be_meant_are_usage_errors(tmp_path: Path) -> None:
    """A ring below a block, no threads, an unknown word, a token outside the vocabulary, an empty prompt."""
    for options in (
        {"ring": 3},
        {"ring": -1},
        {"ring": 1 << 57},
        {"ring": (1 << 63) - 1},
        {"threads": 0},
        {"kv": "half"},
        {"micro_batch": 0},
    ):
        with pytest.raises(UsageError):
            open_pair(tmp_path, V1, **options)
    engine = open_pair(tmp_path, V1)
    for prompt in ([], [100], [-1]):
        with pytest.raises(UsageError):
            engine.generate(prompt, 3)


def test_a_rewind_to_before_the_start_is_a_usage_error(tmp_path: Path) -> None:
    """A negative length changes nothing; 0 and a length beyond the end are fine."""
    native = open_pair(tmp_path, V1).native
    native.extend([1, 2, 3])
    with pytest.raises(UsageError):
        native.rewind(-1)
    assert 3 == native.length
    for length, left in ((9, 3), (0, 0)):
        native.rewind(length)
        assert left == native.length


def test_a_file_whose_name_is_no_utf8_is_refused_by_name(tmp_path: Path) -> None:
    """What the native side refuses names the file as os.fsdecode does."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf"))
    write_gguf(path, "qwen3", geometry(SIZES) | {"rope.dimension_count": 7}, weights_of(SIZES))

    with pytest.raises(InputError) as caught:
        Engine(path, options=EXACT)

    assert str(path) in str(caught.value.where)


THREADLESS = """
import resource, sys
from pathlib import Path
from dflash_gguf.convert.errors import DflashError
from dflash_gguf.runtime.engine import Engine, EngineOptions
pages = int(Path("/proc/self/statm").read_text().split()[0])
room = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
resource.setrlimit(resource.RLIMIT_AS, (room, room))
try:
    Engine(sys.argv[1], options=EngineOptions(threads=1024))
except DflashError as error:
    print(error)
    sys.exit(error.exit_code)
"""
"""256 MiB of addresses, where 1023 stacks need more."""


def test_threads_that_the_machine_refuses_are_an_error_not_an_abort(tmp_path: Path) -> None:
    """Those already started are ended, and the environment's exit code comes out."""
    write_target(tmp_path / "t.gguf")

    done = subprocess.run(
        [sys.executable, "-c", THREADLESS, tmp_path / "t.gguf"], capture_output=True, text=True
    )

    assert (EnvironmentFault.exit_code, "") == (done.returncode, done.stderr)
    assert "thread" in done.stdout
