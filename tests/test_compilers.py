"""The bytes of csrc/kquant do not depend on the compiler: gcc and clang, -O0 to -O3, with and without vector kernels, aarch64.

Each build goes through CMakeLists.txt, as the module's does. A compiler that is not installed is skipped by name.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
LEVELS = ("O0", "O1", "O2", "O3")
TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs")  # fmt: skip
"""In the order of tests/native/kquant_golden.c."""


def tool(name: str) -> str:
    """A program of the environment that runs the tests, or of the PATH. Skips, naming it, where there is none."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@functools.cache
def configured(folder: Path, compiler: str, options: tuple[str, ...]) -> Path:
    """A build folder with one configuration for each level of optimisation."""
    build = folder / "-".join([compiler, *options]).replace("=", "")
    flags = [f"-DCMAKE_C_FLAGS_{level}=-{level}" for level in LEVELS]
    command = [
        tool("cmake"), "-G", "Ninja Multi-Config", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", "-S", str(ROOT), "-B", str(build),
        f"-DCMAKE_C_COMPILER={tool(compiler)}", f"-DCMAKE_CONFIGURATION_TYPES={';'.join(LEVELS)}", *flags,
        "-DDFLASH_MODULE=OFF", "-DDFLASH_NATIVE_TESTS=ON", *options,
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return build


def golden_program(build: Path, level: str) -> Path:
    """The program of tests/native/kquant_golden.c, built."""
    done = subprocess.run(
        [tool("cmake"), "--build", str(build), "--config", level, "--target", "kquant_golden"],
        capture_output=True,
        text=True,
    )
    assert 0 == done.returncode, done.stdout
    return build / level / "kquant_golden"


def assert_golden(command: list[str], most_isa: int) -> None:
    """The program gives ggml's golden bytes for every type on each of its instruction sets, and ggml's floats."""
    with np.load(ROOT / "tests" / "golden" / "kquant.npz") as data:
        golden = dict(data)
    x, importance = golden["x"], golden["imatrix"]
    done = subprocess.run(
        [*command, *map(str, x.shape)],
        input=x.tobytes() + importance.tobytes(),
        capture_output=True,
    )
    assert 0 == done.returncode, done.stderr
    isas, out, at = int(done.stderr), done.stdout, 0
    assert 1 <= isas <= most_isa
    for name in TYPES:
        blocks = [golden[f"{name}_imatrix"].tobytes(), golden[name].tobytes()]
        for what, wanted in enumerate([*blocks * isas, golden[f"{name}_dequant"].tobytes()]):
            assert wanted == out[at : at + len(wanted)], (name, what)
            at += len(wanted)
    assert len(out) == at


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compilers")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kernels", ["vector", "scalar only"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_every_compiler_and_level_gives_the_golden_bytes(
    folder: Path, compiler: str, kernels: str, level: str
) -> None:
    """No optimisation changes a bit, and without vector kernels only plain C is there."""
    options = () if kernels == "vector" else ("-DKQ_SCALAR_ONLY=ON",)
    program = golden_program(configured(folder, compiler, options), level)

    assert_golden([str(program)], most_isa=3 if kernels == "vector" else 1)


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_another_machine_gives_the_golden_bytes(folder: Path, level: str) -> None:
    """On aarch64, where compilers fuse multiplications and additions unless they are told not to."""
    emulator, compiler = tool("qemu-aarch64-static"), "aarch64-linux-gnu-gcc"
    system = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
    program = golden_program(configured(folder, compiler, system), level)

    assert_golden([emulator, "-L", "/usr/aarch64-linux-gnu", str(program)], most_isa=1)
