"""The temporary folder of the runs of one `verify` or `bench`: removed at its end, or kept where something went wrong.

Folders that a killed command left behind are removed by the next one; those that were kept are counted, so that they do
not fill the disk unnoticed.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lockstep.machine.private_view import remove_tree

PREFIX = "lockstep-"
PURPOSES = ("verify", "bench")
LOCK, KEPT = ".running", ".kept"


class RunsFolder:
    """A folder of runs, made and locked as long as this object is open."""

    def __init__(self, purpose: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-")).resolve()
        self._lock = os.open(self.path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for left in left_behind(self.path.parent):
            remove_tree(left)

    def keep(self) -> None:
        """Keep it: a person may want to look into it."""
        (self.path / KEPT).touch(mode=0o600)

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
    """Where the runs are, and how many earlier ones there are."""
    others = [other for other in kept_in(path.parent) if other != path]
    if not others:
        return f"The runs are kept in {path}"
    more = f"{len(others)} from earlier commands {'are' if len(others) > 1 else 'is'} next to it"
    return f"The runs are kept in {path} ({more}; remove them when done)"
