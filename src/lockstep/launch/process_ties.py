"""How processes hang together after their parent's death: two Linux settings that Python has no name for."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


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
    """Be continued when the parent ends, and not killed: a process that was stopped then sees that it is alone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, instead of process 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
