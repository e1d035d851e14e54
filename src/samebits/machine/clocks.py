"""Clocks: the time of day as numbers that only grow in one process and step, a clock that ticks, and waiting."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Iterable
from threading import Lock
from typing import Protocol, TypeVar

STEP_S = 1e-5
"""How far apart two numbers of one step are at least; a file's time and a float tell them apart."""


# [Note: why time must grow within a step]
# A run that resumes keeps the lines of metrics.jsonl that are not later than its state. Within a step only the time tells them
# apart, and the clock may be set back, or be too coarse for two calls that follow each other.

# [Note: why not select.select]
# It takes no descriptor above 1023. A process with many open files (pytest, a notebook, a server) may start a run too.


class GrowingTime:
    """The numbers of one process. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._step = -1
        self._latest_s = 0.0

    def now(self, step: int) -> float:
        """time.time(), or a little more than the last number of this step where the clock has not moved on.

        Args:
            step: of the run; numbers of different steps are not compared.
        """
        with self._lock:
            latest_s = self._latest_s if step == self._step else 0.0
            self._step, self._latest_s = step, max(time.time(), latest_s + STEP_S)
            return self._latest_s

    def resume_from(self, time_s: float, step: int) -> None:
        """In this step, return only what is later than `time_s`, which another process got."""
        with self._lock:
            self._step, self._latest_s = step, max(self._latest_s if step == self._step else 0.0, time_s)


_process = GrowingTime()
growing_time = _process.now
resume_from = _process.resume_from


_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK


def ticking(every_s: float) -> int:
    """Make one; read eight bytes from it at each tick, and close it. Raises OSError."""
    # Python has os.timerfd_create from 3.13 on.
    library = ctypes.CDLL(None, use_errno=True)
    timer = int(library.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC_NONBLOCK))
    seconds, fraction = divmod(every_s, 1.0)
    moment = (int(seconds), int(fraction * 1e9))
    # struct itimerspec: the interval, and the first time.
    times = (ctypes.c_long * 4)(*moment, *moment)
    if timer < 0 or library.timerfd_settime(timer, 0, times, None) < 0:
        raise OSError(ctypes.get_errno(), "no timer")
    return timer


class HasFileno(Protocol):
    """What has a descriptor: a socket, a pipe."""

    def fileno(self) -> int:
        """Its number."""


Source = TypeVar("Source", bound="int | HasFileno")


def readable(sources: Iterable[Source], limit_s: float | None = None) -> list[Source]:
    """Those that can be read now, have failed or have ended; waits until there is one. [Note: why not select.select]

    Args:
        limit_s: seconds to wait at most; None: without an end.
    """
    by_number = {source if isinstance(source, int) else source.fileno(): source for source in sources}
    waiting = select.poll()
    for number in by_number:
        waiting.register(number, select.POLLIN)
    events = waiting.poll(None if limit_s is None else max(0.0, limit_s) * 1000)
    return [by_number[number] for number, _ in events]
