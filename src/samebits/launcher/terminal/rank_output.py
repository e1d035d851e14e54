"""The ranks' output: read from their pipes, written to a log for each rank, and what of it reaches the terminal."""

from __future__ import annotations

import os
import selectors
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from samebits.launcher.terminal.cases import Losses
from samebits.launcher.terminal.terminal import ERR, OUT, Terminal
from samebits.machine.visible import without_colours

MAX_LINE_BYTES = 4096
HOLD_S = 0.5
"""How long a line of another rank waits: rank 0 prints the same line a little later as often as earlier."""
RECENT_S = 30.0
"""How long a repeated line counts as the same."""
LINES_PER_S = 20
BURST = 20


@dataclass
class LineCutter:
    """Cuts one stream into lines as a terminal would show them: what a carriage return overwrites is not a line."""

    _rest: bytes = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            kept = self._rest.rpartition(b"\r")[2] if b"\r" in self._rest else self._rest
            if len(kept) > MAX_LINE_BYTES:
                whole.append(kept)
                kept = b""
            self._rest = kept
        return [_shown(line) for line in whole]

    def end(self) -> list[str]:
        """Return the last line, if it has no end."""
        rest, self._rest = self._rest, b""
        return [_shown(rest)] if rest.strip() else []


def _shown(line: bytes) -> str:
    left = line.rstrip(b"\r").rpartition(b"\r")[2]
    return without_colours(left[:MAX_LINE_BYTES].decode(errors="replace")).rstrip()


@dataclass
class _Bucket:
    tokens: float = BURST
    filled_s: float = 0.0
    dropped: int = 0

    def take(self, now: float) -> bool:
        self.tokens = min(BURST, self.tokens + (now - self.filled_s) * LINES_PER_S)
        self.filled_s = now
        if self.tokens < 1:
            self.dropped += 1
            return False
        self.tokens -= 1
        return True


MAX_SEEN = 4096
"""How many lines are remembered."""


@dataclass
class OtherRanks:
    """Decides which lines of the ranks above 0 are displayed."""

    logs: dict[int, Path]
    """Where a rank's whole output is, for the line that says how much was left out."""
    _held: deque[tuple[float, int, str]] = field(default_factory=deque)
    _seen: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """The last lines, the newest at the end."""
    _buckets: dict[int, _Bucket] = field(default_factory=dict)

    def saw(self, line: str, now: float) -> None:
        """Note that rank 0 printed `line`."""
        self._remember(line, now)

    def add(self, rank: int, line: str, now: float) -> None:
        """Take a line that another rank printed."""
        # Held back for a moment: if rank 0 prints the same line meanwhile, this one is left out.
        if line.strip():
            self._held.append((now + HOLD_S, rank, line))

    def due(self, now: float) -> list[str]:
        """Return the lines to show now."""
        lines: list[str] = []
        while self._held and self._held[0][0] <= now:
            _, rank, line = self._held.popleft()
            if now - self._seen.get(line, float("-inf")) > RECENT_S:
                lines += self._limited(rank, line, now)
            self._remember(line, now)
        return lines

    def next_due(self) -> float | None:
        """When `due` has something to say; None when nothing waits."""
        return self._held[0][0] if self._held else None

    def end(self) -> list[str]:
        """Return everything that still waits, and how much was left out."""
        lines = self.due(float("inf")) if not self._held else self.due(self._held[-1][0])
        for rank in sorted(self._buckets):
            lines += self._left_out(rank)
        return lines

    def _limited(self, rank: int, line: str, now: float) -> list[str]:
        bucket = self._buckets.setdefault(rank, _Bucket(filled_s=now))
        if not bucket.take(now):
            return []
        return [*self._left_out(rank), f"[rank {rank}] {line}"]

    def _left_out(self, rank: int) -> list[str]:
        bucket = self._buckets[rank]
        dropped, bucket.dropped = bucket.dropped, 0
        return (
            [f"[rank {rank}] {dropped} more line{'s' if dropped > 1 else ''} in {self.logs[rank]}"] if dropped else []
        )

    def _remember(self, line: str, now: float) -> None:
        self._seen[line] = now
        self._seen.move_to_end(line)
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)


LOOKED_AT_BYTES = 1 << 16
"""How many of the last bytes are searched for the end of a line."""


class RankLog:
    """The launcher's end; the rank itself appends its traceback to the same file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._broken = False

    def write(self, data: bytes) -> str:
        """Append, or return once why that failed; what comes later is dropped, so the log has no gap."""
        try:
            while data and not self._broken:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self._broken = True
            with suppress(OSError):
                self._end_with_a_whole_line()
            return error.strerror or str(error)
        return ""

    def _end_with_a_whole_line(self) -> None:
        size = os.fstat(self._descriptor).st_size
        start = max(size - LOOKED_AT_BYTES, 0)
        end = os.pread(self._descriptor, size - start, start).rfind(b"\n")
        if end >= 0:
            os.ftruncate(self._descriptor, start + end + 1)

    def close(self) -> None:
        os.close(self._descriptor)


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
        self._terminal: Terminal | None = losses.console.terminal
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
