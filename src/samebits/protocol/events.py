"""The events of a run: `events.jsonl` in its folder, a JSON object on each line, oldest first.

Every line has `event` (a `Kind`), `time` (seconds since 1970) and `step` (the newest one known, 0 before the first); the
other fields are those of its kind. The launcher writes all of them but `resume`, `evaluation` and `checkpoint`, which rank 0 knows. A
reader takes the lines that it knows and leaves the others out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from samebits.machine.growing_file import GrowingFile
from samebits.protocol.run_folder import add_line, objects_in

SCHEMA = 1
"""Of `events.jsonl` and `summary.json`; it rises when a field changes its meaning or goes."""


class Kind(StrEnum):
    """What a line is about, and its fields."""

    START = "start"
    """All ranks start: attempt (0, 1, ...), ranks, device, threads, host (of the launcher); the first one also has schema."""
    RESUME = "resume"
    """Ranks resume from a state: step."""
    PACE = "pace"
    """Now and then: epoch, num_epochs, step_in_epoch, steps_per_epoch, loss, samples_per_s, step_ms, memory (bytes per
    rank), shares (of the time of a step: data, compute, exchange, optimizer, other)."""
    EVALUATION = "evaluation"
    """An evaluation has ended: seconds."""
    CHECKPOINT = "checkpoint"
    """A state is complete: path, and stall_s where it was written beside the steps."""
    KILL = "kill"
    """A signal that samebits did not send has ended a rank: rank, signal, place."""
    FAILURE = "failure"
    """A rank has failed by itself: rank, said."""
    DAMAGE = "damage"
    """A rank no longer held the same bits as the others: rank, said."""
    RESTART = "restart"
    """All ranks start again: restart, ranks, said, from (a step; null: the beginning), in_memory, steps_again."""
    NODES = "nodes"
    """Who takes part from now on: said, or nodes (host and ranks of each)."""
    STALL = "stall"
    """A rank holds others up: ranks, finding, said."""
    FINDING = "finding"
    """Another finding: ranks, finding, said."""
    END = "end"
    """The run is over: exit_code, signal, seconds."""


@dataclass(frozen=True)
class Event:
    kind: Kind
    time_s: float
    """Since 1970."""
    step: int
    fields: dict[str, Any]

    @property
    def said(self) -> str:
        """The sentence of the terminal, on one line; empty where there is none."""
        said = self.fields.get("said")
        return " ".join(said.split()) if isinstance(said, str) else ""

    def number(self, name: str) -> float:
        """A field that is a finite number; NaN where it is none."""
        return finite(self.fields.get(name))


def finite(value: object) -> float:
    """The number; NaN where it is none, or too large for a float."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return math.nan


def add_event(path: Path, kind: Kind, step: int, /, *, time_s: float | None = None, **fields: Any) -> None:
    """Append a line; a disk that is full loses the record, not the run.

    Args:
        path: `events.jsonl`.
        kind: what happened.
        step: the newest step known.
        time_s: when, in seconds since 1970; None: now.
        fields: those of the kind, as JSON.
    """
    add_line(path, {"event": kind, "time": round(time.time() if time_s is None else time_s, 3), "step": step, **fields})


class EventReader:
    """Reads the events of a run's file again and again; it may be half written or hostile, and what is none is left out."""

    def __init__(self, path: Path) -> None:
        self._file, self._events = GrowingFile(path), list[Event]()

    def read(self) -> list[Event]:
        """All of them."""
        lines, is_anew = self._file.new()
        if is_anew:
            self._events.clear()
        self._events += [event for line in objects_in(lines) if (event := _decoded(line)) is not None]
        return list(self._events)


def events_in(path: Path) -> list[Event]:
    """The events of a run's file, at one look."""
    return EventReader(path).read()


def _decoded(line: dict[str, Any]) -> Event | None:
    kind, step, at = line.get("event"), line.get("step"), finite(line.get("time"))
    if kind not in tuple(Kind) or type(step) is not int or not 0 <= step < 1 << 53 or not math.isfinite(at):
        return None
    fields = {name: value for name, value in line.items() if name not in {"event", "time", "step"}}
    return Event(Kind(kind), at, step, fields)


def of_kind(events: Iterable[Event], *kinds: Kind) -> list[Event]:
    """Those of these kinds, in their order."""
    return [event for event in events if event.kind in kinds]


def executed_steps(events: Sequence[Event], last: Sequence[int]) -> int:
    """How many steps all starts of the ranks executed, those included that a later start executed again.

    Args:
        events: of the run.
        last: the last step of each start, the first start first.
    """
    first, number = [0] * len(last), -1
    for event in events:
        if event.kind is Kind.START:
            number += 1
        elif event.kind is Kind.RESUME and 0 <= number < len(first):
            first[number] = event.step
    return sum(max(end - begin, 0) for begin, end in zip(first, last, strict=True))
