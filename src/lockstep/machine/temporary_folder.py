"""A private temporary folder that the next command removes if the process that made it is killed.

As long as it is used it is locked, and a lock ends with its process. So a folder of this name and this user that nobody
has locked is a left-over, in whatever container its process was.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from lockstep.machine.held_folder import is_left, make_held
from lockstep.machine.private_view import remove_tree

LOCKED = ".held"
"""Behind the name of one that was made here. Others are not touched."""


class TemporaryFolder(AbstractContextManager[Path]):
    """A folder of mode 0700, from here until the end of the `with` block. Removes left-overs of the same name first.

    Args:
        prefix: how its name begins.
        parent: where it is made; None: where temporary files are.

    Raises:
        OSError: when it cannot be made.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        name = f"{prefix}{secrets.token_hex(8)}{LOCKED}"
        self.path = (parent or Path(tempfile.gettempdir())).resolve() / name
        self._lock = make_held(self.path)
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
    return [path for path in parent.glob(f"{prefix}*{LOCKED}") if is_left(path)]
