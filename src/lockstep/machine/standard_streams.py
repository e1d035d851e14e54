"""Standard output and error, which may be closed or go to a full disk: nothing here raises because of that."""

from __future__ import annotations

import sys
from contextlib import suppress


def write_error(line: str) -> None:
    """Print a line to standard error, or drop it where that cannot be written."""
    if sys.stderr is not None:  # print(file=None) means standard output
        with suppress(OSError, ValueError):  # ValueError: closed
            sys.stderr.write(f"{line}\n")  # in one piece: other ranks may write there too
            sys.stderr.flush()


def flush_output() -> None:
    """Let what was printed leave this process, where somebody takes it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # AttributeError: there is none
            stream.flush()
