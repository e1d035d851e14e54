"""How a command of the benchmarks ends: without a traceback when a person ends it, or when nobody can read what it says."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

INTERRUPTED, UNHEARD = 128 + signal.SIGINT, 1
LOST = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""Errors of writing without a file's name: of the output."""


def ends_shortly(main: Callable[[], None]) -> Callable[[], None]:
    """Exit with 130 after Ctrl-C and with 1 when the output cannot be written; a reader that has left is told nothing.

    Other OSErrors, which `main` should have told with their file, pass.
    """

    @functools.wraps(main)
    def shortly() -> None:
        try:
            main()
        except KeyboardInterrupt:
            _clear()
            sys.exit(INTERRUPTED)
        except OSError as error:
            if error.filename is not None or error.errno not in LOST:
                raise
            _unheard(error)
        try:
            sys.stdout.flush()
        except OSError as error:
            _unheard(error)

    return shortly


def _clear() -> None:
    """The line of a terminal that said what was being measured."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _unheard(error: OSError) -> NoReturn:
    if not isinstance(error, BrokenPipeError):
        print(f"The output cannot be written: {error.strerror}. Write it elsewhere.", file=sys.stderr)
    with suppress(OSError, ValueError):  # the interpreter would try again to write the rest, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(UNHEARD)
