"""The folder in shared memory in which the ranks of one run keep their newest state, from the first start to the last."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lockstep.launcher.recovery import most_restarts
from lockstep.launcher.request import LaunchRequest
from lockstep.machine.held_folder import make_held
from lockstep.machine.leftovers import SHARED_MEMORY, remove_left_folders
from lockstep.protocol.snapshots import KEPT, SnapshotPlace


@dataclass
class SnapshotFolder:
    """`with SnapshotFolder(request) as snapshots: ...` names the folder, and removes it with everything in it.

    It is made when the first ranks start: from then on the nursery outlives the launcher, and removes what that leaves.
    This process holds a lock on it, so that others can tell it from one that a killed launcher left. There is no folder
    where ranks never start again, or where somebody else's evidence is recorded.
    """

    request: LaunchRequest
    _path: Path | None = None
    _lock: int = -1

    @property
    def place(self) -> SnapshotPlace | None:
        """What the ranks are told."""
        return SnapshotPlace(str(self._path), self.request.recovery.keeping.steps) if self._path is not None else None

    def __enter__(self) -> Self:
        remove_left_folders()
        recovery = self.request.recovery
        if most_restarts(recovery, uses_lockstep=True) and recovery.keeping.is_on and not self.request.evidence:
            self._path = SHARED_MEMORY / KEPT.format(os.getpid(), secrets.token_hex(8))
        return self

    def make(self) -> None:
        """Make it, once. Where the system refuses one, ranks say why they keep no state."""
        if self._path is not None and self._lock < 0:
            with suppress(OSError):
                self._lock = make_held(self._path)

    def _remove(self) -> None:
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
