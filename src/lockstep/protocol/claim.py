"""The folder of a run that saves by itself, which every start of it uses: one at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.machine.visible import visible
from lockstep.protocol.run_folder import STATES, RunFolder, make_base, make_own

MOST_BYTES = 200
"""Of a name: a file system takes 255, and names of states and logs follow."""
_held: list[int] = []
"""Descriptors of locks, open as long as this process lives; ranks do not inherit them."""


def check_name(name: Any, option: str = "--name") -> None:
    """Raise `UsageError` for what cannot name a folder, or would be hidden where folders are listed."""
    if not isinstance(name, str) or not name.strip() or name[0] == "." or "/" in name or visible(name) != name:
        raise UsageError(
            f"{option} must be a folder's name without a slash, a control character or a dot in front, but is {name!r}.",
            f'Try {option}"first-run".' if option.endswith("=") else f"Try {option} first-run.",
        )
    if len(os.fsencode(name)) > MOST_BYTES:
        raise UsageError(f"{option} is longer than {MOST_BYTES} bytes.", "Choose a shorter name.")


def claim(place: Path, *, is_first: bool = True) -> None:
    """Make or find the folder `place`, and keep other starts of the run out of it until this process ends.

    Args:
        place: the folder.
        is_first: whether this is the run's first node. The others, who may see the same disk, leave the claim to it.

    Raises:
        UsageError: when another start of the run is under way, or the folder is something else.
    """
    try:
        make_base(place.parent)
        make_own(place)
        if RunFolder(place).plan.exists():
            raise UsageError(
                f"{place} is the run folder of one start, without states of its own.",
                "Choose another name, or give --name only together with --save-every.",
            )
        make_own(place / STATES)
        lock = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(f"The run folder {place} cannot be used: {error.strerror}.", _fix_for(error)) from None
    if not is_first:
        os.close(lock)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        problem = f"The run {place.name} is going on already."
        raise UsageError(problem, "Wait for it, stop it, or choose another name.") from None
    _held.append(lock)


def _fix_for(error: OSError) -> str:
    """A name can be taken or too long; of everything else another one would have as well."""
    if isinstance(error, FileExistsError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EPERM):
        return "Choose another name."
    return "Check the folders above it, their permissions and the disk."


def let_go() -> None:
    """Give up the places that this process has claimed."""
    while _held:
        os.close(_held.pop())
