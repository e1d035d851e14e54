"""The file of a run's record, as one start of the ranks goes on with it.

Runs in: the main thread of rank 0.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from samebits.protocol.installation import VERSION as PACKAGE_VERSION
from samebits.protocol.record.lines import (
    CHAIN,
    CONDITIONS,
    DIFFERS,
    MOST_BYTES,
    RECORD,
    STEP,
    VERSION,
    Chain,
    decoded,
    split,
    unlinked,
)
from samebits.rank.recording.conditions import FILES, in_force

_CONDITIONS = b'{"conditions":'


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
        self.path, self._descriptor = path, os.open(path, flags | os.O_NONBLOCK, 0o600)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file")
        self.conditions: dict[str, Any] = {}
        """Those in force."""
        self.has_ended = False
        self._before = step - 1
        try:
            entries, size = self._read()
        except ValueError as error:
            os.close(self._descriptor)
            raise OSError(errno.EINVAL, f"it is damaged: {error}") from None
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

    def _read(self) -> tuple[deque[tuple[float, bytes]], int]:
        """The lines that count, each with its step, or a half more than the one that conditions follow; and their bytes."""
        found: deque[tuple[float, bytes]] = deque()
        size = 0
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            while (line := file.readline(MOST_BYTES + 1)).endswith(b"\n"):
                size += len(line)
                if line.startswith(b'{"step":'):
                    found.append((int(line[8 : line.index(b",")]), line[:-1]))
                elif line.startswith(_CONDITIONS):
                    after = decoded(line[:-1])["after"] + 0.5
                    while found and found[-1][0] >= after:
                        found.pop()
                    found.append((after, line[:-1]))
                elif line.startswith(b'{"differs":'):
                    self.has_ended = True
                elif not line.startswith((b'{"record":', b'{"start":', b'{"end":')):
                    raise ValueError("a line that is none of a record")
        if len(line) > MOST_BYTES:
            raise ValueError(f"a line of more than {MOST_BYTES >> 20} MiB")
        return found, size

    def _go_on_behind(self, line: bytes) -> None:
        """This line stands already."""
        self._chain = Chain(split(line)[1])
        if line.startswith(_CONDITIONS):
            self.conditions = decoded(line)[CONDITIONS]
            self.conditions.setdefault(FILES, {})

    def begin(self, start: Mapping[str, Any], found: dict[str, Any]) -> None:
        """Write that ranks have started, and the conditions where they are others; nothing to a record that has ended."""
        if self.has_ended:
            return
        if self._is_new:
            self.write(unlinked({RECORD: VERSION, "samebits": PACKAGE_VERSION}))
        self.write(unlinked(start))
        if not self._are_known(found):
            self.add_conditions(self._with_earlier_files(found), self._before)

    def _are_known(self, found: Mapping[str, Any]) -> bool:
        """Whether these are in force: files that are imported by now may have been imported late, and then stand further down."""
        later = [decoded(line)[CONDITIONS] for line in self._later if line.startswith(_CONDITIONS)]
        known = [self.conditions, *later] if self.conditions else later
        alike = takewhile(lambda one: in_force({**found, FILES: {}}, one), known)
        return any(in_force(found, one) for one in alike)

    def _with_earlier_files(self, found: dict[str, Any]) -> dict[str, Any]:
        """What earlier starts had imported by now, this one may import later; unless the files are others by now."""
        earlier, files = self.conditions.get(FILES, {}), found[FILES]
        is_alike = in_force({**found, FILES: {}}, self.conditions)
        if not is_alike or any(files.get(name, digest) != digest for name, digest in earlier.items()):
            return found
        return {**found, FILES: dict(sorted({**earlier, **files}.items()))}

    def add_conditions(self, found: dict[str, Any], after: int) -> None:
        """From the step behind `after` on these hold; what was recorded of it is made again."""
        self._later.clear()
        self._chain, self.conditions = Chain(self._link), found
        self.write(self._chain.line({CONDITIONS: found, "after": after}))

    def note_files(self, files: Mapping[str, str], after: int) -> None:
        """More of the script's files are imported, behind the step `after`."""
        if self.has_ended:
            return
        self._pass_files()
        if not self._are_known({**self.conditions, FILES: files}):
            all_files = {**self.conditions[FILES], **files}
            self.add_conditions({**self.conditions, FILES: dict(sorted(all_files.items()))}, after)

    def _pass_files(self) -> None:
        """The lines that come next say of files that they were imported here: an earlier start had imported less before."""
        while self._later and self._later[0].startswith(_CONDITIONS):
            if not in_force(self.conditions, decoded(self._later[0])[CONDITIONS]):
                # Others follow, of a start elsewhere; these here go on.
                return
            self._go_on_behind(self._later.popleft())

    def add_step(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Add a step, or compare it with its line; what was there, and what is now, where the two differ."""
        if self.has_ended:
            return None
        self._pass_files()
        if self._later and self._later[0].startswith(_CONDITIONS):
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
