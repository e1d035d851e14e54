"""The snapshot that survivors take when something is lost: another rank, or a worker of this one's loader.

All ranks start again then, from the newest snapshot. With this one that is the beginning of the step in which the rank was
lost, so the loss costs that step and no more; in evaluation, it is the end of the last step. One survivor of each node
writes it, into its own node's memory, before the exchange that cannot end raises `PeerLost`.

    the exchange that lost a rank -> take    is the state as it was when the step began? then write it, notify the launcher
    the launcher                  -> waits for that, and ends the ranks    launcher.supervise.last_snapshots
    the next start                -> Snapshots.begin finds the newest of all nodes
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from samebits.errors import EnvironmentFailure
from samebits.machine.clocks import growing_time
from samebits.machine.processes import process_state
from samebits.notices import say
from samebits.protocol.environment import RankEnvironment, decode_place
from samebits.protocol.journal.ring import JournalReader
from samebits.protocol.journal.signals import Event, LostNode, News, Reached, place_of
from samebits.protocol.layout.stream_key import Domain
from samebits.protocol.run_folder import RunFolder
from samebits.protocol.state_files.folder import StateFolder
from samebits.rank.checkpoint.when.snapshots import Snapshots
from samebits.rank.checkpoint.when.step_beginning import StepSnapshot
from samebits.rank.look.frames import read_behind_its_loop
from samebits.rank.position.epoch_count import InsideEpoch
from samebits.rank.position.run_state import RunState
from samebits.rank.transport.contract import Transport
from samebits.rank.transport.gpu_ranks import GpuTransport
from samebits.rank.transport.over_nodes import OverNodesTransport

CLAIM = ".claim-{}"
"""Made by the rank of a node that writes, by the start of the ranks."""
PATIENCE_S, LOOK_S = 3.0, 0.005
"""How long to wait for somebody else who is writing a snapshot of the same step, and between two looks."""
ENDS_WITHIN_S = 1.0
"""How long a rank may take to end that others have noticed to be lost: the kernel frees its memory first."""
BEFORE_STEP, AFTER_LAST = 1, 2
"""Parts of `place_of`: before a step of an epoch; after its last one, where evaluations are."""


class LastSnapshot:
    """What one rank knows.

    Args:
        run: it calls the methods.
        snapshots: the run's; they are on.
        number: which start of the ranks this is.
        report: sends an event to the launcher: KEEPS once there is a step to begin again, KEPT with 0 when a snapshot of it
            was taken, with 1 when this rank takes none.
        first: the journal of rank 0; None on nodes without it.
    """

    def __init__(
        self,
        run: RunState,
        snapshots: Snapshots,
        number: int,
        report: Callable[[Event, int], None],
        first: Path | None,
    ) -> None:
        self._run, self._snapshots, self._number, self._report = run, snapshots, number, report
        self._first = Reached(first) if first is not None else None
        self._first_pid = JournalReader(first).pid if first is not None else 0
        self._beginning = StepSnapshot(run)
        self.step: int | None = None
        """The last finished step, where the run can resume from its end; else None."""
        self._place = 0
        self._undo: Callable[[], None] | None = None
        """Takes back what the lanes of this step have changed; None before they begin."""
        self._objection = ""
        self._has_looked = self._has_reported = False

    # What `States` calls: its words hold

    def enter_boundary(self, inside: InsideEpoch, *, is_last: bool) -> None:
        self.step, self._objection, self._undo = None, "", None
        loop_state, step = self._run.loop_state, self._run.components.step_timer.step
        self._place = place_of(step, AFTER_LAST if is_last else BEFORE_STEP)
        if self._first is not None and self._run.components.transport.rank == 0:
            self._first.note(self._place, growing_time(step))
        if not loop_state.epochs.is_first or loop_state.tallies.are_unshared or loop_state.resumption.late is not None:
            return
        if not self._may_lose():
            return
        if not self._has_looked:
            self._has_looked = True
            self._beginning.look_at_source()
        # A run that resumes behind its loop has no turn there, so names that the loop assigns would be missing.
        if is_last and read_behind_its_loop():
            return
        self._beginning.note(inside, keeps_streams=is_last)
        self.step = step

    def _may_lose(self) -> bool:
        """Whether anything but this rank itself can be lost: another rank, or a worker of a loader."""
        loaders = self._run.loop_state.prepared.loaders
        return self._run.components.transport.world_size > 1 or any(loader.num_workers for loader in loaders)

    def enter_step(self) -> None:
        if not self._has_reported:
            self._has_reported = True
            self._report(Event.KEEPS, 0)

    def enter_pass(self, undo: Callable[[], None]) -> None:
        if self._undo is None:
            self._objection, self._undo = self._beginning.change(), undo

    # When another rank is lost

    def take(self) -> None:
        """Take the snapshot, if the run can resume from here and no other rank of this node does; never raises."""
        try:
            is_taken = self._write()
        except Exception:  # noqa: BLE001 - what the script tracks may raise anything, and the loss is what matters
            is_taken = False
        self._report(Event.KEPT, int(not is_taken))

    def _write(self) -> bool:
        """Whether this rank has written one."""
        step = self.step
        if not step:
            return False
        reached, taken_s = (self._place, None) if self._first is None else self._first.read()
        if reached != self._place:
            if reached > self._place or not self._goes_without_first(step):
                return False
            taken_s = None
        if self._undo is not None:
            self._undo()
        else:
            self._objection = self._beginning.change()
        if self._objection or self._beginning.updated():
            return False
        place = self._snapshots.last_place(step)
        if place is None:
            return False
        with suppress(FileExistsError):
            claim = os.open(place.parent / CLAIM.format(self._number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            os.close(claim)
            # [Note: why the stream is set before writing]
            # Each survivor stopped in another lane. With the step's stream all would write the same bytes.
            self._run.components.streams.enter(Domain.STEP, step + 1, 0)
            self._write_once(place, taken_s)
            return True
        return False

    def _goes_without_first(self, step: int) -> bool:
        """Whether rank 0 has ended before it came here; while it lives it takes one itself, after what it does for all."""
        until_s = time.monotonic() + ENDS_WITHIN_S
        while (state := process_state(self._first_pid)) is not None and state.letter not in "ZX":
            if time.monotonic() > until_s:
                return False
            time.sleep(LOOK_S)
        say(f"rank 0 was lost behind the lanes of step {step}: what it still had to print or write there is not done.")
        return True

    def _write_once(self, place: Path, taken_s: float | None) -> None:
        """Write it, unless a snapshot of this step is there, or being written."""
        until_s = time.monotonic() + PATIENCE_S
        while StateFolder(place).read_manifest() is None:
            try:
                self._beginning.write(place, taken_s)
            except EnvironmentFailure:
                if time.monotonic() > until_s:
                    raise
                time.sleep(LOOK_S)
        self._snapshots.forget_older()


def outlive(run: RunState, snapshots: Snapshots | None, variables: dict[str, str]) -> LastSnapshot | None:
    """Let this rank take a snapshot when something is lost, where each has the whole state."""
    transport, environment = run.components.transport, run.config.environment
    _hear_of_lost_nodes(transport.control if isinstance(transport, GpuTransport) else transport, environment)
    settings, place = environment.settings, decode_place(variables)
    if settings is None or snapshots is None or place is None or not place.news.is_open():
        return None
    if run.config.mesh.strategy not in {"single", "ddp"} or run.config.device.type != "cpu":
        return None

    def report(event: Event, code: int) -> None:
        News(transport.rank, event, code).tell(place.news.number)

    position = environment.position
    is_first_node = position.rank == position.local_rank
    first = RunFolder(settings.run_folder).journal(0) if is_first_node else None
    last = LastSnapshot(run, snapshots, settings.restart.number, report, first)
    transport.on_loss = last.take
    return last


def _hear_of_lost_nodes(transport: Transport, environment: RankEnvironment) -> None:
    """Let the transport ask the launcher for losses that no connection shows."""
    settings = environment.settings
    if isinstance(transport, OverNodesTransport) and settings is not None:
        transport.is_reported = LostNode(RunFolder(settings.run_folder).journal(transport.rank)).is_told
