"""The person's terminal: the ranks' output, the launcher's own lines, and one progress line that gives way to both.

Writing never fails: a terminal that was closed or a pipe without a reader is left alone, the run goes on and the logs
have everything.
"""

from __future__ import annotations

import os
from codecs import getincrementaldecoder
from collections.abc import Mapping
from typing import TextIO

_Utf8 = getincrementaldecoder("utf-8")
OUT, ERR = 1, 2
DIM, BOLD, RED, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[0m"
ERASE = b"\r\x1b[K"


class Terminal:
    """Standard output and error of the launcher."""

    def __init__(self, variables: Mapping[str, str], out: int | TextIO = OUT, err: int | TextIO = ERR) -> None:
        """Write to descriptors, or to what a notebook or a test has put in the place of sys.stdout and sys.stderr."""
        self._descriptors = {stream: sink for stream, sink in ((OUT, out), (ERR, err)) if isinstance(sink, int)}
        self._texts = {stream: sink for stream, sink in ((OUT, out), (ERR, err)) if not isinstance(sink, int)}
        self._decoders = {stream: _Utf8(errors="replace") for stream in self._texts}
        self._is_terminal = {stream: _is_terminal(self._descriptors.get(stream)) for stream in (OUT, ERR)}
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
        except (OSError, KeyError):
            return 80

    def _write(self, stream: int, data: bytes) -> None:
        if stream in self._broken:
            return
        if stream in self._texts:
            self._write_text(stream, data)
            return
        try:
            while data:
                data = data[os.write(self._descriptors[stream], data) :]
        except BlockingIOError:
            os.set_blocking(self._descriptors[stream], True)
            self._write(stream, data)
        except OSError:
            self._broken.add(stream)

    def _write_text(self, stream: int, data: bytes) -> None:
        try:
            self._texts[stream].write(self._decoders[stream].decode(data))
            self._texts[stream].flush()
        except (OSError, ValueError):  # closed
            self._broken.add(stream)


def _is_terminal(descriptor: int | None) -> bool:
    try:
        return descriptor is not None and os.isatty(descriptor)
    except OSError:
        return False
