"""What a script finds at its standard input: nothing to read, yet a terminal where the user has one.

Scripts ask that terminal for its size (`stty size`), and would fail on `/dev/null`.
"""

from __future__ import annotations

import fcntl
import os
import pty
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

ENDS = 1000
"""How often such a terminal says that there is no more to read; asked again, a script waits for its time limit."""
END = b"\x04"
SIZE_BYTES = 8


@contextmanager
def nothing_to_read() -> Iterator[int]:
    """A descriptor for a run's standard input."""
    opened = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    try:
        if sys.__stdin__ is not None and sys.__stdin__.isatty():
            opened += _terminal_of_its_own(sys.__stdin__.fileno())
        yield opened[-1]
    finally:
        for one in opened:
            os.close(one)


def _terminal_of_its_own(like: int) -> tuple[int, ...]:
    """A terminal of the same size at which everything was typed, its other end first; none where no more can be made."""
    try:
        ours, theirs = pty.openpty()
    except OSError:
        return ()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(SIZE_BYTES)))
    silent = termios.tcgetattr(theirs)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, silent)
    os.write(ours, END * ENDS)
    return ours, theirs
