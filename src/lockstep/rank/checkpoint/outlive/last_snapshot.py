"""The snapshot that survivors take when something is lost: another rank, or a worker of this one's loader.

All ranks start again then, from the newest snapshot. With this one that is the beginning of the step in which the rank was
lost, so the loss costs that step and no more; in evaluation, it is the end of the last step. One survivor of each node
writes it, into its own node's memory, before the exchange that cannot end raises `PeerLost`.

    the exchange that lost a rank -> take    is the state as it was when the step began? then write it, tell the launcher
    the launcher                  -> waits for that, and ends the ranks    launch.supervise.last_snapshots
    the next start                -> Snapshots.begin finds the newest of all nodes
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lockstep.errors import WorldError
from lockstep.machine.growing_time import growing_time
from lockstep.machine.process_state import process_state
from lockstep.notices import say
from lockstep.protocol.journal.news import Event
from lockstep.protocol.journal.reached import Reached, place_of
from lockstep.protocol.journal.ring import JournalReader
from lockstep.protocol.layout.stream_key import Domain
from lockstep.protocol.state_files.folder import StateFolder
from lockstep.rank.checkpoint.outlive.step_snapshot import Beginning
from lockstep.rank.checkpoint.saving.snapshots import Snapshots
from lockstep.rank.run.loop.loop_variables import lacks_loop_variables
from lockstep.rank.run.position.inside_epoch import InsideEpoch
from lockstep.rank.run.run_state import NoLastSnapshot, RunState

CLAIM = ".claim-{}"
"""Made by the rank of a node that writes, by the start of the ranks."""
PATIENCE_S, LOOK_S = 3.0, 0.005
"""How long to wait for somebody else who is writing a snapshot of the same step, and between two looks."""
ENDS_WITHIN_S = 1.0
"""How long a rank may take to end that others have noticed to be lost: the kernel frees its memory first."""
BEFORE_STEP, AFTER_LAST = 1, 2
"""Parts of `place_of`: before a step of an epoch; after its last one, where evaluations are."""


class LastSnapshot(NoLastSnapshot):
    """What one rank knows.

    Args:
        run: it calls the methods.
        snapshots: the run's; they are on.
        number: which start of the ranks this is.
        tell: tells the launcher of an event: KEEPS once there is a step to begin again, KEPT with 0 when a snapshot of it
            was taken, with 1 when this rank takes none.
        first: the journal of rank 0; None on nodes without it.
    """

    is_on = True

    def __init__(
        self,
        run: RunState,
        snapshots: Snapshots,
        number: int,
        tell: Callable[[Event, int], None],
        first: Path | None,
    ) -> None:
        self._run, self._snapshots, self._number, self._tell = run, snapshots, number, tell
        self._first = Reached(first) if first is not None else None
        self._first_pid = JournalReader(first).pid if first is not None else 0
        self._beginning = Beginning(run)
        self._step: int | None = None
        """The last finished step, where the run can go on from its end; else None."""
        self._place = 0
        self._undo: Callable[[], None] | None = None
        """Takes back what the lanes of this step have changed; None before they begin."""
        self._objection = ""
        self._has_looked = self._has_told = False

    # What the loops call

    def enter_boundary(self, inside: InsideEpoch, *, is_last: bool) -> None:
        self._step, self._objection, self._undo = None, "", None
        progress, step = self._run.progress, self._run.machinery.ledger.step
        self._place = place_of(step, AFTER_LAST if is_last else BEFORE_STEP)
        if self._first is not None and self._run.machinery.transport.rank == 0:
            self._first.note(self._place, growing_time(step))
        if not progress.epochs.is_first or progress.tallies.are_unheard or progress.late is not None:
            return
        if not self._has_looked:
            self._has_looked = True
            self._beginning.look_at_source()
        if is_last and lacks_loop_variables(self._run):
            return
        self._beginning.note(inside, keeps_streams=is_last)
        self._step = step

    def enter_step(self) -> None:
        if self._beginning.moment is not None:
            self._beginning.moment.seen = self._run.machinery.streams.seen
        if not self._has_told:
            self._has_told = True
            self._tell(Event.KEEPS, 0)

    def enter_pass(self, undo: Callable[[], None]) -> None:
        if self._undo is None:
            self._objection, self._undo = self._beginning.change(), undo

    def leave_pass(self) -> None:
        self._step = None  # gradients are another than at the step's beginning, and soon the rest is

    def left_steps(self) -> None:
        self._step = None

    # When another rank is lost

    def take(self) -> None:
        """Take the snapshot, if the run can go on from here and no other rank of this node does; never raises."""
        try:
            is_taken = self._write()
        except Exception:  # noqa: BLE001 - what the script tracks may raise anything, and the loss is what matters
            is_taken = False
        self._tell(Event.KEPT, int(not is_taken))

    def _write(self) -> bool:
        """Whether this rank has written one."""
        step = self._step
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
            self._run.machinery.streams.enter(Domain.STEP, step + 1, 0)  # of a lane until now; so all write the same
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
            except WorldError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(LOOK_S)
        self._snapshots.forget_older()
