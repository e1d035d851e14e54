"""A private temporary folder that the next command removes if the process that made it is killed.

As long as it is used it is locked, and a lock ends with its process. So a folder of this name and this user that nobody
has locked is a left-over, in whatever container its process was.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType

from lockstep.machine.private_view import remove_tree

UNFINISHED, LOCKED = ".", ".held"
"""Before the name of one that is not locked yet; behind the name of one that was made here. Others are not touched."""


class TemporaryFolder(AbstractContextManager[Path]):
    """A folder of mode 0700, from here until the end of the `with` block. Removes left-overs of the same name first.

    Args:
        prefix: how its name begins.
        parent: where it is made; None: where temporary files are.

    Raises:
        OSError: when it cannot be made.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        place = Path(tempfile.mkdtemp(LOCKED, UNFINISHED + prefix, parent)).resolve()
        self._lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = place.rename(place.with_name(place.name.removeprefix(UNFINISHED)))
        for left in left_behind(self.path.parent, prefix):
            remove_tree(left)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove_tree(self.path)
        os.close(self._lock)


def left_behind(parent: Path, prefix: str) -> list[Path]:
    """Folders of this user that were made here, whose names begin so, and which nobody uses."""
    return [path for path in parent.glob(f"{prefix}*{LOCKED}") if _is_left(path)]


def _is_left(path: Path) -> bool:
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(folder).st_uid == os.geteuid()
        finally:
            os.close(folder)
    return False
