"""The pipes of the ranks' standard output and error.

Each byte goes into the rank's log, and to the terminal as `rank_output` decides.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.launcher.terminal.losses import Losses
from lockstep.launcher.terminal.rank_log import RankLog
from lockstep.launcher.terminal.rank_output import LineCutter, OtherRanks
from lockstep.launcher.terminal.terminal import ERR, OUT, Terminal

CHUNK_BYTES = 1 << 16
_NAMES = {OUT: "standard output", ERR: "standard error"}


@dataclass
class _Stream:
    rank: int
    target: int
    descriptor: int
    cutter: LineCutter = field(default_factory=LineCutter)
    is_open: bool = True


class RankStreams:
    """All pipes of a run. The launcher's loop calls the readers; `end` when every rank and its children are gone."""

    def __init__(self, selector: selectors.BaseSelector, logs: dict[int, Path], losses: Losses) -> None:
        self._selector = selector
        self._losses = losses
        self._terminal: Terminal | None = losses.saying.terminal
        self._paths = logs
        self._logs = {rank: RankLog(path) for rank, path in logs.items()}
        self._streams: list[_Stream] = []
        self._others = OtherRanks(logs)

    def new_pipes(self, rank: int) -> tuple[int, int]:
        """Return the writing ends of a rank's standard output and error; the caller closes them."""
        ends = []
        for target in (OUT, ERR):
            reading, writing = os.pipe()
            stream = _Stream(rank, target, reading)
            self._streams.append(stream)
            self._selector.register(reading, selectors.EVENT_READ, self._reader(stream))
            ends.append(writing)
        return ends[0], ends[1]

    def _reader(self, stream: _Stream) -> Callable[[], None]:
        def read() -> None:
            data = os.read(stream.descriptor, CHUNK_BYTES)
            if data:
                self._take(stream, data)
            else:
                self._close(stream)

        return read

    def _take(self, stream: _Stream, data: bytes) -> None:
        if reason := self._logs[stream.rank].write(data):
            log = self._paths[stream.rank]
            self._losses.add(f"{log} cannot be written ({reason}): later output of rank {stream.rank} is not in it")
        if self._terminal is None:
            return
        if stream.rank == 0 and (reason := self._terminal.pass_through(stream.target, data)):
            name, log = _NAMES[stream.target], self._paths[0]
            self._losses.add(f"{name} cannot be written ({reason}): later output of rank 0 there is only in {log}")
        self._sort(stream.rank, stream.cutter.feed(data))

    def _sort(self, rank: int, lines: list[str]) -> None:
        now = time.monotonic()
        for line in lines:
            if rank == 0:
                self._others.saw(line, now)
            else:
                self._others.add(rank, line, now)

    def _close(self, stream: _Stream) -> None:
        self._sort(stream.rank, stream.cutter.end())
        self._selector.unregister(stream.descriptor)
        stream.is_open = False
        os.close(stream.descriptor)

    def show_due(self, now: float) -> float | None:
        """Show the other ranks' lines whose time has come; return the time of the next one, or None."""
        if self._terminal is not None:
            for line in self._others.due(now):
                self._terminal.say(line)
        return self._others.next_due()

    @property
    def drained(self) -> bool:
        """Whether every pipe has been read to its end."""
        return not any(stream.is_open for stream in self._streams)

    def end(self) -> None:
        """Close everything, and show what still waits."""
        for stream in self._streams:
            if stream.is_open:
                self._close(stream)
        if self._terminal is not None:
            for line in self._others.end():
                self._terminal.say(line)
        for log in self._logs.values():
            log.close()
