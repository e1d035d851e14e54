"""Which runs keep the beginning of their step for a loss, and how what that takes is put together."""

from __future__ import annotations

from lockstep.protocol.environment import RankEnvironment, decode_place
from lockstep.protocol.journal.lost_node import LostNode
from lockstep.protocol.journal.news import Event, News
from lockstep.protocol.run_folder import RunFolder
from lockstep.rank.checkpoint.outlive.last_snapshot import LastSnapshot
from lockstep.rank.checkpoint.saving.snapshots import Snapshots
from lockstep.rank.run.run_state import RunState
from lockstep.rank.transport.contract import Transport
from lockstep.rank.transport.gpu_ranks import GpuTransport
from lockstep.rank.transport.over_nodes import OverNodesTransport


def outlive(run: RunState, variables: dict[str, str]) -> None:
    """Let this rank take a snapshot when something is lost, where each has the whole state.

    Args:
        run: the run.
        variables: the environment of this process.
    """
    transport, environment = run.machinery.transport, run.setup.environment
    _hear_of_lost_nodes(transport.control if isinstance(transport, GpuTransport) else transport, environment)
    settings, snapshots, place = environment.settings, run.progress.snapshots, decode_place(variables)
    if settings is None or not isinstance(snapshots, Snapshots) or place is None or not place.news.is_open():
        return
    if run.setup.mesh.strategy not in {"single", "ddp"} or run.setup.device.type != "cpu":
        return

    def tell(event: Event, code: int) -> None:
        News(transport.rank, event, code).tell(place.news.number)

    position = environment.position
    is_first_node = position.rank == position.local_rank
    first = RunFolder(settings.run_folder).journal(0) if is_first_node else None
    last = LastSnapshot(run, snapshots, settings.restart.number, tell, first)
    run.progress.last, transport.on_loss = last, last.take


def _hear_of_lost_nodes(transport: Transport, environment: RankEnvironment) -> None:
    """Let the transport ask the launcher for losses that no connection shows."""
    settings = environment.settings
    if isinstance(transport, OverNodesTransport) and settings is not None:
        transport.is_told = LostNode(RunFolder(settings.run_folder).journal(transport.rank)).is_told
