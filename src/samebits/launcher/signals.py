"""The signals that end a run, caught as numbers on a descriptor while the launcher watches its ranks."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

from samebits.machine.processes import ENDING


class CaughtSignals:
    """`with CaughtSignals() as signals:` — inside, `signals.fileno()` is readable after a signal.

    A signal that was ignored before stays ignored (nohup), and SIGUSR1 is left to whoever has a handler for it. Outside the main thread nothing is caught; there `send`
    replaces a user signal.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def fileno(self) -> int:
        """For a selector."""
        return self._read

    def take(self) -> list[int]:
        """Return the numbers that came since the last call."""
        with suppress(BlockingIOError):
            return [number for number in os.read(self._read, 256) if number in ENDING]
        return []

    def send(self, number: int) -> None:
        """Act as if the process had got this signal, from any thread. Nothing happens when the run is over."""
        with suppress(OSError):
            os.write(self._write, bytes([number]))

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in ENDING:
                if _is_caught(number, signal.getsignal(number)):
                    self._before[number] = signal.signal(number, _noted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup)
        # Another thread may call `send`, which must not write to whatever gets this number next.
        write, self._write = self._write, -1
        os.close(self._read)
        os.close(write)


def _is_caught(number: int, handler: Any) -> bool:
    return handler is signal.SIG_DFL if number == signal.SIGUSR1 else handler is not signal.SIG_IGN


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the number is already on the descriptor."""
