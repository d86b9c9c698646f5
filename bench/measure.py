"""Runs commands one at a time and says how long each took and how much memory it held at most.

Peak memory is that of the command and what it starts: resident pages, mapped file pages included. The kernel's `ru_maxrss`
counts the pages of the process that started it too, so it is believed only above those; below, `VmHWM` is read while the
command runs, every 20 ms.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

COPY = """
import os, shutil, sys
with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
    out.flush()
    os.fsync(out.fileno())
"""
"""The Python copy: one buffer of 1 MiB, then fsync."""

WATCH_MS = 20
"""How often the memory of a command is looked at."""


@dataclass(frozen=True)
class Run:
    """One finished command."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(command: Sequence[str]) -> Run:
    """`command`, waited for; its output goes nowhere. Raises RuntimeError with the last lines of stderr on failure."""
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        seen = watch(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            tail = said.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {tail}")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = usage.ru_maxrss if usage.ru_maxrss > own else seen
    return Run(seconds, usage.ru_utime + usage.ru_stime, peak * 1024)


def watch(pid: int) -> int:
    """The largest `VmHWM` in KiB that process `pid` or a descendant showed until it ended; does not reap it."""
    ended = select.poll()
    fd = os.pidfd_open(pid)
    ended.register(fd, select.POLLIN)
    peak = 0
    while not ended.poll(WATCH_MS):
        peak = max([peak, *map(high_water, descendants(pid))])
    os.close(fd)
    return peak


def descendants(pid: int) -> list[int]:
    """The process and all that it started, as far as they still run."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return [pid]
    return [pid, *(p for child in text.split() for p in descendants(int(child)))]


def high_water(pid: int) -> int:
    """`VmHWM` of a process in KiB; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def copies(source: Path, out: Path) -> dict[str, list[str]]:
    """The two plain copies that the others are measured against, fsync included in both."""
    shell = 'cp --reflink=never "$0" "$1" && sync "$1"'
    return {
        "cp": ["sh", "-c", shell, str(source), str(out)],
        "python copy": [sys.executable, "-c", COPY, str(source), str(out)],
    }


def evict(paths: Sequence[Path]) -> None:
    """Drop the files' pages from the page cache; they must be clean."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(paths: Sequence[Path]) -> None:
    """Read the files once, so that they lie in the page cache."""
    for path in paths:
        with path.open("rb") as file:
            while file.read(1 << 22):
                pass


def alternate(
    cases: dict[str, list[str]], repeat: int, before: Callable[[], None]
) -> dict[str, list[Run]]:
    """Each case `repeat` times, round by round, so that a slow minute of the machine hits all of them.

    `before` runs before each, untimed.
    """
    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for number in range(repeat):
        for name, command in cases.items():
            before()
            os.sync()
            runs[name].append(run(command))
            note(f"round {number + 1}/{repeat}  {name:<28} {runs[name][-1].seconds:8.2f} s")
    return runs


def note(text: str) -> None:
    """A line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def machine() -> dict[str, Any]:
    """What the figures were taken on, without a name of it."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "load_1min": os.getloadavg()[0],
    }


def report(runs: dict[str, list[Run]], yardstick: str) -> list[dict[str, Any]]:
    """One row a case: seconds, ratio to the yardstick round by round, CPU seconds, peak memory."""
    rows = []
    for name, own in runs.items():
        ratios = [r.seconds / y.seconds for r, y in zip(own, runs[yardstick], strict=True)]
        rows.append(
            {
                "name": name,
                "seconds": spread([r.seconds for r in own]),
                "ratio": spread(ratios),
                "cpu_seconds": spread([r.cpu_seconds for r in own]),
                "peak_bytes": max(r.peak_bytes for r in own),
                "runs": [asdict(r) for r in own],
            }
        )
    return rows


def print_report(rows: list[dict[str, Any]], yardstick: str) -> None:
    """The rows as a table on stdout."""
    print(
        f"{'':<28} {'seconds':>9} {'min':>8} {'max':>8} {'x ' + yardstick:>14} {'CPU s':>8} {'peak MB':>8}"
    )
    for r in rows:
        s = r["seconds"]
        print(
            f"{r['name']:<28} {s['median']:9.2f} {s['min']:8.2f} {s['max']:8.2f} {r['ratio']['median']:14.2f}"
            f" {r['cpu_seconds']['median']:8.2f} {r['peak_bytes'] / 1e6:8.0f}"
        )


def save(path: Path | None, result: dict[str, Any]) -> None:
    """The result with the machine as JSON, where a path is given."""
    if path is not None:
        path.write_text(json.dumps({"schema": 1, "machine": machine()} | result, indent=2) + "\n")


def command(name: str) -> str:
    """The path of one of our commands, beside the running Python."""
    return str(Path(sys.executable).with_name(name))
