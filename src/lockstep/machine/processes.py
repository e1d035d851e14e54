"""Facts and settings of this process: its ties to its parent, its interpreter's options, its limit of open files."""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def die_with_parent(parent: int) -> None:
    """Get SIGKILL when the parent ends.

    Args:
        parent: the process that must be the parent now; if it has ended already, this process ends here.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def go_on_without_parent() -> None:
    """Get SIGCONT, not SIGKILL, when the parent ends: a process that was stopped then sees that it is alone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def let_read(reader: int) -> None:
    """Let a process and those below it read this one's memory where Yama allows it to ancestors only (ptrace_scope 1)."""
    with suppress(OSError):  # a kernel without Yama
        _prctl(_PR_SET_PTRACER, reader)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, instead of process 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def interpreter_options() -> list[str]:
    """This interpreter's own options (-O, -W, -X, ...), without -P, which our commands add themselves."""
    flags = sys.flags
    if not (sys.warnoptions or sys._xoptions or flags.optimize or flags.isolated or flags.verbose):  # noqa: SLF001
        return []
    # The standard library's own way to pass them to a child; multiprocessing relies on it too.
    options: list[str] = importlib.import_module("subprocess")._args_from_interpreter_flags()  # noqa: SLF001
    return [option for option in options if option != "-P"]


def open_file_limit() -> int:
    """The limit in force; -1 for none."""
    return _limits(resource.RLIMIT_NOFILE)[0]


def _limits(which: int) -> list[int]:
    return [-1 if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(which)]


def address_limit() -> int:
    """How many bytes of addresses a process may have; -1 for any number."""
    return _limits(resource.RLIMIT_AS)[0]
