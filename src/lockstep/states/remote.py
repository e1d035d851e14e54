"""States at a URL, looked at through copies in a private folder.

A listing needs manifests and sizes only, so a copy begins as an outline, with files of the same sizes and no content.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from lockstep.checkpoint.folder import is_state
from lockstep.checkpoint.remote_files import RemoteError, RemoteFiles
from lockstep.checkpoint.remote_state import RemoteState, named
from lockstep.errors import UsageError
from lockstep.handover.url import below, parted, shown
from lockstep.states.places import Found

Told = TypeVar("Told")


def states_at_url(url: str, room: Path) -> list[Found]:
    """Outlines of the states at `url`: a state, the states of a run (--states URL/NAME), or those of several runs.

    Args:
        url: where to look.
        room: an empty folder of this program.

    Raises:
        UsageError: when there is none, or it cannot be read.
    """
    try:
        found = [one for one in [_outline(url, room / "state", "")] if one is not None] or list(_states_in(url, room))
        if not found:
            for name in RemoteFiles(url).names():
                found += _states_in(below(url, name), room / name)
    except RemoteError as error:
        raise UsageError(error.problem, error.fix) from None
    if not found:
        raise UsageError(f"There is no state at {shown(url)}.", "Name a state, or the folder of a run's states.")
    return found


def fill(found: Found) -> Found:
    """The same state with its content; one of the disk as it is.

    Raises:
        UsageError: when it cannot be read.
        WorldError: when there is no room.
    """
    if found.url:
        shutil.rmtree(found.path)
        try:
            RemoteState(found.url).fetch(found.path)
        except RemoteError as error:
            raise UsageError(error.problem, error.fix) from None
    return found


def told_of(found: Found, look: Callable[[], Told]) -> Told:
    """What `look` finds out about a state, or raises, with the URL in the place of the folder with its copy."""
    if not found.url:
        return look()
    with named(found.path, found.url):
        told: Told = _renamed(look(), str(found.path), shown(found.url))
        return told


def _states_in(url: str, room: Path) -> Iterator[Found]:
    for name in RemoteFiles(url).names():
        if (
            found := _outline(below(url, name), room / name, parted(below(url, name))[0].rpartition("/")[2])
        ) is not None:
            yield found


def _outline(url: str, folder: Path, run: str) -> Found | None:
    is_there = RemoteState(url).fetch(folder, only_sizes=True)
    return Found(folder, run, url) if is_there and is_state(folder) else None


def _renamed(value: Any, folder: str, url: str) -> Any:
    if isinstance(value, str):
        return value.replace(folder, url)
    if isinstance(value, tuple):
        return tuple(_renamed(one, folder, url) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: _renamed(getattr(value, one.name), folder, url) for one in fields(value)})
    return value
