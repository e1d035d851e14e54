"""The folder of a run that saves by itself, which every start of it uses: one at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.handover.run_folder import STATES, RunFolder
from lockstep.launch.folder import check_name

_held: list[int] = []
"""Descriptors of locks, open as long as this process lives; ranks do not inherit them."""


def claim(base: Path, name: str) -> Path:
    """Make or find the folder NAME in `base`, and keep other starts out of it until this process ends.

    Raises:
        UsageError: when another start of the run is under way, or the folder is something else.
    """
    check_name(name)
    place = base / name
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if RunFolder(place).plan.exists():
            raise UsageError(f"{place} is a run that saved no states by itself.", "Choose another --name.")
        (place / STATES).mkdir(mode=0o700, exist_ok=True)
        lock = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(
            f"The run folder {place} cannot be used: {error.strerror}.", "Choose another --name."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UsageError(
            f"The run {name} is going on already.", "Wait for it, stop it, or choose another --name."
        ) from None
    _held.append(lock)
    return place
