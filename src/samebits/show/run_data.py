"""What a run left in its folder, read again and again: plan, summary, events, curves. It may be half written or hostile."""

from __future__ import annotations

import math
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.diagnosis.spent import TIME_NAMES
from samebits.launcher.watch.places import run_at
from samebits.machine.processes import began_ticks
from samebits.machine.visible import visible
from samebits.protocol.branch import Course
from samebits.protocol.events import Event, EventReader, Kind, finite, of_kind
from samebits.protocol.run_folder import RunFolder, read_json
from samebits.show.curves import CurveReader, Curves

PARTS = tuple(TIME_NAMES.values())


@dataclass(frozen=True)
class RunData:
    """All that a run left."""

    folder: RunFolder
    plan: dict[str, Any]
    summary: dict[str, Any]
    """Empty until the run has ended."""
    decided: dict[str, Any]
    events: list[Event]
    curves: Curves

    @property
    def name(self) -> str:
        return visible(self.folder.path.name)

    @property
    def script(self) -> str:
        """The script as it was named on the command line."""
        return visible(str(self.plan.get("script") or self.plan.get("module") or self.plan.get("function") or ""))

    @property
    def course(self) -> Course:
        """The run from which it was branched, and the steps whose samples it passed over."""
        with suppress(ValueError):
            return Course.read(self.plan)
        return Course()

    @property
    def began_s(self) -> float:
        """When it began, since 1970."""
        return self.events[0].time_s if self.events else time.time()

    @property
    def ended(self) -> Event | None:
        """Its end; None while it runs, or where its launcher was killed."""
        ends = of_kind(self.events, Kind.END)
        return ends[-1] if ends else None

    @property
    def is_elsewhere(self) -> bool:
        """Whether its launcher is, or was, on another machine, whose processes nobody sees from here."""
        starts = of_kind(self.events, Kind.START)
        # A tuple, because a hostile folder may hold a list, which no set takes.
        return bool(starts) and starts[-1].fields.get("host") not in (None, platform.node())

    @property
    def is_left(self) -> bool:
        """Whether its launcher has gone without an end, as far as one can see from here."""
        with suppress(UsageError):
            pid, ticks = run_at(str(self.folder.path), self.folder.path).launcher
            return not (self.ended or self.is_elsewhere) and pid > 0 and began_ticks(pid) != ticks
        return False

    @property
    def samples_per_s(self) -> float:
        """While it trained, all ranks together; NaN where it is not known."""
        spent = list(dicts_in(self.summary.get("time")).values())
        samples = sum(positive_or_zero(one.get("samples")) for one in spent)
        seconds = max((sum(seconds_in(one).values()) for one in spent), default=0.0)
        return samples / seconds if seconds > 0 and samples > 0 else math.nan


class RunDataReader:
    """Reads a run's folder again and again; it may be half written or hostile. Of long files only what is new."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._events, self._curves = folder, EventReader(folder.events), CurveReader(folder.metrics)

    def read(self) -> RunData:
        """All that is there now."""
        plan, summary, decided = map(read_json, (self._folder.plan, self._folder.summary, self._folder.decided))
        return RunData(self._folder, plan, summary, decided, self._events.read(), self._curves.read())


def read_run_data(folder: RunFolder) -> RunData:
    """Read a run's folder, at one look."""
    return RunDataReader(folder).read()


def dicts_in(value: object) -> dict[str, dict[str, Any]]:
    """Of a value from a file, what has names; nothing where it is something else."""
    return {str(key): one for key, one in value.items() if isinstance(one, dict)} if isinstance(value, dict) else {}


def seconds_in(told: dict[str, Any]) -> dict[str, float]:
    """What a rank's steps took, part by part."""
    return {part: positive_or_zero(told.get(f"{part}_s")) for part in PARTS}


def positive_or_zero(value: object) -> float:
    """A number from a file; 0.0 for what is none."""
    number = finite(value)
    return number if number > 0 else 0.0
