"""States and weights at a URL: written to a private folder and copied from there, copied to one and read there.

Rank 0 copies what is written; what is read, one rank of each node. The others hear how it went.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from lockstep.caller import where
from lockstep.checkpoint.contents import Contents
from lockstep.checkpoint.folder import StateFolder
from lockstep.checkpoint.inventory import Found
from lockstep.checkpoint.remote_files import RemoteError, RemoteFiles
from lockstep.checkpoint.remote_state import RemoteState, named, trouble_in
from lockstep.errors import UsageError, WorldError
from lockstep.handover.run_folder import COPY
from lockstep.handover.url import check_url, is_url, parted, shown
from lockstep.machine.temporary_folder import TemporaryFolder
from lockstep.run.run_state import RunState
from lockstep.run.saving import resume, state, weights
from lockstep.transport.together import Together


def save_state(run: RunState, path: str | os.PathLike[str], extra: Mapping[str, Any]) -> None:
    """See `Run.save_state`."""
    if not _is_away(run, path):
        state.save_state(run, path, extra)
        return
    url = os.fspath(path)
    check_url(url)

    def write(run: RunState, folder: StateFolder, contents: Contents, found: Found, told: Sequence[Any]) -> str:
        problem = state.write_now(run, folder, contents, found, told)
        if run.machinery.transport.rank == 0 and not problem:
            return trouble_in(lambda: RemoteState(url).put(folder.target))
        return problem

    with _room(run) as room:
        place = Path(run.machinery.transport.all_gather_object(str(room), state.SAVE, where())[0], "state")
        with named(place, url):
            state.save_state(run, place, extra, write)


def load_state(
    run: RunState, path: str | os.PathLike[str], objects: Mapping[str, Any], *, missing_ok: bool
) -> dict[str, Any]:
    """See `Run.load_state`."""
    if not _is_away(run, path):
        return resume.load_state(run, path, objects, missing_ok=missing_ok)
    url, position = os.fspath(path), run.setup.environment.position
    check_url(url)
    state.require_between_epochs(run.progress, resume.LOAD)
    together = Together(run.machinery.transport, resume.LOAD, where())
    with _room(run) as mine:
        if position.local_rank == 0:
            together.do(lambda: _fetch(url, mine / "state"))
        rooms = together.agree(str(mine))
        place = Path(rooms[position.rank - position.local_rank], "state")
        with named(place, url):
            return resume.load_state(run, place, objects, missing_ok=missing_ok)


def save_weights(run: RunState, model: nn.Module, path: str | os.PathLike[str]) -> None:
    """See `Run.save_weights`."""
    if not _is_away(run, path):
        weights.save_weights(run, model, path)
        return
    url = os.fspath(path)
    check_url(url)
    weights.check_name(shown(url))
    folder, name = parted(url)
    with _room(run) as room:
        weights.save_weights(run, model, room / "weights")
        together = Together(run.machinery.transport, weights.SAVE, where())
        if run.machinery.transport.rank == 0:
            try:
                RemoteFiles(folder).put(name, room / "weights")
            except RemoteError as error:
                together.refuse(WorldError(f"The weights could not be written to {shown(url)}: {error.advice}"))
        together.agree()


def _is_away(run: RunState, path: str | os.PathLike[str]) -> bool:
    """Whether it is a URL, and the run is the user's: those of `verify` and `bench` write to folders of their own."""
    return is_url(path) and run.machinery.witness is None and run.machinery.meter is None


@contextmanager
def _room(run: RunState) -> Iterator[Path]:
    """A private folder of this rank: where the run has its own, which is meant for large files, else a temporary one."""
    place = run.setup.folder.path if run.setup.folder is not None else None
    try:
        room = TemporaryFolder(COPY, place)
    except OSError as error:
        raise WorldError(f"There is no place for a copy of a state ({error.strerror}).") from None
    with room as path:
        yield path


def _fetch(url: str, place: Path) -> None:
    try:
        RemoteState(url).fetch(place)
    except RemoteError as error:
        raise UsageError(error.problem, error.fix) from None
    except OSError as error:
        raise WorldError(f"{shown(url)} cannot be copied to {place} ({error.strerror}).") from None
