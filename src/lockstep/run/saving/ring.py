"""The newest states of a run: a folder for each, named by its step, of which a number is kept."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from lockstep.checkpoint.manifest import NAME
from lockstep.checkpoint.own_folder import is_ours

_STATE = re.compile(r"step-(\d{8,})")


class Ring:
    """The states below `place`.

    Args:
        place: a folder of its own, such as lockstep-runs/exp1/states.
        keep: how many complete states stay.
    """

    def __init__(self, place: Path, keep: int) -> None:
        self.place, self.keep = place, keep

    def path(self, step: int) -> Path:
        """Where the state after `step` belongs."""
        return self.place / f"step-{step:08d}"

    def newest_first(self) -> list[Path]:
        """The complete states, as far as one can tell by their manifests."""
        return [path for _, path in sorted(self._states(), reverse=True)]

    def prune(self) -> None:
        """Remove the states that are too old. Only what lockstep wrote is touched."""
        for path in self.newest_first()[self.keep :]:
            shutil.rmtree(path, ignore_errors=True)

    def _states(self) -> Iterator[tuple[int, Path]]:
        for path in self.place.iterdir() if self.place.is_dir() else ():
            found = _STATE.fullmatch(path.name)
            if found and not path.is_symlink() and (path / NAME).is_file() and is_ours(path):
                yield int(found[1]), path
