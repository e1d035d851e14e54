"""The processes above this one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

PROC = Path("/proc")


def ancestors(pid: int, proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """Number and name of every process above `pid`, the nearest first; names are cut to 15 characters by Linux."""
    while pid > 1:
        try:
            fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(") ")[2].split()
            pid = int(fields[1])
            if pid < 1:
                return
            name = (proc / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
        except (OSError, ValueError, IndexError):  # it has just ended, or is hidden
            return
        yield pid, name


def nearest(names: Collection[str], pid: int | None = None, proc: Path = PROC) -> int | None:
    """The nearest ancestor with one of these names; None if there is none, or it is in another namespace."""
    here = os.getpid() if pid is None else pid
    return next((above for above, name in ancestors(here, proc) if name in names), None)
