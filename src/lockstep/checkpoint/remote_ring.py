"""The states of a run at a URL: a copy of the ring on the disk, from which another machine goes on.

a state is on the disk   -> copied          put there, old ones removed
a run starts             -> bring_newest    put on the disk, if the disk has none as new
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lockstep.checkpoint.folder import StateFolder, trouble_of
from lockstep.checkpoint.remote_files import RemoteError, RemoteFiles
from lockstep.checkpoint.remote_state import RemoteState, in_words, trouble_in
from lockstep.errors import LockstepError, UsageError, WorldError
from lockstep.handover.states import step_of
from lockstep.handover.url import below, shown
from lockstep.notices import say


class RemoteRing:
    """The newest states of a run: `URL/step-00000500`, of which a number stays.

    Args:
        url: the folder of the run.
        keep: how many states stay.
    """

    def __init__(self, url: str, keep: int) -> None:
        self.url, self._keep = url, keep

    def state(self, name: str) -> RemoteState:
        """The state of that name."""
        return RemoteState(below(self.url, name))

    def newest_first(self) -> list[str]:
        """The names of the states, perhaps damaged ones or halves of some."""
        steps = {step: name for name in RemoteFiles(self.url).names() if (step := step_of(name)) is not None}
        return [steps[step] for step in sorted(steps, reverse=True)]

    def put(self, folder: Path) -> None:
        """Copy the state in `folder` there, then remove states that are too old, and what a killed program left.

        Raises:
            LockstepError: when it could not be copied.
        """
        self.state(folder.name).put(folder)
        with suppress(RemoteError):
            whole, has_finite = 0, False
            for name in self.newest_first():
                state = self.state(name)
                whole += (is_there := state.is_there)
                is_newest_finite = is_there and not has_finite and state.not_finite() == ""
                has_finite = has_finite or is_newest_finite
                if not is_there or (whole > self._keep and not is_newest_finite):
                    with suppress(UsageError):  # it is somebody else's
                        state.remove()

    def bring_newest(self, place: Path, beyond: int, *, takes_any: bool = False) -> tuple[str, list[str]]:
        """Copy the newest whole state into the folder of states `place`, if its step is later than `beyond`.

        One that is not finite is left out unless this `takes_any`.

        Returns:
            Its name, empty where there is none; and what is wrong with newer ones.

        Raises:
            RemoteError: when the URL cannot be read.
            WorldError: when it cannot be written to the disk.
        """
        problems: list[str] = []
        for name in self.newest_first():
            if (step_of(name) or 0) <= beyond:
                break
            if not takes_any and (tensor := self.state(name).not_finite()):
                problems.append(f"{shown(below(self.url, name))} is not finite ({tensor}).")
                continue
            folder = StateFolder(place / name)
            say(f"the newest state is {shown(below(self.url, name))}, which is copied to {place}")
            try:
                folder.begin()
                if not self.state(name).fetch(folder.stage):
                    folder.abandon()
                    continue
                problem = trouble_of(folder.stage)
                if problem is None:
                    folder.install()
                    return name, problems
                problems.append(in_words(problem, folder.stage, below(self.url, name)))
                folder.abandon()
            except OSError as error:
                folder.abandon()
                raise WorldError(f"{folder.target} cannot be written ({error.strerror}).") from None
            except LockstepError:
                folder.abandon()
                raise
        return "", problems


def copied(folder: Path, url: str, keep: int) -> str:
    """Copy the state in `folder` to the ring at `url`, unless that is empty; why it failed as a sentence, or an empty text."""
    if not url:
        return ""
    why = trouble_in(lambda: RemoteRing(url, keep).put(folder))
    return why and f"{folder.name} is on the disk, but could not be copied to {shown(url)}: {why}"
