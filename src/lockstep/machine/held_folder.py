"""Folders that are held by a lock while they are used: one that nobody holds is a left-over, in whatever container its maker was.

Each is made under another name, locked, and then renamed: under its own name it is never without a lock. A lock ends with the
last process that has it. Nothing is asked of the processes, and no socket in such a folder is connected to.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

UNFINISHED = "."
"""Before the name of one that is not locked yet."""
HELD = "held"
"""A file in each that several may make: a folder that is not empty is never replaced by a rename."""
UNFINISHED_S = 60.0
"""How old a folder under that other name is, at least, when its maker was killed before it had the lock."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def make_held(path: Path, lock: int = fcntl.LOCK_EX) -> int:
    """Make a folder of mode 0700 and hold it; the descriptor that does. Raises OSError, also where there is one."""
    unfinished = path.with_name(f"{UNFINISHED}{path.name}.{os.getpid()}")
    unfinished.mkdir(mode=0o700)
    descriptor = os.open(unfinished, _OPEN)
    try:
        if lock == fcntl.LOCK_SH:
            (unfinished / HELD).touch()
        fcntl.flock(descriptor, lock)
        unfinished.rename(path)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        os.close(descriptor)
        raise
    return descriptor


def hold_together(path: Path) -> int:
    """Hold a folder beside others who do, or make it. Raises OSError where it is not this user's."""
    while True:
        with suppress(FileNotFoundError):
            descriptor = os.open(path, _OPEN)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    raise PermissionError(f"{path} is another user's")
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if path.stat().st_ino == os.fstat(descriptor).st_ino:  # else somebody has just removed it
                    return descriptor
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)
        try:
            return make_held(path, fcntl.LOCK_SH)
        except OSError:
            if not path.is_dir():
                raise


def remove_unfinished(path: Path) -> None:
    """Remove what makers of this folder left that were killed; none of them may be alive."""
    for unfinished in path.parent.glob(f"{UNFINISHED}{path.name}.*"):
        shutil.rmtree(unfinished, ignore_errors=True)


def is_left(path: Path) -> bool:
    """Whether it is a folder of this user that nobody holds."""
    with _taken(path) as is_taken:
        return is_taken


def remove_left(path: Path) -> None:
    """Remove a folder of this user if nobody holds it, and let nobody take hold of it meanwhile."""
    with _taken(path) as is_taken:
        if is_taken:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _taken(path: Path) -> Iterator[bool]:
    """Hold a folder that nobody holds; whether that was so."""
    with ExitStack() as ends:
        is_taken = False
        with suppress(OSError):
            descriptor = os.open(path, _OPEN)
            ends.callback(os.close, descriptor)
            found = os.fstat(descriptor)
            is_being_made = path.name.startswith(UNFINISHED) and time.time() - found.st_mtime < UNFINISHED_S
            if found.st_uid == os.geteuid() and not is_being_made:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_taken = True
        yield is_taken
