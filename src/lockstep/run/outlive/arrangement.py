"""Which runs outlive the death of their ranks, and how what that takes is put together."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from lockstep.handover.at_the_end import last
from lockstep.handover.environment import RankEnvironment, decode_place
from lockstep.handover.hidden_output import show
from lockstep.handover.run_folder import RunFolder
from lockstep.journal.lost_node import LostNode
from lockstep.journal.news import Event, News
from lockstep.layout.mesh import Mesh
from lockstep.rank.rejoin import Rejoining
from lockstep.run.outlive.last_snapshot import LastSnapshot
from lockstep.run.outlive.rescue import Rescue, history_in
from lockstep.run.run_state import RunState
from lockstep.run.saving.snapshots import Snapshots
from lockstep.transport.contract import Transport
from lockstep.transport.gpu_ranks import GpuTransport
from lockstep.transport.history import History
from lockstep.transport.outliving import OutlivingTransport
from lockstep.transport.over_nodes import OverNodesTransport
from lockstep.transport.shared_memory import SharedMemoryTransport


def outliving(inner: Transport, environment: RankEnvironment, mesh: Mesh, num_lanes: int) -> Transport:
    """A transport that outlives ranks where the launcher replaces them and one rank can read the whole state."""
    settings = environment.settings
    if settings is None or not settings.replaces or settings.evidence or not isinstance(inner, SharedMemoryTransport):
        return inner
    if num_lanes == 1 or not (mesh.strategy == "ddp" or (mesh.strategy == "zero1" and inner.shares_memory)):
        return inner
    left = settings.generation.folder if settings.generation is not None else ""
    return OutlivingTransport(inner, History(history_in(Path(left)) if left else ""))


def outlive(run: RunState, variables: dict[str, str]) -> None:
    """Let this rank be replaced, and wait for others to be.

    Args:
        run: the run.
        variables: the environment of this process.
    """
    transport, environment = run.machinery.transport, run.setup.environment
    if isinstance(transport, OverNodesTransport):
        _keep_last(run, transport, variables)
    elif isinstance(transport, GpuTransport):
        _hear_of_lost_nodes(transport.control, environment)
    if not isinstance(transport, OutlivingTransport) or environment.settings is None:
        return
    generation = environment.settings.generation
    left = Path(generation.folder) if generation is not None else None
    rescue = Rescue(run, transport, RunFolder(environment.settings.run_folder), left)
    run.progress.rescue, transport.rejoin = rescue, Rejoining(environment, rescue)
    place, rank = decode_place(variables), environment.position.rank
    if place is None or not place.news.is_open():
        return

    def live() -> None:
        run.machinery.metrics.is_held = False
        show()
        if left is not None:
            shutil.rmtree(left, ignore_errors=True)
        News(rank, Event.LIVE).tell(place.news.number)

    if left is not None:
        transport.on_live = live
    News(rank, Event.OUTLIVES).tell(place.news.number)


def _keep_last(run: RunState, transport: OverNodesTransport, variables: dict[str, str]) -> None:
    """Let this rank take a snapshot when another one is lost, where each has the whole state."""
    settings, snapshots, place = run.setup.environment.settings, run.progress.snapshots, decode_place(variables)
    if settings is None or not isinstance(snapshots, Snapshots) or run.setup.mesh.strategy != "ddp":
        return
    if place is None or not place.news.is_open():
        return

    def tell(event: Event, code: int) -> None:
        News(transport.rank, event, code).tell(place.news.number)

    last = LastSnapshot(run, snapshots, settings.restart.number, tell)
    run.progress.rescue, transport.on_loss = last, last.take
    _hear_of_lost_nodes(transport, run.setup.environment)


def _hear_of_lost_nodes(transport: Transport, environment: RankEnvironment) -> None:
    """Let the transport ask the launcher for losses that no connection shows."""
    settings = environment.settings
    if isinstance(transport, OverNodesTransport) and settings is not None:
        transport.is_told = LostNode(RunFolder(settings.run_folder).journal(transport.rank)).is_told


def finished(run: RunState, variables: dict[str, str], *, at_exit: bool) -> None:
    """Tell the launcher that no rank of the run can be replaced any more.

    Args:
        run: the run, which has ended well.
        variables: the environment of this process.
        at_exit: whether the script is over too.
    """
    place = decode_place(variables)
    if isinstance(run.machinery.transport, OutlivingTransport) and place is not None and place.news.is_open():
        tell = partial(News(run.machinery.transport.rank, Event.FINISHED, int(at_exit)).tell, place.news.number)
        last.append(tell) if at_exit else tell()
