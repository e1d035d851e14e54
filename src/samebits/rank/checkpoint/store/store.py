"""Where a run's states lie: `Store`, a folder for each, named by its step, of which a number is kept. Plain Python.

The folder is on a disk, or in shared memory for snapshots; at a URL there may be a copy of each state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from samebits.errors import SamebitsError, UsageError
from samebits.protocol.saving import RESUME_NONFINITE, spread, state_name, step_of
from samebits.protocol.state_files.flushed import sync
from samebits.protocol.state_files.folder import StateFolder, is_locked
from samebits.protocol.state_files.manifest import problem_of
from samebits.protocol.state_files.own_folder import NAMES, is_ours, remove
from samebits.protocol.state_files.remote_state import RemoteStore, trouble_in
from samebits.protocol.state_files.whole_state import not_finite_in, trouble_of
from samebits.protocol.url import shown

_STAGE = re.compile(r"\.step-\d{8,}\.saving")
Passed = list[tuple[Path, str]]


class Store:
    """The states below `place`.

    Args:
        place: a folder of its own, such as samebits-runs/exp1/states.
        keep: how many states stay.
        url: where copies of them go; empty: nowhere.
        others: how many older ones stay besides, spread over the run; at the URL none do.
        keeps_finite: whether the newest finite state stays, however many came after it that are not. Snapshots need none: ranks
            that start again continue as they would have.
    """

    def __init__(self, place: Path, keep: int, url: str = "", *, others: int = 0, keeps_finite: bool = True) -> None:
        self.place, self.keep, self._others, self._keeps_finite = place, keep, others, keeps_finite
        self._remote = RemoteStore(url, keep) if url else None

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
                with suppress(SamebitsError):
                    if (found := StateFolder(path).read_manifest()) is not None:
                        return path.name, found[1].facts
        return "", {}

    def prune(self) -> None:
        """Remove the states that are too old, and what a killed save left. Only what samebits wrote, and nobody writes, is touched."""
        with suppress(OSError):
            for path in self.place.iterdir():
                if _STAGE.fullmatch(path.name) and not path.is_symlink() and is_ours(path) and not is_locked(path):
                    remove(path)
            states = sorted(self._states())
            stay = {*spread([step for step, _ in states], self.keep, self._others)}
            asks = self._keeps_finite and len(states) > self.keep
            newest_finite = next(filter(_is_finite, self.newest_first()), None) if asks else None
            for step, path in states:
                if step not in stay and path != newest_finite:
                    with suppress(OSError):
                        _retire(path)

    def added(self, state: Path) -> str:
        """A new state was put in place: remove those that are too old, and copy it to the URL; why that failed as a sentence, or ""."""
        self.prune()
        if self._remote is None:
            return ""
        remote = self._remote
        why = trouble_in(lambda: remote.put(state))
        return why and f"{state.name} is on the disk, but could not be copied: {why}"

    def newest(self, say: Callable[[str], None], *, takes_any: bool, is_restart: bool) -> str:
        """The name of the newest state that is whole and finite, copied here if only the URL has it; empty when there is none yet.

        Args:
            say: gets a sentence for each state that is passed over.
            takes_any: whether one that is not finite will do.
            is_restart: whether ranks of the same run start again: they would have continued with numbers that are not finite.

        Raises:
            UsageError: when states are there, and none can be loaded.
        """
        if self._remote is None or is_restart:
            # [Note: why a restart does not ask the URL]
            # All that this run has saved since it started is on the disk, and nobody else writes there.
            return self._newest_here(say, takes_any=takes_any, is_restart=is_restart)
        here, trouble = "", None
        try:
            here = self._newest_here(say, takes_any=takes_any, is_restart=False)
        except UsageError as error:
            trouble = error
        beyond = step_of(here) if here else None
        copy, problems = self._remote.fetch_newest(self.place, -1 if beyond is None else beyond, takes_any=takes_any)
        for problem in problems:
            say(f"{problem} It is left out.")
        if not (copy or here) and (trouble or problems):
            raise trouble or UsageError(
                f"No state at {shown(self._remote.url)} is whole and finite. {problems[0]}",
                f"Move them away to begin anew, choose another name, or give {RESUME_NONFINITE} if they are not finite.",
            )
        return copy or here

    def _newest_here(self, say: Callable[[str], None], *, takes_any: bool, is_restart: bool) -> str:
        found, damaged, passed = self._look_through(takes_any=takes_any)
        if found is None and passed and not is_restart:
            raise UsageError(
                f"No state in {self.place} is finite: {passed[0][1]} of {passed[0][0].name} is not.",
                f"Give {RESUME_NONFINITE} to resume from it as it is, or choose another name to begin anew.",
            )
        if found is None and damaged and not passed:
            fix = "Move them away to begin anew, or choose another name."
            raise UsageError(f"No state in {self.place} is whole. {damaged[0][1]}", fix)
        for path, problem in damaged:
            say(f"{problem} It is put aside.")
            # [Note: why a damaged state gets a name that is none]
            # Its step can be saved again, and somebody may still want to look at it.
            with suppress(OSError):
                path.rename(path.with_name(f"damaged-{path.name}"))
        if found is not None and passed:
            say(
                f"{passed[0][0].name} is not finite ({passed[0][1]}), so the run resumes from {found.name}, the newest state "
                f"that is; {RESUME_NONFINITE} takes the newest as it is."
            )
        return found.name if found is not None else passed[0][0].name if passed else ""

    def _look_through(self, *, takes_any: bool) -> tuple[Path | None, Passed, Passed]:
        """The newest state that will do, and newer ones that are damaged or not finite, with what is wrong."""
        damaged: Passed = []
        passed: Passed = []
        try:
            states = self.newest_first()
        except OSError as error:
            raise UsageError(f"{self.place} cannot be read ({error.strerror}).", "Check its permissions.") from None
        for path in states:
            if (trouble := trouble_of(path)) is not None:
                damaged.append((path, problem_of(trouble)))
            elif (tensor := not_finite_in(path)) and not takes_any:
                passed.append((path, tensor))
            else:
                return path, damaged, passed
        return None, damaged, passed

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
    except SamebitsError:
        return False


def _retire(path: Path) -> None:
    """Remove a state of ours. It is renamed first: half of it is never taken for one, and the next prune removes the rest."""
    if is_ours(path):
        left = StateFolder(path).stage
        path.rename(left)
        sync(path.parent)
        remove(left)
