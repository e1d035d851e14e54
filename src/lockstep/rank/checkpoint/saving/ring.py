"""The newest states of a run: a folder for each, named by its step, of which a number is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep.protocol.saving import state_name, step_of
from lockstep.protocol.state_files.flushed import sync
from lockstep.protocol.state_files.folder import StateFolder, is_locked, not_finite_in
from lockstep.protocol.state_files.own_folder import NAMES, is_ours, remove

_STAGE = re.compile(r"\.step-\d{8,}\.saving")


class Ring:
    """The states below `place`.

    Args:
        place: a folder of its own, such as lockstep-runs/exp1/states.
        keep: how many states stay.
        keeps_finite: whether the newest finite state stays, however many came after it that are not. Snapshots need none: ranks
            that start again continue as they would have.
    """

    def __init__(self, place: Path, keep: int, *, keeps_finite: bool = True) -> None:
        self.place, self.keep, self._keeps_finite = place, keep, keeps_finite

    def path(self, step: int) -> Path:
        """Where the state after `step` belongs."""
        return self.place / state_name(step)

    def newest_first(self) -> list[Path]:
        """The states, perhaps damaged ones."""
        return [path for _, path in sorted(self._states(), reverse=True)]

    def newest_facts(self) -> tuple[str, Mapping[str, Any]]:
        """The name of the newest state whose manifest can be read, and what that says; empty where there is none."""
        with suppress(OSError):
            for path in self.newest_first():
                with suppress(LockstepError):
                    if (found := StateFolder(path).read_manifest()) is not None:
                        return path.name, found[1].facts
        return "", {}

    def prune(self) -> None:
        """Remove the states that are too old, and what a killed save left. Only what lockstep wrote, and nobody writes, is touched."""
        with suppress(OSError):
            for path in self.place.iterdir():
                if _STAGE.fullmatch(path.name) and not path.is_symlink() and is_ours(path) and not is_locked(path):
                    remove(path)
            states = self.newest_first()
            asks = self._keeps_finite and len(states) > self.keep
            newest_finite = next(filter(_is_finite, states), None) if asks else None
            for path in states[self.keep :]:
                if path != newest_finite:
                    with suppress(OSError):
                        _retire(path)

    def put_aside(self, path: Path) -> None:
        """Keep a damaged state under a name that is none, so its step can be saved again."""
        with suppress(OSError):
            path.rename(path.with_name(f"damaged-{path.name}"))

    def _states(self) -> Iterator[tuple[int, Path]]:
        for path in self.place.iterdir() if self.place.is_dir() else ():
            step = step_of(path.name)
            if step is not None and not path.is_symlink():
                names = [entry.name for entry in path.iterdir()]
                if names and all(NAMES.fullmatch(name) for name in names):
                    yield step, path


def _is_finite(path: Path) -> bool:
    """Whether it is a state whose tensors are finite, by its manifest."""
    try:
        return not not_finite_in(path)
    except LockstepError:
        return False


def _retire(path: Path) -> None:
    """Remove a state of ours. It is renamed first: half of it is never taken for one, and the next prune removes the rest."""
    if is_ours(path):
        left = StateFolder(path).stage
        path.rename(left)
        sync(path.parent)
        remove(left)
