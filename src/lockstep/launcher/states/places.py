"""From a word of the command line to states: a run's name, its folder, a folder of states, or one state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.machine.visible import visible
from lockstep.notices import say
from lockstep.protocol.run_folder import STATES
from lockstep.protocol.state_files.folder import StateFolder, may_be_state
from lockstep.protocol.state_files.own_folder import of_others

ASIDE = "damaged-"
"""How the name of a state begins that a resumed run found damaged."""
LIST = "List what there is with `lockstep checkpoint ls`."
_BELOW = ("", "*", f"{STATES}/*", f"*/{STATES}/*")
"""Where the states of a place are: itself, or in a folder of states, a run, or a folder of runs."""
_OF_RUNS = ("plan.json", "*/plan.json", "*/*/plan.json", STATES, f"*/{STATES}")
"""What a run has that has not saved a state yet, and a folder of such runs."""


@dataclass(frozen=True)
class Found:
    """A state, perhaps a damaged one."""

    path: Path
    run: str = ""
    """The run's name; empty for a state that a script saved to a place of its own."""
    url: str = ""
    """Where it is, if `path` is a copy of it (`launcher.states.remote`)."""

    @property
    def name(self) -> str:
        """Where it is, for people."""
        return self.url or str(self.path)

    @property
    def is_aside(self) -> bool:
        """Whether a resumed run has put it aside."""
        return self.path.name.startswith(ASIDE)


def states_at(word: str, runs: Path) -> list[Found]:
    """The states that `word` names, oldest name first; none for a run that has not saved one yet.

    Args:
        word: a path, or what is below `runs`.
        runs: the folder of all run folders.

    Raises:
        UsageError: when it names neither a state, nor a run, nor a folder of these.
    """
    with _readable(word):
        places = [place for place in dict.fromkeys((Path(word), runs / word)) if _is_there(place)]
        for place in places:
            if states := _states_of(place):
                return states
        if any(place.name == STATES or any(any(place.glob(one)) for one in _OF_RUNS) for place in places):
            return []
    if places:
        raise of_others(places[0], visible(word))
    looked = "" if Path(word).is_absolute() else f", neither here nor in {visible(runs)}"
    raise UsageError(f"There is no run and no state {visible(word)}{looked}.", LIST)


def all_states(runs: Path) -> list[Found]:
    """The states of all runs; none where there is no such folder.

    Raises:
        UsageError: when it cannot be read.
    """
    with _readable(runs):
        return _states_of(runs) if runs.is_dir() else []


@contextmanager
def _readable(place: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{visible(place)} cannot be read ({error.strerror}).", "Check its permissions.") from None


def _is_there(place: Path) -> bool:
    with suppress(ValueError, OSError):
        return place.exists() or StateFolder(place).find() is not None
    return False


def _states_of(place: Path) -> list[Found]:
    if not place.exists() and (left := StateFolder(place).find()) is not None:
        say(f"{place} is missing, because a program ended while it replaced it; this is {left}.")
        return [Found(left, _run_of(place))]
    if place.is_dir():
        any(place.iterdir())  # raises where glob is silent
    for pattern in _BELOW:
        below = sorted(place.glob(pattern)) if pattern else [place]
        if states := [one for one in below if _is_visible(one, place) and may_be_state(one)]:
            return [Found(one, _run_of(one)) for one in states]
    return []


def _is_visible(one: Path, place: Path) -> bool:
    """No link, and nothing hidden: a state that is being written begins with a dot."""
    return one == place or not (one.is_symlink() or any(part[0] == "." for part in one.relative_to(place).parts))


def _run_of(state: Path) -> str:
    """The run in whose folder of states this is; empty if that is another kind of folder."""
    folder = Path(os.path.abspath(state)).parent  # noqa: PTH100 - the name as the person gave it
    return folder.parent.name if folder.name == STATES else ""
