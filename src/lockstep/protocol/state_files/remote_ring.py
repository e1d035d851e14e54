"""The states of a run at a URL: a copy of the ring on the disk, from which another machine goes on.

a state is on the disk   -> copied          put there, old ones removed
a run starts             -> bring_newest    put on the disk, if the disk has none as new
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lockstep.errors import EnvironmentFailure, UsageError
from lockstep.notices import say
from lockstep.protocol.saving import step_of
from lockstep.protocol.state_files.folder import StateFolder, trouble_of
from lockstep.protocol.state_files.manifest import Manifest
from lockstep.protocol.state_files.remote_files import RemoteError, RemoteFiles
from lockstep.protocol.state_files.remote_state import RemoteState, trouble_in
from lockstep.protocol.url import below, shown


class RemoteRing:
    """The newest states of a run: `URL/step-00000500`, of which a number stays.

    Args:
        url: the folder of the run.
        keep: how many states stay.
    """

    def __init__(self, url: str, keep: int) -> None:
        self.url, self._keep = url, keep

    def newest_first(self) -> list[str]:
        """The names of the states, perhaps damaged ones or halves of some."""
        steps = {step: name for name in RemoteFiles(self.url).sizes() if (step := step_of(name)) is not None}
        return [steps[step] for step in sorted(steps, reverse=True)]

    def put(self, folder: Path) -> None:
        """Copy the state in `folder` there, then remove states that are too old, and what a killed program left. The newest
        finite one stays.

        Raises:
            LockstepError: when it could not be copied.
        """
        self._state(folder.name).put(folder)
        with suppress(RemoteError):
            kept, has_finite = 0, False
            for name in self.newest_first():
                found = self._manifest(name)
                is_newest_finite = isinstance(found, Manifest) and not found.not_finite and not has_finite
                has_finite = has_finite or is_newest_finite
                kept += found is not None
                if found is None or (kept > self._keep and not is_newest_finite):
                    with suppress(UsageError):  # it is somebody else's
                        self._state(name).remove()

    def bring_newest(self, place: Path, beyond: int, *, takes_any: bool = False) -> tuple[str, list[str]]:
        """Copy the newest whole state into the folder of states `place`, if its step is later than `beyond`.

        One that is not finite is left out unless this `takes_any`.

        Returns:
            Its name, empty where there is none; and what is wrong with newer ones.

        Raises:
            RemoteError: when the URL cannot be read.
            EnvironmentFailure: when it cannot be written to the disk.
        """
        problems: list[str] = []
        for name in self.newest_first():
            if (step_of(name) or 0) <= beyond:
                break
            url, found = shown(below(self.url, name)), self._manifest(name)
            if found is None:
                continue
            if isinstance(found, Manifest) and found.not_finite and not takes_any:
                problems.append(f"{url} is not finite ({found.not_finite}).")
                continue
            say(f"the newest state is {url}, which is copied to {place}")
            problem = self._bring(name, StateFolder(place / name))
            if not problem:
                return name, problems
            problems.append(problem.replace(str(StateFolder(place / name).stage), url))
        return "", problems

    def _bring(self, name: str, folder: StateFolder) -> str:
        """Copy a state to its place on the disk; what is wrong with it, in which case nothing is there."""
        try:
            folder.begin()
            self._state(name).fetch(folder.stage)
            if (problem := trouble_of(folder.stage)) is None:
                folder.install()
                return ""
        except OSError as error:
            raise EnvironmentFailure(f"{folder.target} cannot be written ({error.strerror}).") from None
        finally:
            folder.abandon()
        return problem.problem if isinstance(problem, UsageError) else str(problem)

    def _state(self, name: str) -> RemoteState:
        return RemoteState(below(self.url, name))

    def _manifest(self, name: str) -> Manifest | UsageError | None:
        """What the manifest says, or what is wrong with it; None where there is none."""
        try:
            return self._state(name).manifest()
        except UsageError as error:
            return error


def copied(folder: Path, url: str, keep: int) -> str:
    """Copy the state in `folder` to the ring at `url`, unless that is empty; why it failed as a sentence, or an empty text."""
    if not url:
        return ""
    why = trouble_in(lambda: RemoteRing(url, keep).put(folder))
    return why and f"{folder.name} is on the disk, but could not be copied to {shown(url)}: {why}"
