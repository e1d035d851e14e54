"""The snapshot that survivors take when another rank is lost, where nobody is replaced in place: on several nodes.

All ranks start again then, from the newest snapshot. With this one that is the beginning of the step in which the rank was
lost, so the loss costs that step and no more. One survivor of each node writes it, into its own node's memory, before the
exchange that cannot end raises `PeerLost`.

    the exchange that lost a rank -> take    is the state as it was when the step began? then write it, tell the launcher
    the launcher                  -> waits for that, and ends the ranks    launch.supervise.last_snapshots
    the next start                -> Snapshots.begin finds the newest of all nodes
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from lockstep.checkpoint.folder import StateFolder
from lockstep.errors import LockstepError
from lockstep.journal.news import Event
from lockstep.layout.stream_key import Domain
from lockstep.run.outlive.beginning import Beginning
from lockstep.run.position.inside_epoch import InsideEpoch
from lockstep.run.run_state import NoRescue, RunState
from lockstep.run.saving.snapshots import Snapshots

CLAIM = ".claim-{}"
"""Made by the rank of a node that writes, by the start of the ranks."""


class LastSnapshot(NoRescue):
    """What one rank knows.

    Args:
        run: it calls the methods.
        snapshots: the run's; they are on.
        number: which start of the ranks this is.
        tell: tells the launcher of an event: KEEPS once there is a step to begin again, KEPT with 0 when a snapshot of it
            was taken, with 1 when there will be none.
    """

    is_on = True

    def __init__(self, run: RunState, snapshots: Snapshots, number: int, tell: Callable[[Event, int], None]) -> None:
        self._run, self._snapshots, self._number, self._tell = run, snapshots, number, tell
        self._beginning = Beginning(run)
        self._step: int | None = None
        """The last finished step, where the next one can be begun again; else None."""
        self._objection = ""
        self._has_looked = self._has_told = False

    # What the loops call

    def enter_boundary(self, inside: InsideEpoch, *, is_last: bool) -> None:
        self._step, self._objection = None, ""
        if is_last or not self._run.progress.epochs.is_first or self._run.progress.tallies.are_unheard:
            return
        if not self._has_looked:
            self._has_looked = True
            self._beginning.look_at_source()
        self._beginning.note(inside, keeps_streams=False)
        self._step = self._run.machinery.ledger.step

    def enter_step(self) -> None:
        if self._beginning.moment is not None:
            self._beginning.moment.seen = self._run.machinery.streams.seen
        if not self._has_told:
            self._has_told = True
            self._tell(Event.KEEPS, 0)

    def enter_pass(self) -> None:
        self._objection = self._objection or self._beginning.change()

    def leave_pass(self) -> None:
        self._step = None  # gradients are another than at the step's beginning, and soon the rest is

    def left_steps(self) -> None:
        self._step = None

    # When another rank is lost

    def take(self) -> None:
        """Take the snapshot, if the step can be begun again and no other rank of this node does; never raises."""
        try:
            is_taken = self._write()
        except (LockstepError, OSError):
            is_taken = False
        if is_taken is not None:
            self._tell(Event.KEPT, int(not is_taken))

    def _write(self) -> bool | None:
        """Whether there is one now; None where another rank of this node writes one."""
        step = self._step
        if (
            not step or self._objection or self._beginning.updated()
        ):  # lanes have written to buffers, which are as they were again
            return False
        place = self._snapshots.last_place(step)
        if place is None:
            return False
        with suppress(FileExistsError):
            claim = os.open(place.parent / CLAIM.format(self._number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            os.close(claim)
            if StateFolder(place).read_manifest() is None:
                self._run.machinery.streams.enter(
                    Domain.STEP, step + 1, 0
                )  # of a lane until now; so all write the same
                self._beginning.write(place)
                self._snapshots.forget_older()
            return True
        return None
