"""States and weights at a URL: written to a private folder and copied from there, copied to one and read there.

Rank 0 copies what is written; what is read, one rank of each node. The others learn how it went.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from samebits.errors import EnvironmentFailure
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.remote_files import RemoteFiles
from samebits.protocol.state_files.remote_state import RemoteState, named, trouble_in
from samebits.protocol.url import check_url, is_url, parted, shown
from samebits.rank.caller import where
from samebits.rank.checkpoint.format.sources import Found
from samebits.rank.checkpoint.format.state import State
from samebits.rank.checkpoint.store import resume, save
from samebits.rank.checkpoint.store.other_nodes import private_room
from samebits.rank.checkpoint.weights import save as weights
from samebits.rank.position.run_state import RunState
from samebits.rank.transport.together import Together


def save_state(run: RunState, path: str | os.PathLike[str], extra: Mapping[str, Any]) -> None:
    """See `Run.save_state`."""
    if not _is_away(run, path):
        save.save_state(run, path, extra)
        return
    url = _checked(path)

    def write(run: RunState, folder: StateFolder, contents: State, found: Found, record: Sequence[Any]) -> str:
        problem = save.write_now(run, folder, contents, found, record)
        if run.components.transport.rank == 0 and not problem:
            return trouble_in(lambda: RemoteState(url).put(folder.target))
        return problem

    with ExitStack() as stack:
        room = str(private_room(run, stack))
        place = Path(run.components.transport.all_gather_object(room, save.SAVE, where())[0], "state")
        with named(place, url):
            save.save_state(run, place, extra, write)


def load_state(
    run: RunState, path: str | os.PathLike[str], objects: Mapping[str, Any], *, missing_ok: bool
) -> dict[str, Any]:
    """See `Run.load_state`."""
    if not _is_away(run, path):
        return resume.load_state(run, path, objects, missing_ok=missing_ok)
    url, position = _checked(path), run.config.environment.position
    save.require_between_epochs(run.loop_state, resume.LOAD)
    together = Together(run.components.transport, resume.LOAD, where())
    with ExitStack() as stack:
        mine = private_room(run, stack)
        if position.local_rank == 0:
            together.do(lambda: _fetch(url, mine / "state"))
        place = Path(together.agree(str(mine))[position.rank - position.local_rank], "state")
        with named(place, url):
            return resume.load_state(run, place, objects, missing_ok=missing_ok)


def save_weights(run: RunState, model: nn.Module, path: str | os.PathLike[str]) -> None:
    """See `Run.save_weights`."""
    if not _is_away(run, path):
        weights.save_weights(run, model, path)
        return
    url = _checked(path)
    weights.check_name(shown(url))
    folder, name = parted(url)
    with ExitStack() as stack:
        written = private_room(run, stack) / "weights"
        weights.save_weights(run, model, written)
        together = Together(run.components.transport, weights.SAVE, where())
        if run.components.transport.rank == 0 and (why := trouble_in(lambda: RemoteFiles(folder).put(name, written))):
            together.refuse(EnvironmentFailure(f"The weights could not be written: {why}"))
        together.agree()


def _is_away(run: RunState, path: str | os.PathLike[str]) -> bool:
    """Whether it is a URL, and the run is the user's: those of `verify` and `bench` write to folders of their own."""
    return is_url(path) and run.config.purpose.is_users


def _checked(path: str | os.PathLike[str]) -> str:
    url = os.fspath(path)
    check_url(url)
    return url


def _fetch(url: str, place: Path) -> None:
    try:
        RemoteState(url).fetch(place)
    except OSError as error:
        raise EnvironmentFailure(f"{shown(url)} cannot be copied to {place} ({error.strerror}).") from None
