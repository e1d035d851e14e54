"""How a command of the benchmarks ends: without a traceback when a person ends it, or when nobody can read what it says."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

Result = TypeVar("Result")
INTERRUPTED, UNHEARD = 128 + signal.SIGINT, 1
LOST = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""Errors of writing without a file's name: of the output."""


def imports_quietly(first_word: str) -> None:
    """For the package, which `python -m` imports before anything is started: until `hear_interrupts`, Ctrl-C just ends.

    `first_word` is that of sys.argv, which is "-m" only then.
    """
    if first_word == "-m" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def hear_interrupts() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt; nothing changes where the surroundings ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ends_shortly(main: Callable[[], Result]) -> Callable[[], Result]:
    """Exit with 130 after Ctrl-C and with 1 when the output cannot be written; a reader that has left is told nothing.

    Other OSErrors, which `main` should have told with their file, pass.
    """

    @functools.wraps(main)
    def shortly() -> Result:
        hear_interrupts()
        try:
            result = main()
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
        return result

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
