"""A file of lines that somebody else appends to, read on from where the last look ended."""

from __future__ import annotations

import os
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from samebits.machine.regular_file import open_regular

MOST_BYTES = 64 << 20
"""Of one look."""
PART_BYTES = 1 << 16
MARK_BYTES = 256
"""So much of what was read last must still stand there."""


class GrowingFile:
    """Reads on; and anew where the file was cut off, replaced or written again.

    Args:
        path: the file; a link, or anything that is not a regular file, has no lines.
        spreads: of a piece that is longer than `MOST_BYTES` parts are read, evenly spread over it. Otherwise the next look
            reads on.
    """

    def __init__(self, path: Path, *, spreads: bool = False) -> None:
        self.path, self._spreads = path, spreads
        self.is_whole = True
        """Whether no line was passed over."""
        self._file, self._offset, self._mark = (0, 0), 0, b""

    def new(self) -> tuple[bytes, bool]:
        """The lines since the last look, without one that is half written; and whether the file is read anew.

        Where nobody can read it, there is nothing new.
        """
        with suppress(OSError), open_regular(self.path, follow=False) as file:
            status = os.fstat(file.fileno())
            found = status.st_dev, status.st_ino
            file.seek(self._offset - len(self._mark))
            # An inode's number may be given again: what was read last tells one file from another.
            is_anew = found != self._file or file.read(len(self._mark)) != self._mark
            if is_anew:
                self._file, self._offset, self._mark, self.is_whole = found, 0, b"", True
            return self._lines(file, status.st_size), is_anew
        return b"", False

    def _lines(self, file: BufferedReader, size: int) -> bytes:
        if self._spreads and size - self._offset > MOST_BYTES:
            return self._spread(file, size)
        file.seek(self._offset)
        data = file.read(MOST_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        # A line that long is none.
        passed = whole or (data if len(data) == MOST_BYTES else b"")
        self._offset += len(passed)
        self._mark = (self._mark + passed[-MARK_BYTES:])[-MARK_BYTES:]
        return whole

    def _spread(self, file: BufferedReader, size: int) -> bytes:
        parts, found = MOST_BYTES // PART_BYTES, []
        for number in range(parts):
            file.seek(begin := self._offset + number * (size - PART_BYTES - self._offset) // (parts - 1))
            part = file.read(PART_BYTES)
            found.append(part[part.find(b"\n") + 1 : (end := part.rfind(b"\n") + 1)])
        self.is_whole, self._offset, self._mark = False, begin + end, part[:end][-MARK_BYTES:]
        return b"".join(found)
