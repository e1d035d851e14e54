"""The file of a run's record, as one start of the ranks goes on with it.

Runs in: the main thread of rank 0.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samebits.protocol.installation import VERSION as PACKAGE_VERSION
from samebits.protocol.record.lines import (
    CHAIN,
    CONDITIONS,
    DIFFERS,
    RECORD,
    STEP,
    VERSION,
    Chain,
    decoded,
    split,
    unlinked,
)
from samebits.rank.recording.conditions import FILES, in_force


class RecordFile:
    """The file of one start.

    Args:
        path: where; what earlier starts wrote is kept.
        step: the first one that this start writes.

    Raises:
        OSError: when it cannot be opened or written.
    """

    def __init__(self, path: Path, step: int) -> None:
        # It stays open: on a network disk each closing would wait for the server.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.path, self._descriptor = path, os.open(path, flags, 0o600)
        self.conditions: dict[str, Any] = {}
        """Those in force."""
        self.has_ended = False
        self._before = step - 1
        entries, size = self._read(path)
        # A line that a machine's end has cut.
        os.ftruncate(self._descriptor, size)
        self._is_new, self._link = not size, ""
        self._chain = Chain()
        while entries and entries[0][0] < step:
            number, line = entries.popleft()
            self._go_on_behind(line)
            if number == int(number):
                self._link = self._chain.head
        self._later = deque(line for _, line in entries)
        """Lines of this step and later ones, which are compared."""

    def _read(self, path: Path) -> tuple[deque[tuple[float, bytes]], int]:
        """The lines that count, each with its step, or a half more than the one that conditions follow; and their bytes."""
        found: deque[tuple[float, bytes]] = deque()
        size = 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                size += len(line)
                if line.startswith(b'{"step":'):
                    found.append((int(line[8 : line.index(b",")]), line[:-1]))
                elif line.startswith(b'{"conditions":'):
                    after = decoded(line[:-1])["after"] + 0.5
                    while found and found[-1][0] >= after:
                        found.pop()
                    found.append((after, line[:-1]))
                elif line.startswith(b'{"differs":'):
                    self.has_ended = True
        return found, size

    def _go_on_behind(self, line: bytes) -> None:
        """This line stands already."""
        self._chain = Chain(split(line)[1])
        if line.startswith(b'{"conditions":'):
            self.conditions = decoded(line)[CONDITIONS]

    def begin(self, start: Mapping[str, Any], found: dict[str, Any]) -> None:
        """Write that ranks have started, and the conditions where they are others."""
        if self._is_new:
            self.write(unlinked({RECORD: VERSION, "samebits": PACKAGE_VERSION}))
        self.write(unlinked(start))
        later = [decoded(line)[CONDITIONS] for line in self._later if line.startswith(b'{"conditions":')]
        if not any(in_force(found, one) for one in (self.conditions, *later[:1])):
            self.add_conditions(found, self._before)

    def add_conditions(self, found: dict[str, Any], after: int) -> None:
        """From the step behind `after` on these hold; what was recorded of it is made again."""
        self._later.clear()
        self._chain, self.conditions = Chain(self._link), found
        self.write(self._chain.line({CONDITIONS: found, "after": after}))

    def note_files(self, files: Mapping[str, str], after: int) -> None:
        """More of the script's files are imported, behind the step `after`."""
        self._pass_files()
        if not files.items() <= self.conditions[FILES].items():
            self.add_conditions(
                {**self.conditions, FILES: dict(sorted({**self.conditions[FILES], **files}.items()))}, after
            )

    def _pass_files(self) -> None:
        """The lines that come next say of files that they were imported here: an earlier start had imported less before."""
        while self._later and self._later[0].startswith(b'{"conditions":'):
            if not in_force({**self.conditions}, decoded(self._later[0])[CONDITIONS]):
                # Others follow, of a start elsewhere; these here go on.
                return
            self._go_on_behind(self._later.popleft())

    def add_step(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Add a step, or compare it with its line; what was there, and what is now, where the two differ."""
        if self.has_ended:
            return None
        self._pass_files()
        if self._later and self._later[0].startswith(b'{"conditions":'):
            self.add_conditions(self.conditions, body[STEP] - 1)
        line = self._chain.line(body)
        self._link = self._chain.head
        if not self._later:
            self.write(line)
            return None
        there = self._later.popleft()
        if there == line:
            return None
        self.has_ended = True
        was, now = ({key: value for key, value in decoded(one).items() if key != CHAIN} for one in (there, line))
        self.write(unlinked({DIFFERS: body[STEP], "was": was, "is": now}))
        return was, now

    def write(self, line: bytes) -> None:
        """Add a line, all of it or nothing."""
        data = line + b"\n"
        size = os.fstat(self._descriptor).st_size
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise
