"""Being interrupted when a loader worker ends, but only while this process waits for it.

torch's own handler of SIGCHLD raises wherever the main thread is: in the script, in an optimizer, in an exchange; and
where the exception gets lost, nobody hears of the worker again. Ours looks only into waits that ask for it, and then
calls the handler that was there before, so other DataLoaders work as they always did.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any


class ChildEnded(Exception):  # noqa: N818 - what happened, as people say it
    """A process that was waited for has ended."""


class Interruptible:
    """A wait that a child's end interrupts: `with Interruptible(has_lost): ...` raises `ChildEnded`.

    Outside the main thread nothing interrupts, and torch looks at its workers every five seconds.

    Args:
        has_lost: whether a child that matters has ended; called in a signal handler.
    """

    def __init__(self, has_lost: Callable[[], bool]) -> None:
        self._has_lost = has_lost

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            _listen()
            _waits.append(self)
        if self._has_lost():  # a signal that came before had nobody to interrupt
            self._leave()
            raise ChildEnded

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        with suppress(ValueError):
            _waits.remove(self)

    def look(self) -> None:
        """Raise `ChildEnded`, at most once, if it has come to that."""
        if self._has_lost():
            self._leave()  # first: whoever catches it may be in our own `__exit__`
            raise ChildEnded


_waits: list[Interruptible] = []


class _Handler:
    def __init__(self, before: Any) -> None:
        self._before = before if callable(before) else None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _waits:
            _waits[-1].look()
        if self._before is not None:
            self._before(number, frame)


def _listen() -> None:
    present = signal.getsignal(signal.SIGCHLD)
    if not isinstance(present, _Handler):
        signal.signal(signal.SIGCHLD, _Handler(present))


def announce(sentinel: int) -> None:
    """Let the end of a process that is not a child of this one (a fork server's) send SIGCHLD as well.

    Args:
        sentinel: the descriptor that becomes readable when it ends.
    """
    with suppress(OSError):
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGCHLD)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
