"""States that lie on one node and are loaded on several: one rank broadcasts the files to the nodes that lack them.

Where nodes share a disk nothing travels. Elsewhere a state lies where rank 0 wrote it, and a snapshot in memory on the node
of the rank that did.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from samebits.errors import EnvironmentFailure
from samebits.machine.held_folder import TemporaryFolder
from samebits.protocol.run_folder import COPY
from samebits.protocol.state_files.folder import StateFolder
from samebits.rank.caller import where
from samebits.rank.position.run_state import RunState
from samebits.rank.transport.together import Together

CALL = "state for other nodes"
PIECE_BYTES = 32 << 20
Result = TypeVar("Result")


@contextmanager
def replicated(run: RunState, target: Path, source: int = 0) -> Iterator[Path]:
    """Where this rank reads the state `target` inside the block. Collective: call it on every rank.

    Where a node has none and rank `source` does, that node's ranks read a copy in a private folder, removed at the end.

    Raises:
        EnvironmentFailure: on every rank, when a node has no place for it, or the source cannot read it.
    """
    position = run.config.environment.position
    if position.local_world_size == position.world_size:
        yield target
        return
    together = Together(run.components.transport, CALL, where())
    has = together.do(lambda: StateFolder(target).read_manifest() is not None)
    have = together.agree(has)
    if all(have) or not have[source]:
        yield target
        return
    with ExitStack() as stack:
        room = None
        if position.local_rank == 0 and not has:
            room = together.do(lambda: private_room(run, stack))
        rooms = together.agree(str(room) if room is not None else None)
        _broadcast(run, together, target, room, source)
        mine = rooms[position.rank - position.local_rank]
        yield target if mine is None else Path(mine) / target.name
        # [Note: why all wait before the copy goes]
        # The folder is this rank's, and others of its node may still read in it.
        run.components.transport.barrier(CALL, where())


def private_room(run: RunState, stack: ExitStack) -> Path:
    """A folder of this rank until `stack` ends: where the run has its own, which is meant for large files, else a temporary one."""
    place = run.config.folder.path if run.config.folder is not None else None
    try:
        return stack.enter_context(TemporaryFolder(COPY, place))
    except OSError as error:
        raise EnvironmentFailure(f"There is no place for a copy of a state ({error.strerror}).") from None


def _broadcast(run: RunState, together: Together, target: Path, room: Path | None, source: int) -> None:
    """Give the files of rank `source` to every rank; those with a room keep them."""
    transport = run.components.transport
    place = StateFolder(target).find() if transport.rank == source else None
    record: dict[str, int] = together.agree(together.do(lambda: _sizes(place)))[source]
    copy = room / target.name if room is not None else None
    if copy is not None:
        together.do(lambda: _tried(lambda: copy.mkdir(mode=0o700)))
    for name, size in sorted(record.items()):
        for start in range(0, size, PIECE_BYTES):
            piece = torch.zeros(min(PIECE_BYTES, size - start), dtype=torch.uint8, device="cpu")
            if place is not None:
                together.do(partial(_tried, partial(_read, place / name, start, piece)))
            transport.broadcast(piece, source)
            if copy is not None:
                together.do(partial(_tried, partial(_write, copy / name, piece)))
    together.agree()


def _sizes(source: Path | None) -> dict[str, int]:
    found = source.iterdir() if source is not None else ()
    return _tried(lambda: {path.name: path.stat().st_size for path in found if path.is_file()})


def _read(path: Path, at: int, piece: Tensor) -> None:
    with path.open("rb") as file:
        file.seek(at)
        if file.readinto(memoryview(piece.numpy())) != piece.numel():  # type: ignore[arg-type]  # NumPy's stub says less
            raise OSError(0, "it became shorter")


def _write(path: Path, piece: Tensor) -> None:
    """Append to a file of this rank's own folder."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(memoryview(piece.numpy()))  # type: ignore[arg-type]


def _tried(do: Callable[[], Result]) -> Result:
    try:
        return do()
    except OSError as error:
        raise EnvironmentFailure(f"A state could not be copied to another node ({error.strerror}).") from None
