"""What `run.log` writes: one JSON object per line in the run folder, by rank 0; newest values for the progress line.

A line that cannot be written is reported to the launcher, and training continues; the next one is tried again.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from samebits.machine.clocks import growing_time, resume_from
from samebits.machine.regular_file import read_regular
from samebits.protocol.events import finite
from samebits.protocol.metric_lines import Delivered, decoded, values_of, without_time
from samebits.protocol.run_folder import read_lines, write_private
from samebits.rank.position.step_timer import StepTimer

_settled: set[Path] = set()
"""The files that were dealt with: what a second `samebits.init` of this process finds there is its own."""


class EarlierLines:
    """The first `size_bytes` of the file, which earlier ranks wrote; nothing where that is 0, or on ranks that do not write."""

    def __init__(self, path: Path | None, size_bytes: int, step_timer: StepTimer) -> None:
        self._path = path if size_bytes and path not in _settled else None
        self._size, self._step_timer = size_bytes, step_timer
        self.delivered = Delivered()
        """What was passed on to `run.log_to` by the ranks that wrote them."""
        self.has_mine = False
        """Whether they have what this start wrote so far, on its way to a state of the same run."""

    def keep_until(self, step: int, saved_s: float) -> None:
        """Keep those up to `step`, after which a state was saved at `saved_s` (growing_time); the first call counts."""
        resume_from(saved_s, step)
        if (path := self._path) is None:
            return
        self._path = None
        _settled.add(path)
        try:
            data = read_regular(path)
            earlier = data[: self._size].decode(errors="replace").splitlines(keepends=True)
            self.delivered = Delivered.until(values for line in earlier if (values := decoded(line)) is not None)
            mine = "" if self.has_mine else data[self._size :].decode(errors="replace")
            write_private(path, "".join([*kept(earlier, step, saved_s), mine]))
        except OSError as error:
            self._step_timer.lost(f"{path.name} cannot be written again ({error.strerror}): it has steps twice")

    def keep_none(self) -> None:
        """The run begins from its beginning."""
        self.keep_until(0, 0.0)


def kept(lines: list[str], step: int, saved_s: float) -> list[str]:
    """The lines that a run keeps when it resumes from the state after `step`, which was saved at `saved_s`."""
    known = [(line, values) for line in lines if (values := decoded(line)) is not None]
    return [line for line, its in known if (its["step"], finite(its.get("time"))) <= (step, saved_s)]


def keep(path: Path, text: str, step_timer: StepTimer) -> None:
    """Atomically write a file that the run can do without."""
    try:
        write_private(path, text)
    except OSError as error:
        step_timer.lost(f"{path.name} cannot be written ({error.strerror})")


def append_line(path: Path, line: str) -> None:
    """Append a line, all of it or nothing. A new file gets mode 0600. One process writes.

    Raises:
        OSError: when it cannot be written; the file still ends with a whole line.
    """
    data = f"{line}\n".encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            # A disk that is full may have taken a part of the line.
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


class MetricsFile:
    """Appends to `metrics.jsonl`; does nothing where there is no folder or this is not rank 0."""

    def __init__(self, path: Path | None, step_timer: StepTimer, earlier_bytes: int = 0) -> None:
        self._path, self._step_timer = path, step_timer
        self.earlier = EarlierLines(path, earlier_bytes, step_timer)
        self.has_written = False
        """Whether this start has logged anything."""
        self._shown: dict[str, float] = {}
        self._lost = ""
        self._recent: list[dict[str, Any]] = []
        """The lines of this step and the one before: the same on every rank, up to their times."""
        self.listeners: list[Callable[[dict[str, float], int], None]] = []
        """Functions of `run.log_to`, on rank 0."""
        self.is_held = False
        """Whether what is logged is in the file already: the body of an epoch runs again up to where its steps continue."""

    def write(self, values: dict[str, float]) -> None:
        """Write one line: step, epoch, time, values."""
        self._shown |= values
        self._step_timer.note(self._shown)
        if self.is_held:
            return
        step = self._step_timer.step
        line: dict[str, Any] = {"step": step, "epoch": self._step_timer.epoch, "time": growing_time(step)}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._recent = [one for one in self._recent if one["step"] >= step - 1]
        self._recent.append(line | finite)
        self._write(line | finite)

    def recent(self, step: int) -> list[dict[str, Any]]:
        """The lines of `step`, which is this one or the one before."""
        return [line for line in self._recent if line["step"] == step]

    def catch_up(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write those of `lines` that are not in the file: the rank that writes it was lost before it came to them."""
        if self._path is None or not lines:
            return
        there = Counter(map(without_time, read_lines(self._path)))
        for line in lines:
            there[without_time(line)] -= 1
            if there[without_time(line)] < 0:
                self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        self.has_written = True
        if self.listeners and self.earlier.delivered.takes(line):
            for listener in self.listeners:
                listener(values_of(line), line["step"])
        if self._path is not None:
            try:
                append_line(self._path, json.dumps(line))
            except OSError as error:
                if not self._lost:
                    self._lost = f"{self._path.name} cannot be written ({error.strerror}): values of run.log are lost"
                    self._step_timer.lost(f"{self._lost}, the first in step {self._step_timer.step}")
