"""From a word of the command line to states: a run's name, its folder, a folder of states, or one state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.checkpoint.folder import StateFolder, may_be_state
from lockstep.checkpoint.foreign import of_torch
from lockstep.errors import UsageError
from lockstep.handover.run_folder import STATES, RunFolder
from lockstep.notices import say
from lockstep.regular_file import other_kind
from lockstep.visible import visible

ASIDE = "damaged-"
"""How the name of a state begins that a resumed run found damaged."""
LIST = "List what there is with `lockstep checkpoint ls`."


@dataclass(frozen=True)
class Found:
    """A state, perhaps a damaged one."""

    path: Path
    run: str = ""
    """The run's name; empty for a state that a script saved to a place of its own."""
    url: str = ""
    """Where it is, if `path` is a copy of it (`states.remote`)."""

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
    places = [place for place in dict.fromkeys((Path(word), runs / word)) if _is_there(place)]
    try:
        for place in places:
            if states := list(_states_of(place)):
                return states
        for place in places:
            if _is_of_runs(place):
                return []
        raise _refusal(word, places[0] if places else None, runs)
    except OSError as error:
        raise UsageError(f"{visible(word)} cannot be read ({error.strerror}).", "Check its permissions.") from None


def all_states(runs: Path) -> list[Found]:
    """The states of all runs; none where there is no such folder.

    Raises:
        UsageError: when it cannot be read.
    """
    try:
        return list(_states_of(runs)) if _is_there(runs) else []
    except OSError as error:
        raise UsageError(f"{visible(runs)} cannot be read ({error.strerror}).", "Check its permissions.") from None


def _is_there(place: Path) -> bool:
    with suppress(ValueError, OSError):
        return os.path.lexists(place) or StateFolder(place).find() is not None
    return False


def _states_of(place: Path) -> Iterator[Found]:
    if not os.path.lexists(place):
        left = StateFolder(place).find()
        if left is not None:
            say(f"{place} is missing, because a program ended while it replaced it; this is {left}.")
            yield Found(left, _run_of(place.parent))
    elif may_be_state(place):
        yield Found(place, _run_of(place.parent))
    elif place.is_dir():
        children = _folders_in(place)
        own = [child for child in children if may_be_state(child)]
        yield from (Found(child, _run_of(place)) for child in own)
        if not own and (place / STATES).is_dir():
            yield from _states_in_run(place)
        elif not own:
            for child in children:
                yield from _states_in_run(child)


def _states_in_run(folder: Path) -> Iterator[Found]:
    if (folder / STATES).is_dir():
        for child in _folders_in(folder / STATES):
            if may_be_state(child):
                yield Found(child, _name_of(folder))


def _folders_in(folder: Path) -> list[Path]:
    """Folders by name; no links, and nothing hidden: a state that is being written begins with a dot."""
    return sorted(
        entry for entry in folder.iterdir() if entry.name[0] != "." and entry.is_dir() and not entry.is_symlink()
    )


def _run_of(states: Path) -> str:
    """The run whose folder of states this is; empty if it is another kind of folder."""
    absolute = Path(os.path.abspath(states))  # noqa: PTH100 - the name as the person gave it
    return absolute.parent.name if absolute.name == STATES else ""


def _name_of(folder: Path) -> str:
    return Path(os.path.abspath(folder)).name  # noqa: PTH100 - see above


def _is_of_runs(place: Path) -> bool:
    """Whether it is a run without states, its empty folder of states, or a folder of such runs."""
    if not place.is_dir():
        return False
    if place.name == STATES and not any(place.iterdir()):
        return True
    children = _folders_in(place)
    starts = (start for child in children for start in _folders_in(child))
    return any(RunFolder(one).plan.exists() or one.name == STATES for one in (place, *children, *starts))


def _refusal(word: str, place: Path | None, runs: Path) -> UsageError:
    name = visible(word)
    if place is None:
        looked = "" if Path(word).is_absolute() else f", neither here nor in {visible(runs)}"
        return UsageError(f"There is no run and no state {name}{looked}.", LIST)
    if place.is_symlink() and not place.exists():
        return UsageError(f"{name} is a link that leads nowhere.", LIST)
    if not place.is_dir():
        return _not_a_folder(name, place)
    if (problem := of_torch(place, name)) is not None:
        return problem
    return UsageError(f"{name} is a folder without a state that lockstep saved.", LIST)


def _not_a_folder(name: str, place: Path) -> UsageError:
    if may_be_state(place.parent):
        return UsageError(f"{name} is a file of a state.", f"Name the state: {visible(place.parent)}.")
    kind = other_kind(place) or "a file"
    fix = "Read weights from it with lockstep.load_weights." if kind == "a file" else LIST
    return UsageError(f"{name} is {kind}; a state that lockstep saved is a folder.", fix)
