"""Which of the ranks' output reaches the terminal. Pure: bytes and times in, lines out.

Rank 0's passes as it is; the others' line by line, limited, without colours, and a line that several ranks print only
once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.machine.visible import without_colours

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
    """A rank's allowance of lines."""

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
    """Decides which lines of the ranks above 0 are shown."""

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
