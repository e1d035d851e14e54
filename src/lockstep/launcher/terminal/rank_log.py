"""The log of one rank: each byte that it writes, until the disk is full; then it ends with a whole line."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

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
        """Close the file."""
        os.close(self._descriptor)
