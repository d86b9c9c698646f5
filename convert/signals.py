"""Signals as exceptions, put off while something must not be cut in half."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .errors import InterruptedRun

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    """How many sections are holding signals off, and the one that came meanwhile."""

    holding = 0
    pending: int | None = None


def _stop(number: int, _: FrameType | None) -> None:
    if _State.holding:
        _State.pending = number
    else:
        raise InterruptedRun(
            "interrupted",
            found=signal.Signals(number).name,
            fix="nothing was changed; run it again",
        )


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise InterruptedRun at SIGINT, SIGTERM or SIGHUP, so that outputs are cleaned up; main thread only."""
    _State.pending = None
    old = {number: signal.signal(number, _stop) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """A section that a signal cannot cut in half; one that came meanwhile is raised at its end."""
    _State.holding += 1
    try:
        yield
    finally:
        _State.holding -= 1
    if _State.pending is not None and not _State.holding:
        number, _State.pending = _State.pending, None
        _stop(number, None)
