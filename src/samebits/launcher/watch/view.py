"""A run at one moment: a row for each rank, from journals, failure records and the kernel."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.diagnosis.words import PHASES, awaited_text, phase_text
from samebits.launcher.watch.places import Run, run_at
from samebits.machine.leftovers import MARKER
from samebits.machine.processes import process_state, resident_bytes, signal_name, started_with
from samebits.protocol.journal.failure import read_failure
from samebits.protocol.journal.gauges import Gauges
from samebits.protocol.journal.ring import JournalReader, Phase
from samebits.protocol.run_folder import read_json

LONG_WAIT_S = 1.0
"""A shorter wait is a part of each step."""


class State(StrEnum):
    """What a rank does."""

    WORKS = "works"
    WAITS = "waits"
    """For other ranks, for longer than a moment."""
    STOPPED = "stopped"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True)
class Row:
    rank: int
    pid: int
    state: State
    step: int
    """The one under way, or the last one."""
    doing: str
    """`forward and backward of step 3`, `in the exchange of gradients of step 6 (train.py:34)`."""
    lasts_s: float
    place: str
    """`train.py:31`."""
    samples_per_s: float | None
    """Since the look before; None at the first one."""
    memory_bytes: int


@dataclass(frozen=True)
class View:
    """The ranks of this node, in their order."""

    rows: tuple[Row, ...]
    is_led: bool = False
    """Whether the launcher may yet start ranks."""

    @property
    def pids(self) -> dict[int, int]:
        """The processes of the ranks that have not ended."""
        return {row.rank: row.pid for row in self.rows if row.pid and row.state not in {State.ENDED, State.FAILED}}

    @property
    def is_over(self) -> bool:
        """Whether no rank is left, and none will come."""
        return not self.pids and not self.is_led


class Viewer:
    """Looks at a run again and again; ranks that all start again have new journals.

    Raises:
        UsageError: when its journals are another version's, or damaged.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.journals: dict[int, JournalReader] = {}
        self._opened, self._planned_ns = (0, 0), _changed_ns(run.folder.plan)
        self._before: dict[int, tuple[float, Gauges]] = {}
        self._open()

    def _open(self) -> None:
        """Open the journals of the ranks' newest start, which are made in the order of ranks."""
        run = self.run
        try:
            numbers = run.numbers_now
            # Ranks that start again get new files: another inode means another start.
            opened = (self._planned_ns, run.folder.journal(numbers.start).stat().st_ino if numbers else 0)
            if opened == self._opened:
                return
            journals = {rank: JournalReader(run.folder.journal(rank)) for rank in numbers}
        except OSError as error:
            what = f"{Path(error.filename).name}: {error.strerror}" if error.filename else str(error)
            raise UsageError(
                f"The journals in {run.folder.path} cannot be read: {what}.", "Check the folder: parts of it are gone."
            ) from None
        except ValueError as error:
            raise UsageError(
                f"The journals in {run.folder.path} cannot be read: {error}.",
                "Use the version of samebits that made them.",
            ) from None
        self._opened = opened
        self._before.clear()
        self.journals.clear()
        self.journals.update(journals)

    def look(self) -> View:
        """The run now."""
        planned_ns = _changed_ns(self.run.folder.plan)
        if planned_ns not in {0, self._planned_ns}:
            # Another run has the name now.
            with suppress(UsageError):
                self.run, self._planned_ns = run_at(str(self.run.folder.path), self.run.folder.path), planned_ns
        is_led = self.run.is_led
        # While the next start is made ready, its journals are half there.
        with suppress(UsageError):
            self._open()
        ends = read_json(self.run.folder.outcome).get("ends")
        ends = ends if isinstance(ends, dict) else {}
        return View(tuple(self._row(rank, journal, is_led, ends) for rank, journal in self.journals.items()), is_led)

    def _row(self, rank: int, journal: JournalReader, is_led: bool, ends: Mapping[str, Any]) -> Row:
        now_ns, last, gauges, wait = time.monotonic_ns(), journal.last(), journal.gauges(), journal.waiting()
        # [Note: why the process must have the mark of a run]
        # A journal outlives its rank, and its process id may belong to another program by now.
        pid = journal.pid if started_with(journal.pid, MARKER) else 0
        process = process_state(pid) if pid else None
        failed = read_failure(self.run.folder.failure(rank))
        place = f"{Path(last.file).name}:{last.line}" if last is not None and last.file else ""
        doing, lasts_s = (
            (phase_text(last.phase, last.step, last.operation), _s(now_ns - last.time_ns))
            if last is not None
            else ("", 0.0)
        )
        waited_s = _s(now_ns - wait.since_ns) if wait is not None else 0.0
        state = State.WORKS
        if failed is not None:
            state = State.FAILED
        elif not journal.pid and is_led:
            doing = PHASES[Phase.START]
        elif process is None:
            state = State.ENDED
        elif process.is_stopped:
            state = State.STOPPED
        elif waited_s >= LONG_WAIT_S:
            state = State.WAITS
        if wait is not None and (state is State.WAITS or process is None):
            phase, operation, step = (last.phase, last.operation, last.step) if last is not None else (None, "", 0)
            doing, lasts_s = f"in {awaited_text(wait.what, phase, operation, step)}", waited_s
        if state is State.ENDED:
            doing = _end_text(ends.get(str(rank))) or doing
        rate = self._rate(rank, now_ns / 1e9, gauges)
        step = last.step if last is not None else gauges.step
        return Row(rank, pid, state, step, doing, lasts_s, place, rate, resident_bytes(pid) if pid else 0)

    def _rate(self, rank: int, now_s: float, gauges: Gauges) -> float | None:
        before = self._before.get(rank)
        self._before[rank] = (now_s, gauges)
        if before is None or now_s <= before[0] or gauges.samples < before[1].samples:
            return None
        return (gauges.samples - before[1].samples) / (now_s - before[0])


def _changed_ns(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _end_text(end: Any) -> str:
    """How a rank ended, as the launcher noted it; empty where it did not, or not yet."""
    match end:
        case {"stopped": True}:
            return "stopped by samebits, as another rank or a signal ended the run"
        case {"signal": int(number)} if number:
            return f"killed by {signal_name(number)}"
        case {"code": int(code)}:
            return f"ended with exit code {code}" if code else "came to its end"
    return ""


def _s(nanoseconds: int) -> float:
    """Seconds; a moment in the future is a damaged one, or of another start of the machine."""
    return max(nanoseconds, 0) / 1e9
