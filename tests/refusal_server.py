"""Runs commands in processes of their own, one request a line: a fork of one that has everything imported.

What comes back is the exit code, the output, the peak memory of the whole process and its processor time. A fork costs
some milliseconds where a new interpreter costs half a second, so that every hostile file can be measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from dflash_gguf.convert.cli import main as convert
from dflash_gguf.convert.inspect_cli import main as inspect
from dflash_gguf.quantize.cli import main as quantize
from dflash_gguf.runtime.cli import main as validate

COMMANDS = {c.name: c for c in (convert, inspect, quantize, validate)}
HANGS = 20
"""Seconds after which a command is killed."""


def child(name: str, words: list[str], output: int) -> None:
    """The command, its output in one file; never returns."""
    code: Any = 1
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.alarm(HANGS)
    try:
        COMMANDS[name].main(words, name)
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def answer(name: str, words: list[str]) -> dict[str, Any]:
    """Run one command and measure it."""
    output = os.memfd_create("output")
    pid = os.fork()
    if pid == 0:
        child(name, words, output)
    _, status, usage = os.wait4(pid, 0)
    text = os.pread(output, os.fstat(output).st_size, 0).decode()
    os.close(output)
    return {
        "code": os.waitstatus_to_exitcode(status), "output": text, "peak": usage.ru_maxrss << 10,
        "seconds": usage.ru_utime + usage.ru_stime,
    }  # fmt: skip


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(**json.loads(line))) + "\n")
        sys.stdout.flush()
