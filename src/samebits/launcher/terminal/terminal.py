"""The user's terminal: the ranks' output, the launcher's own lines, and one progress line that gives way to both.

Rank 0's bytes pass as they are; everything else goes through `visible` here, so nothing from a rank, an exception or a
file name acts on the terminal or looks like a line of the launcher.

Writing never fails: a closed terminal or a pipe without a reader is left alone, the run goes on and the logs have
everything. What a full disk swallows is reported to the caller.
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from codecs import getincrementaldecoder
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TextIO

from samebits.launcher.terminal.report import LABEL_WIDTH, QUOTED, Line, lines_of
from samebits.machine.visible import visible

_WORD = re.compile(r" *[^ ]+")


def columns(text: str) -> int:
    """The columns that `text` takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, most: int) -> str:
    """As much of the beginning as fits in `most` columns."""
    if text.isascii():
        return text[:most]
    left = most
    for number, letter in enumerate(text):
        left -= _columns(letter)
        if left < 0:
            return text[:number]
    return text


def folded(text: str, most: int) -> list[str]:
    """The text in rows of at most `most` columns, broken only at spaces: a longer path stays whole.

    Invariant: the rows have the same words in the same order.
    """
    rows = [""]
    for word in _WORD.findall(text):
        if rows[-1] and columns(rows[-1]) + columns(word) > most:
            rows.append(word.lstrip(" "))
        else:
            rows[-1] += word
    return rows


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


_Utf8 = getincrementaldecoder("utf-8")
OUT, ERR = 1, 2
DIM, BOLD, RED, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[0m"
ERASE = b"\r\x1b[K"
END_OF_STRING, END_OF_STYLES = b"\x1b\\", b"\x1b[0m"
"""What a script may have left open: an escape sequence that swallows text, colours."""
LEAST_COLUMNS, MOST_COLUMNS = 40, 100
"""How wide a line of the launcher is, however narrow or wide the terminal."""
ENDLESS = 1 << 30
"""How wide it is elsewhere."""
TIMES = "SAMEBITS_TIMES"
"""The variable that keeps times off lines: `off`."""
GAP = "   "
"""Before dim text."""


class Terminal:
    """Standard output and error of the launcher."""

    def __init__(self, variables: Mapping[str, str], out: int | TextIO = OUT, err: int | TextIO = ERR) -> None:
        """Write to descriptors, or to what a notebook or a test has put in place of sys.stdout and sys.stderr."""
        self._descriptors = {stream: sink for stream, sink in ((OUT, out), (ERR, err)) if isinstance(sink, int)}
        self._texts = {stream: sink for stream, sink in ((OUT, out), (ERR, err)) if not isinstance(sink, int)}
        self._decoders = {stream: _Utf8(errors="replace") for stream in self._texts}
        self._is_terminal = {stream: _is_terminal(self._descriptors.get(stream)) for stream in (OUT, ERR)}
        self._broken: set[int] = set()
        self._progress = b""
        self._mid_line = self._left_open = False
        self.lost: dict[int, str] = {}
        """Why a stream that still has a reader could not be written."""
        plain = bool(variables.get("NO_COLOR")) or variables.get("TERM") == "dumb"
        self.updates = self._is_terminal[ERR] and variables.get("TERM") != "dumb"
        """Whether a line can be overwritten."""
        self._colours = self._is_terminal[ERR] and not plain
        self._has_times = not self._is_terminal[ERR] and isinstance(err, int) and variables.get(TIMES) != "off"

    @property
    def time(self) -> str:
        """`14:05:31 `, before a line of the launcher that goes to a file or a pipe; empty elsewhere."""
        return f"{datetime.now().astimezone():%H:%M:%S} " if self._has_times else ""

    def style(self, text: str, style: str) -> str:
        """`text` in a style, where standard error shows styles."""
        return f"{style}{text}{PLAIN}" if self._colours else text

    def pass_through(self, stream: int, data: bytes) -> str:
        """Write a rank's bytes as they are; return once why they are lost, empty when they are not."""
        if self._is_terminal[stream]:
            self._erase()
            self._mid_line = not data.endswith(b"\n")
            self._left_open = self._left_open or b"\x1b" in data
        return self._write(stream, data)

    def say(self, text: str, label: str = "", style: str = "", aside: str = "") -> None:
        """Write a line of the launcher to standard error; on a terminal as several, if it is long, aligned after the label."""
        most = ENDLESS
        if label and self._is_terminal[ERR]:
            most = max(min(self.width, MOST_COLUMNS) - len(label), LEAST_COLUMNS)
        rows, dim = folded(visible(text), most), [self.style(row, DIM) for row in folded(visible(aside), most) if row]
        if len(dim) == 1 and columns(rows[-1]) + len(GAP) + columns(visible(aside)) <= most:
            rows[-1] += GAP + dim.pop()
        rows += dim
        under = "\n" + " " * len(label)
        self._begin_line()
        self._write(ERR, f"{self.style(label, style) if label else ''}{under.join(rows)}\n".encode())

    def settle(self) -> None:
        """End what the ranks left open (an unfinished escape sequence, colours), once none writes any more."""
        if self._left_open and self.updates:
            self._write(ERR, END_OF_STRING + END_OF_STYLES)
        self._left_open = False

    def progress(self, line: str | None) -> None:
        """Show `line` as the last one, in place of the one before; None removes it."""
        if not line or self._mid_line:
            self._erase()
            return
        shown = cut(visible(line), max(self.width - 1, 20)).encode()
        if shown != self._progress:
            self._write(ERR, ERASE + shown)
            self._progress = shown

    def _begin_line(self) -> None:
        self._erase()
        # A string that a script left open would swallow our line.
        if self._left_open and self.updates:
            self._write(ERR, END_OF_STRING)
        if self._mid_line and self._is_terminal[ERR]:
            self._write(ERR, b"\r\n")
        self._mid_line = False

    def _erase(self) -> None:
        if self._progress:
            self._write(ERR, ERASE)
            self._progress = b""

    @property
    def width(self) -> int:
        try:
            return os.get_terminal_size(self._descriptors[ERR]).columns or 80
        except (OSError, KeyError):
            return 80

    def _write(self, stream: int, data: bytes) -> str:
        if stream in self._broken:
            return ""
        try:
            if stream in self._texts:
                self._texts[stream].write(self._decoders[stream].decode(data))
                self._texts[stream].flush()
            while data and stream in self._descriptors:
                data = data[os.write(self._descriptors[stream], data) :]
        except BlockingIOError:
            # Blocking is a property of the open file, which the ranks share: one of them has switched it off.
            os.set_blocking(self._descriptors[stream], True)
            return self._write(stream, data)
        except (OSError, ValueError) as error:
            # A text stream that was closed raises ValueError.
            self._broken.add(stream)
            if isinstance(error, OSError) and not self._nobody_reads(stream, error):
                self.lost[stream] = error.strerror or str(error)
        return self.lost.get(stream, "")

    def _nobody_reads(self, stream: int, error: OSError) -> bool:
        """Whether the reader is gone, or the terminal was closed: nobody misses anything."""
        return error.errno == errno.EPIPE or (error.errno == errno.EIO and self._is_terminal[stream])


def _is_terminal(descriptor: int | None) -> bool:
    try:
        return descriptor is not None and os.isatty(descriptor)
    except OSError:
        return False


_STYLES = {"samebits": BOLD, "done": BOLD, "warning": RED, "FAILED": RED, "STALLED": RED, "LOST": RED}


@dataclass(frozen=True)
class Console:
    """Says lines on `terminal`; None says nothing, for runs that `verify` starts."""

    terminal: Terminal | None

    def line(self, line: Line) -> None:
        """Say one line with its label."""
        if self.terminal is not None:
            label = line.label.ljust(LABEL_WIDTH) if line.text and not line.text.startswith(QUOTED) else line.label
            time = self.terminal.time if line.label or line.text else ""
            self.terminal.say(line.text, time + label, _STYLES.get(line.label, DIM), line.aside)

    def plain(self, text: str) -> None:
        """Say text without a label."""
        if self.terminal is not None:
            self.terminal.say(text, self.terminal.time)

    def command(self, text: str) -> None:
        """Say what a CI reads: nothing before it, and no line break in it."""
        if self.terminal is not None:
            self.terminal.say(text)

    def block(self, text: str) -> None:
        """Say a block; its first word stands out."""
        for line in lines_of(text):
            self.line(line)

    def lost(self) -> list[str]:
        """What could not be printed because standard error could not be written; empty when it could."""
        reason = self.terminal.lost.get(ERR) if self.terminal is not None else None
        return [f"standard error cannot be written ({reason})"] if reason else []

    def settle(self) -> None:
        """End what the ranks left open on the terminal, once none writes any more."""
        if self.terminal is not None:
            self.terminal.settle()
