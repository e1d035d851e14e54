"""What the machine does to the ranks of one attempt: the memory that they hold, the cores that they may use, their ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from samebits.launcher.blame import RankEnd
from samebits.launcher.diagnosis.findings import SHARED_CORE, End, Finding, finding_of_end
from samebits.launcher.terminal.cases import Cases
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import Console
from samebits.machine.cores import one_core_of
from samebits.machine.memory_pressure import MemoryPressure, explain_kill, is_calm, read_memory_pressure, shortage
from samebits.machine.processes import resident_bytes, signal_name
from samebits.protocol.journal.failure import FailureKind

EVERY_S = 0.5
RECENT_S = 10.0
"""A kill that the kernel counted longer ago was that of another process."""


@dataclass(frozen=True)
class Known:
    """What is known about the end of a rank besides how it ended."""

    finding: Finding | None = None
    why_killed: str = ""
    """Why it got SIGKILL, as far as can be known; empty if it did not."""


def _pressure_now() -> tuple[float, MemoryPressure]:
    return time.monotonic(), read_memory_pressure()


@dataclass
class Surroundings:
    """Look at the ranks several times a second."""

    console: Console
    cases: Cases
    known: dict[int, Known] = field(default_factory=dict)
    """Of each rank that has ended."""
    _pressures: list[tuple[float, MemoryPressure]] = field(default_factory=lambda: [_pressure_now()])
    """The kernel's counters, read every `RECENT_S`; the last two."""
    _held: dict[int, int] = field(default_factory=dict)
    """The memory of each rank in bytes: the most ever of one that has ended, of the others when they were looked at last."""
    _next_s: float = 0.0
    _has_said_core: bool = False

    def look(self, pids: Mapping[int, int]) -> None:
        """Look at the ranks, twice a second at most.

        Args:
            pids: the processes of the ranks that have not ended.
        """
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + EVERY_S
        if self._pressures[-1][0] < time.monotonic() - RECENT_S:
            self._pressures = [self._pressures[-1], _pressure_now()]
        self._held.update({rank: held for rank, pid in pids.items() if (held := resident_bytes(pid))})
        if not self._has_said_core and len(pids) > 1:
            self._look_at_cores(pids)

    def _look_at_cores(self, pids: Mapping[int, int]) -> None:
        with suppress(OSError):
            core = one_core_of([os.sched_getaffinity(pid) for pid in pids.values()], os.cpu_count() or 1)
            if core is not None:
                self._has_said_core = True
                said = f"the {len(pids)} ranks may use core {core} only, of {os.cpu_count()}, and take turns on it"
                self.console.line(Line("note", said))
                self.cases.add(SHARED_CORE, said, pids)

    def ended(self, end: RankEnd) -> bool:
        """A rank has ended: find out what is known about that, and keep the finding if it is one.

        Returns whether somebody else killed it, and not for lack of memory.
        """
        short, why, is_from_outside = None, "", False
        if end.peak_bytes:  # the last look may have been before it grew
            self._held[end.rank] = end.peak_bytes
        is_worker = end.failure is not None and end.failure.kind is FailureKind.WORKER
        if is_worker or (end.signal == signal.SIGKILL and not end.stopped):
            (_, before), now = self._pressures[0], _pressure_now()
            short, why = shortage(before, now[1]), explain_kill(before, now[1])
            is_from_outside = not is_worker and is_calm(before, now[1])
            why, self._pressures = f"{why}; {self._memory_text()}" if short is not None else why, [now]
        finding = finding_of_end(End(end.failure, 0 if end.stopped else end.signal, short))
        self.known[end.rank] = Known(finding, why)
        if finding is not None and (end.failure is None or end.failure.kind is not FailureKind.STALL):
            said = why or (
                end.failure.error.removeprefix("UsageError: ")
                if end.failure is not None
                else f"killed by {signal_name(end.signal)}"
            )
            self.cases.add(finding, f"rank {end.rank}: {said}", [end.rank])
        return is_from_outside

    def _memory_text(self) -> str:
        """`rank 1 held 3.1 GB, rank 0 0.4 GB`: the largest first."""
        held = sorted(self._held.items(), key=lambda each: -each[1])
        texts = [
            f"rank {rank} {'held ' if not place else ''}{size / 1e9:.2f} GB"
            for place, (rank, size) in enumerate(held[:4])
        ]
        return ", ".join([*texts, *([f"the other {len(held) - 4} less"] if len(held) > 4 else [])])
