"""For which process this one stands: the command that a person started, where a warm launcher does its work."""

from __future__ import annotations

import os

_COMMAND: list[int] = []


def stand_for(pid: int) -> None:
    """From now on this process does the work of another one."""
    _COMMAND[:] = [pid]


def command_process() -> int:
    """The process of the command: this one, unless it stands for another."""
    return _COMMAND[0] if _COMMAND else os.getpid()
