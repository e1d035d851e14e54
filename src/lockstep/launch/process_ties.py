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


def die_with_parent(parent: int | None) -> None:
    """Get SIGKILL when the parent ends; None undoes it.

    Args:
        parent: the process that must be the parent now; if it has ended already, this process ends here.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if parent is not None else 0)
    if parent is not None and os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, instead of process 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
