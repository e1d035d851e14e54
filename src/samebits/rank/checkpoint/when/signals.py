"""Who asks a run to save and end: its launcher, which was sent a signal, or a signal to this process itself.

the loop begins    -> listen
each pass          -> number
the run has saved  -> answer
the loop is over   -> rest: signals act again as they did before
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from samebits.machine.processes import ENDING, signal_name
from samebits.protocol.journal.signals import Asking


class NoStopRequests:
    """A run that ends as a plain script does; the others do more. Nothing here is collective."""

    @property
    def number(self) -> int:
        """The signal because of which the run is to save and end; 0 when there was none."""
        return 0

    def listen(self) -> None:
        """A loop begins, in which asking is of use."""

    def rest(self) -> None:
        """The loop is over."""

    def answer(self, step: int | None) -> None:
        """The run ends, because it was asked to; `step`: after which it was saved, None if that was not possible."""


class LauncherStopRequests(NoStopRequests):
    """Asked through the journal of rank 0; no signal needs to reach the rank.

    SLURM may send SIGUSR1 to every process of a job. The launcher's counts; here it would end the rank, and is ignored
    unless the script decides itself what it does.

    Args:
        journal: this rank's; another rank's says nothing.
    """

    def __init__(self, journal: Path) -> None:
        self._asking, self._ignores = Asking(journal), False

    @property
    def number(self) -> int:
        return self._asking.asked

    def listen(self) -> None:
        self._asking.listen(True)
        if _is_main() and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            self._ignores = True

    def rest(self) -> None:
        self._asking.listen(False)
        if self._ignores and _is_main() and signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        self._ignores = False

    def answer(self, step: int | None) -> None:
        if step is not None:
            self._asking.answer(step)


class SignalStopRequests(NoStopRequests):
    """Asked by a signal to this process, where the script has not decided itself what that signal does.

    A second signal acts as if nothing here were. Forked children (loader workers) continue as long as this process does:
    a terminal and SLURM send the signal to them too. Only SIGTERM ends them, as before.
    """

    def __init__(self, *, reports: bool) -> None:
        self._reports, self._process = reports, os.getpid()
        self._before: dict[int, Any] = {}
        self._number, self._has_one = 0, False

    @property
    def number(self) -> int:
        return self._number

    def listen(self) -> None:
        if self._before or not _is_main():
            return
        caught = _caught()
        for number in ENDING:
            handler = signal.getsignal(number)
            if handler is signal.default_int_handler or (handler is signal.SIG_DFL and number not in caught):
                self._before[number] = signal.signal(number, self._handle)

    def rest(self) -> None:
        if os.getpid() != self._process:
            return
        for number in list(self._before):
            self._give_back(number)
        number, self._number = self._number, 0
        # [Note: no signal is lost]
        # It came after the last step, where nobody looks. It acts now, as it would without samebits.
        if number:
            signal.raise_signal(number)

    def answer(self, step: int | None) -> None:  # noqa: ARG002 - nobody waits for it
        self._number = 0

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        is_child = os.getpid() != self._process
        if is_child and number != signal.SIGTERM:
            return
        if is_child or self._has_one:
            self._give_back(number)
            signal.raise_signal(number)
            return
        self._number, self._has_one = number, True
        if self._reports:
            text = (
                f"samebits: {signal_name(number)}: the run is saved between two steps and ends; once more ends it now\n"
            )
            # [Note: why a handler writes by itself]
            # `say` would print, and the handler may have interrupted a print: Python refuses to enter the same stream twice.
            with suppress(OSError):
                os.write(2, text.encode())

    def _give_back(self, number: int) -> None:
        before = self._before.pop(number, None)
        if before is not None and signal.getsignal(number) == self._handle:
            signal.signal(number, before)


def _is_main() -> bool:
    """Only the main thread may say what signals do."""
    return threading.current_thread() is threading.main_thread()


def _caught() -> set[int]:
    """The signals for which this process has handlers, those that Python does not know of (faulthandler's) too."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        mask = int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)
        return {number for number in range(1, 65) if mask >> (number - 1) & 1}
    return set()
