"""The person's terminal: the ranks' output, the launcher's own lines, and one progress line that gives way to both.

Writing never fails: a terminal that was closed or a pipe without a reader is left alone, the run goes on and the logs
have everything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

OUT, ERR = 1, 2
DIM, BOLD, RED, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[0m"
ERASE = b"\r\x1b[K"


class Terminal:
    """Standard output and error of the launcher."""

    def __init__(self, variables: Mapping[str, str], out: int = OUT, err: int = ERR) -> None:
        self._descriptors = {OUT: out, ERR: err}
        self._is_terminal = {stream: _is_terminal(fd) for stream, fd in self._descriptors.items()}
        self._broken: set[int] = set()
        self._progress = b""
        self._mid_line = False
        plain = bool(variables.get("NO_COLOR")) or variables.get("TERM") == "dumb"
        self.updates = self._is_terminal[ERR] and variables.get("TERM") != "dumb"
        """Whether a line can be written over."""
        self._colours = self._is_terminal[ERR] and not plain

    def style(self, text: str, style: str) -> str:
        """`text` in a style, where standard error shows styles."""
        return f"{style}{text}{PLAIN}" if self._colours else text

    def pass_through(self, stream: int, data: bytes) -> None:
        """Write a rank's bytes as they are."""
        if self._is_terminal[stream]:
            self._erase()
            self._mid_line = not data.endswith(b"\n")
        self._write(stream, data)

    def say(self, line: str) -> None:
        """Write a line of the launcher on standard error."""
        self._erase()
        if self._mid_line and self._is_terminal[ERR]:
            self._write(ERR, b"\r\n")
        self._mid_line = False
        self._write(ERR, f"{line}\n".encode(errors="replace"))

    def progress(self, line: str | None) -> None:
        """Show `line` as the last one, in place of the one before; None takes it away."""
        if not line or self._mid_line:
            self._erase()
            return
        shown = line[: max(self.width - 1, 20)].encode(errors="replace")
        if shown != self._progress:
            self._write(ERR, ERASE + shown)
            self._progress = shown

    def _erase(self) -> None:
        if self._progress:
            self._write(ERR, ERASE)
            self._progress = b""

    @property
    def width(self) -> int:
        """The columns of standard error."""
        try:
            return os.get_terminal_size(self._descriptors[ERR]).columns or 80
        except OSError:
            return 80

    def _write(self, stream: int, data: bytes) -> None:
        if stream in self._broken:
            return
        try:
            while data:
                data = data[os.write(self._descriptors[stream], data) :]
        except BlockingIOError:
            os.set_blocking(self._descriptors[stream], True)
            self._write(stream, data)
        except OSError:
            self._broken.add(stream)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
