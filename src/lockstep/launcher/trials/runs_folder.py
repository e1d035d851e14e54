"""The temporary folder of the runs of one `verify` or `bench`: removed at its end, or kept where something went wrong.

One that nobody holds was left by a killed command, or kept: the next command removes it, unless it was kept within a day.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from lockstep.machine.held_folder import is_left, make_held
from lockstep.machine.private_view import remove_tree

PURPOSES = ("verify", "bench")
KEPT = ".kept"
"""The mark of one that is kept; its time is when that was."""
YOUNG_S = 24 * 3600.0
_NAME = "lockstep-{}-{}.held"


class RunsFolder:
    """A folder of runs, made and locked as long as this object is open."""

    def __init__(self, purpose: str) -> None:
        self.path = Path(tempfile.gettempdir()).resolve() / _NAME.format(purpose, secrets.token_hex(4))
        self._lock = make_held(self.path)
        for other in (path for one in PURPOSES for path in self.path.parent.glob(_NAME.format(one, "*"))):
            if is_left(other) and not _is_young(other / KEPT):
                remove_tree(other)

    def keep(self) -> str:
        """Keep it: a person may want to look into it. Where it is, in a sentence."""
        (self.path / KEPT).touch(mode=0o600)
        return f"The runs are kept in {self.path} for a day"

    def remove(self) -> None:
        """Remove it with everything in it."""
        remove_tree(self.path)

    def close(self) -> None:
        """Let go of it: without `keep` the next command removes it."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def _is_young(mark: Path) -> bool:
    with suppress(OSError):
        return time.time() - mark.lstat().st_mtime < YOUNG_S
    return False
