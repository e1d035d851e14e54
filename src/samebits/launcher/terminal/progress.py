"""The progress line, from the ranks' gauges: where the run is, how fast, and where the time goes.

Rates and shares cover the last seconds, not the whole run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.launcher.diagnosis.spent import PARTS, TIME_NAMES, percents
from samebits.protocol.journal.gauges import Gauges
from samebits.protocol.journal.ring import ENDING, Phase, Record

WINDOW_S = 5.0
MAX_NOTES = 3
UNLIMITED = 1 << 16
LEAST_SHARE = 5
"""Percent of a step."""


@dataclass(frozen=True)
class Snapshot:
    """All ranks' gauges at one moment."""

    time_s: float
    gauges: tuple[Gauges, ...]

    @property
    def steps(self) -> int:
        """Rank 0's; all ranks make the same steps."""
        return self.gauges[0].step


class Progress:
    def __init__(self) -> None:
        self._window: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Take the newest gauges; forget those older than the window, but one, and the time before the first step.

        Before other nodes have told theirs, the gauges are those of fewer ranks: they tell nothing about how fast all are.
        """
        last = self._window[-1] if self._window else None
        if last is not None and (not last.steps or len(last.gauges) != len(snapshot.gauges)):
            self._window.clear()
        self._window.append(snapshot)
        while len(self._window) > 2 and self._window[1].time_s <= snapshot.time_s - WINDOW_S:
            self._window.popleft()

    def line(self, note: Mapping[str, Any], width: int = UNLIMITED, last: Record | None = None) -> str:
        """Return the line; empty before the first step.

        Args:
            note: the last values of `run.log`.
            width: how many columns there are.
            last: what rank 0 did last. Outside of steps the line says it: their rates would only fade.
        """
        if not self._window or not self._window[-1].steps:
            return ""
        first = self._window[-1].gauges[0]
        if beside := _beside_steps(first, last):
            return "  ".join(filter(None, [_epoch(first), _step(first), _loss(first), beside]))
        return progress_line(self._window[0], self._window[-1], note, width)


def _beside_steps(gauges: Gauges, last: Record | None) -> str:
    """What rank 0 does where that is no step."""
    if last is None or last.is_in_step:
        return ""
    if last.phase is Phase.EVALUATE:
        return "evaluating …"
    if last.operation == ENDING:
        return "comparing weights …"
    is_last = gauges.num_epochs == gauges.epoch and 0 < gauges.steps_per_epoch == gauges.step_in_epoch
    return "after the last step …" if is_last else ""


def progress_line(old: Snapshot, new: Snapshot, note: Mapping[str, Any], width: int = UNLIMITED) -> str:
    """One line about `new`, with the rates since `old`.

    What does not fit in `width` columns is left out whole: first the values of `run.log`, then shares, the smallest first.
    """
    first = new.gauges[0]
    begin, shares = [_epoch(first), _step(first), _loss(first)], _shares(old, new)
    rate, left = _rate(old, new), _left(old, new)
    forms = [(_notes(note), len(shares)), *(([], count) for count in range(len(shares), -1, -1))]
    for notes, count in forms:
        largest = sorted(shares, key=lambda name: -shares[name])[:count]
        parts = " ".join(f"{name} {share}%" for name, share in shares.items() if name in largest)
        line = "  ".join(filter(None, [*begin, *notes, rate, parts, left]))
        if len(line) < width:
            break
    return line


def _epoch(gauges: Gauges) -> str:
    if not gauges.epoch:
        return ""
    return f"epoch {gauges.epoch}/{gauges.num_epochs}" if gauges.num_epochs else f"epoch {gauges.epoch}"


def _step(gauges: Gauges) -> str:
    if gauges.steps_per_epoch:
        return f"step {gauges.step_in_epoch}/{gauges.steps_per_epoch}"
    return f"step {gauges.step}"


def _loss(gauges: Gauges) -> str:
    return f"loss {gauges.loss:#.4g}" if gauges.num_losses else ""


def _notes(note: Mapping[str, Any]) -> Sequence[str]:
    numbers = [(name, value) for name, value in note.items() if isinstance(value, int | float) and name != "loss"]
    return [f"{name} {value:.4g}" for name, value in numbers[:MAX_NOTES]]


def _rate(old: Snapshot, new: Snapshot) -> str:
    elapsed, steps = new.time_s - old.time_s, new.steps - old.steps
    samples = sum(_samples(before, now, steps) for before, now in zip(old.gauges, new.gauges, strict=True))
    return f"{samples / elapsed:,.0f} samples/s" if elapsed > 0 and samples > 0 else ""


def _samples(old: Gauges, new: Gauges, steps: int) -> float:
    """The samples of one rank in so many steps of rank 0: what other nodes tell is a second or two old, and steps are the same."""
    if new.step > old.step:
        return (new.samples - old.samples) * steps / (new.step - old.step)
    return new.samples * steps / new.step if new.step else 0.0


def _shares(old: Snapshot, new: Snapshot) -> dict[str, int]:
    """Of the whole time of the steps, those that are worth a word."""

    def spent(part: str) -> int:
        return sum(int(getattr(gauges, f"{part}_ns")) for gauges in new.gauges) - sum(
            int(getattr(gauges, f"{part}_ns")) for gauges in old.gauges
        )

    parts = {TIME_NAMES[part]: spent(part) for part in PARTS}
    if sum(parts.values()) <= 0:
        return {}
    return {name: share for name, share in percents(parts).items() if share >= LEAST_SHARE}


def _left(old: Snapshot, new: Snapshot) -> str:
    """The time left for all epochs, or for this one when the script does not say how many there are."""
    now = new.gauges[0]
    epochs_after = max(now.num_epochs - now.epoch, 0)
    remaining = epochs_after * now.steps_per_epoch + now.steps_per_epoch - now.step_in_epoch
    made, elapsed = new.steps - old.steps, new.time_s - old.time_s
    if not now.steps_per_epoch or made <= 0 or remaining <= 0:
        return ""
    return f"{duration(remaining * elapsed / made)} left{'' if now.num_epochs else ' in epoch'}"


def duration(seconds: float) -> str:
    """`0:42`, `12:05`, `3:07:00`."""
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
