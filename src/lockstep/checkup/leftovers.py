"""What earlier runs have left behind: processes whose launcher is gone, and shared memory that nobody has open."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.checkup.row import Row, note, ok
from lockstep.machine.leftovers import SHARED_MEMORY

MAX_NAMED = 8


def leftover_row(processes: Sequence[int], files: Sequence[str]) -> Row:
    """None, or which and how to end them."""
    found = []
    if processes:
        found.append(f"{len(processes)} process{'es' if len(processes) > 1 else ''} of runs that have ended")
    if files:
        found.append(f"{len(files)} file{'s' if len(files) > 1 else ''} in /dev/shm of processes that have ended")
    if not found:
        return ok("leftovers", "none")
    ways = []
    if processes:
        more = " ..." if len(processes) > MAX_NAMED else ""
        ways.append(f"kill -9 {' '.join(map(str, processes[:MAX_NAMED]))}{more}")
    if files:
        more = " ..." if len(files) > 2 else ""
        ways.append(f"rm {' '.join(str(SHARED_MEMORY / name) for name in files[:2])}{more}")
    return note("leftovers", "; ".join(found), "; ".join(ways))
