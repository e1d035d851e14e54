"""From a word of the command line to states: a run's name, its folder, a folder of states, one state, or a URL of these.

States at a URL are looked at through copies in a private folder. A listing needs manifests and sizes only, so a copy begins as an
outline, with files of the same sizes and no content.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.machine.visible import visible
from samebits.notices import say
from samebits.protocol.run_folder import STATES
from samebits.protocol.saving import step_of
from samebits.protocol.state_files.folder import StateFolder, is_state, may_be_state
from samebits.protocol.state_files.own_folder import of_others
from samebits.protocol.state_files.remote_files import RemoteFiles
from samebits.protocol.state_files.remote_state import RemoteState, named
from samebits.protocol.url import below, parted, shown

ASIDE = "damaged-"
"""How the name of a state begins that a resumed run found damaged; whoever wants to look at it names it."""
LIST = "List what there is with `samebits checkpoint ls`."
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
    """Where it is, if `path` is a copy of it."""

    @property
    def name(self) -> str:
        """Where it is, for people."""
        return self.url or str(self.path)


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


def states_by_step(place: Path) -> dict[int, Path]:
    """The states in a run's folder of states by their steps, perhaps damaged ones; no links."""
    found: dict[int, Path] = {}
    with suppress(OSError, ValueError):
        for one in place.iterdir():
            if (step := step_of(one.name)) is not None and one.is_dir() and not one.is_symlink():
                found[step] = one
    return found


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
    """No link, nothing hidden (a state that is being written begins with a dot), and nothing that a resumed run has put aside."""
    hidden = any(part[0] == "." for part in one.relative_to(place).parts) or one.name.startswith(ASIDE)
    return one == place or not (one.is_symlink() or hidden)


def _run_of(state: Path) -> str:
    """The run in whose folder of states this is; empty if that is another kind of folder."""
    folder = Path(os.path.abspath(state)).parent  # noqa: PTH100 - the name as the person gave it
    return folder.parent.name if folder.name == STATES else ""


def states_at_url(url: str, room: Path) -> list[Found]:
    """Outlines of the states at `url`: a state, the states of a run (--states URL/NAME), or those of several runs.

    Args:
        url: where to look.
        room: an empty folder of this program.

    Raises:
        UsageError: when there is none, or it cannot be read.
    """
    found = [*_outline(url, room / "state", "")] or [*_states_in(url, room)]
    if not found:
        found = [one for name in RemoteFiles(url).names() for one in _states_in(below(url, name), room / name)]
    if not found:
        raise UsageError(f"There is no state at {shown(url)}.", "Name a state, or the folder of a run's states.")
    return found


def fill(found: Found) -> Found:
    """The same state with its content; one of the disk as it is.

    Raises:
        UsageError: when it cannot be read.
        EnvironmentFailure: when there is no room.
    """
    if found.url:
        shutil.rmtree(found.path)
        RemoteState(found.url).fetch(found.path)
    return found


def described_at(found: Found, look: Callable[[], Any]) -> Any:
    """What `look` finds out about a state, or raises, with the URL in the place of the folder with its copy."""
    if not found.url:
        return look()
    with named(found.path, found.url):
        place, url = (json.dumps(str(one))[1:-1] for one in (found.path, shown(found.url)))
        return json.loads(json.dumps(look()).replace(place, url))


def _states_in(url: str, room: Path) -> Iterator[Found]:
    for name in RemoteFiles(url).names():
        yield from _outline(below(url, name), room / name, parted(below(url, name))[0].rpartition("/")[2])


def _outline(url: str, folder: Path, run: str) -> Iterator[Found]:
    if RemoteState(url).fetch(folder, outline=True) and is_state(folder):
        yield Found(folder, run, url)
