"""The signals by which a person or a batch system ends a program, and their names."""

from __future__ import annotations

import signal

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Ctrl-C; a polite end; a closed terminal; SLURM's warning that the time is nearly over (--signal=USR1@90)."""


def signal_name(number: int) -> str:
    """`signal 9 (SIGKILL)`."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
