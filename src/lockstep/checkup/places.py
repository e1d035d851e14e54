"""Where a run writes and through what its ranks meet: the folder of runs, and the loopback device."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from lockstep.checkup.row import Row, note, ok, problem
from lockstep.checkup.shared_memory import size_text

LITTLE_BYTES = 1 << 30


def folder_row(folder: Path, writable: bool, free: int) -> Row:
    """Whether run folders can be made.

    Args:
        folder: of all runs.
        writable: whether it, or the nearest folder above that exists, can be written to.
        free: bytes on its disk.
    """
    if not writable:
        return problem(
            "run folders", f"{folder} cannot be written to", "Set LOCKSTEP_RUNS or --log-dir to a folder of yours."
        )
    text = f"{folder}, {size_text(free)} free"
    if free < LITTLE_BYTES:
        return note("run folders", text, "Logs and weights need room: clear the disk, or use another --log-dir.")
    return ok("run folders", text)


def read_folder(folder: Path) -> tuple[bool, int]:
    """Writable, and free bytes."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    found = os.statvfs(place)
    return place.is_dir() and os.access(place, os.W_OK), found.f_bavail * found.f_frsize


def loopback_row(error: str) -> Row:
    """Whether ranks of this machine can connect to each other; `error` is empty when they can."""
    if error:
        return problem("loopback", f"127.0.0.1 cannot be connected to: {error}", "ip link set lo up")
    return ok("loopback", "127.0.0.1 answers")


def try_loopback() -> str:
    """Connect to a socket of our own; what went wrong, or nothing."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname(), timeout=2.0),
        ):
            return ""
    except OSError as error:
        return error.strerror or str(error)
