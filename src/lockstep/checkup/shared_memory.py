"""The shared memory (/dev/shm) through which loader workers hand over their batches."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.checkup.row import Row, note, ok, problem
from lockstep.machine.leftovers import SHARED_MEMORY

FOLDER = SHARED_MEMORY
SMALL_BYTES = 1 << 30
"""Below this, loader workers with large batches fail with "bus error"; Docker gives 64 MiB."""
LEAST_BYTES = 32 << 20
FIX = "In a container: docker run --shm-size=8g, or --ipc=host. Or num_workers=0."


def shared_memory_row(total: int, free: int, writable: bool) -> Row:
    """Whether it is large enough.

    Args:
        total: bytes; 0 when there is none.
        free: bytes.
        writable: whether this process may make files there.
    """
    if not total or not writable:
        state = "is missing" if not total else "cannot be written to"
        return problem("shared memory", f"{FOLDER} {state}: no loader workers", FIX)
    text = f"{FOLDER} {size_text(total)}, {size_text(free)} free"
    if free < LEAST_BYTES:
        return problem("shared memory", f"{text}: full", f"Remove what is in it. {FIX}")
    if total < SMALL_BYTES:
        return note("shared memory", f"{text}: small for loader workers", FIX)
    return ok("shared memory", text)


def read_shared_memory(folder: Path = FOLDER) -> tuple[int, int, bool]:
    """Total, free, writable."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0, 0, False
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, os.access(folder, os.W_OK)


def size_text(size: int) -> str:
    """`64 MiB`, `7.8 GiB`."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
