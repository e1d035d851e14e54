"""States at a URL, looked at through copies in a private folder.

A listing needs manifests and sizes only, so a copy begins as an outline, with files of the same sizes and no content.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.launcher.states.places import Found
from lockstep.protocol.state_files.folder import is_state
from lockstep.protocol.state_files.remote_files import RemoteFiles
from lockstep.protocol.state_files.remote_state import RemoteState, named
from lockstep.protocol.url import below, parted, shown


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


def told_of(found: Found, look: Callable[[], Any]) -> Any:
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
