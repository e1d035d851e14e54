"""The temporary folder of the runs of one `verify` or `bench`: removed at its end, or kept where something went wrong.

Folders that a killed command left behind are removed by the next one. Of those that were kept the newest few stay, and
what is younger than an hour: somebody may be looking into it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lockstep.machine.private_view import remove_tree

PREFIX = "lockstep-"
PURPOSES = ("verify", "bench")
LOCK, KEPT = ".running", ".kept"
NUM_KEPT = 5
"""How many kept folders stay, whatever their age."""
YOUNG_S = 3600.0


class RunsFolder:
    """A folder of runs, made and locked as long as this object is open."""

    def __init__(self, purpose: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-")).resolve()
        self._lock = os.open(self.path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for left in left_behind(self.path.parent):
            remove_tree(left)

    def keep(self) -> None:
        """Keep it: a person may want to look into it. The oldest of those that were kept before go."""
        (self.path / KEPT).touch(mode=0o600)
        for old in outdated(self.path.parent, time.time()):
            remove_tree(old)

    def remove(self) -> None:
        """Remove it with everything in it."""
        remove_tree(self.path)

    def close(self) -> None:
        """Let go of it: without `keep` the next command removes it."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def left_behind(parent: Path) -> list[Path]:
    """Folders of this user's commands that were killed: neither kept nor locked by anybody."""
    return [path for path in _folders(parent) if not (path / KEPT).exists() and _is_unlocked(path / LOCK)]


def kept_in(parent: Path) -> list[Path]:
    """Folders of this user's commands that were kept, or come from a version that kept all."""
    return [path for path in _folders(parent) if (path / KEPT).exists() or not (path / LOCK).exists()]


def outdated(parent: Path, now: float) -> list[Path]:
    """Folders of this user's commands that were kept, and need not be any more: neither young, new, nor in use.

    Args:
        parent: the folder of temporary files.
        now: the time of day, as `time.time` has it.
    """
    marked = [(found, path) for path in _folders(parent) if (found := _kept_at(path)) is not None]
    old = [path for kept_at, path in sorted(marked, reverse=True)[NUM_KEPT:] if now - kept_at > YOUNG_S]
    return [path for path in old if _is_unlocked(path / LOCK) and not _is_somebodys_place(path)]


def _kept_at(path: Path) -> float | None:
    """When it was kept; None where no command of ours has left its mark."""
    with suppress(OSError):
        mark = (path / KEPT).lstat()
        if stat.S_ISREG(mark.st_mode) and mark.st_uid == os.geteuid():
            return mark.st_mtime
    return None


def _is_somebodys_place(path: Path) -> bool:
    """Whether a process, a shell for example, is in this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(path):
                return True
    return False


def _folders(parent: Path) -> Iterator[Path]:
    for purpose in PURPOSES:
        for path in parent.glob(f"{PREFIX}{purpose}-*"):
            with suppress(OSError):
                found = path.lstat()
                if path.is_dir() and not path.is_symlink() and found.st_uid == os.geteuid():
                    yield path


def _is_unlocked(lock: Path) -> bool:
    """Whether the command that made this file has ended; a folder that has none yet is being made."""
    with suppress(OSError):
        descriptor = os.open(lock, os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(descriptor)
    return False


def kept_sentence(path: Path) -> str:
    """Where the runs are, how many earlier ones there are, and how long they stay."""
    others = [other for other in kept_in(path.parent) if other != path]
    if not others:
        return f"The runs are kept in {path}"
    more = f"{len(others)} from earlier commands {'are' if len(others) > 1 else 'is'} next to it"
    return f"The runs are kept in {path} ({more}; the newest {NUM_KEPT} stay)"
