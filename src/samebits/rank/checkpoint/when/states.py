"""What the loop calls where a state may be saved: three parts, in one order on every rank.

    automatic   states on the disk, on a schedule or a signal
    snapshots   the newest state in memory
    last        the state at the beginning of a step, written when a rank is lost

A run without one of them has None there; what a script asks for itself comes before all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from samebits.protocol.journal.failure import FailureKind, kind_of
from samebits.rank.checkpoint.when.automatic import Automatic
from samebits.rank.checkpoint.when.last_snapshot import LastSnapshot
from samebits.rank.checkpoint.when.snapshots import Snapshots
from samebits.rank.position.epoch_count import InsideEpoch
from samebits.rank.position.participants import Requests

SAVE, SNAPSHOT = "save", "snapshot"
"""Rows: the signal because of which the run is to save and end; that a snapshot is due."""


class KeptStates:
    """Those of one run, on one rank: `position.participants.States`."""

    requests: Requests | None = None
    place, is_inside, follows_streams, has_ended = "", False, False, False
    automatic: Automatic | None = None
    snapshots: Snapshots | None = None
    last: LastSnapshot | None = None

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []

    def save(self, automatic: Automatic) -> None:
        """Save by itself, too."""
        self.automatic, self.place = automatic, automatic.place
        self.is_inside = self.follows_streams = True

    def keep(self, snapshots: Snapshots) -> None:
        """Keep snapshots, too."""
        self.snapshots, self.is_inside = snapshots, True
        if self.automatic is not None:
            self.automatic.on_saved = snapshots.count_saved

    def outlive(self, last: LastSnapshot) -> None:
        """Keep the beginning of each step, too."""
        self.last, self.follows_streams = last, True

    def begin(self) -> None:
        if self.snapshots is not None:
            self.snapshots.begin(self.automatic)
        elif self.automatic is not None:
            self.automatic.begin()

    def enter_steps(self, inside: InsideEpoch, *, is_over: bool) -> None:
        if self.snapshots is not None:
            self.snapshots.enter_steps()
        self._enter_boundary(inside, is_last=is_over)

    def _enter_boundary(self, inside: InsideEpoch, *, is_last: bool) -> None:
        if self.last is not None:
            self.last.enter_boundary(inside, is_last=is_last)

    def enter_step(self) -> None:
        if self.last is not None:
            self.last.enter_step()

    def enter_pass(self, undo: Callable[[], None]) -> None:
        if self.last is not None:
            self.last.enter_pass(undo)

    def report(self) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        if self.automatic is not None and (asked := self.automatic.asked):
            rows[SAVE] = asked
        if self.snapshots is not None and self.snapshots.is_due():
            rows[SNAPSHOT] = True
        return rows

    def hear(self, rows: Mapping[str, Sequence[Any]]) -> None:
        if self.automatic is not None and SAVE in rows:
            self.automatic.hear(max(filter(None, rows[SAVE])))
        if self.snapshots is not None and SNAPSHOT in rows:
            self.snapshots.hear()

    def forget_step(self) -> None:
        # [Note: why a pass ends the chance]
        # Now gradients are others than at the step's beginning, and soon the rest is.
        if self.last is not None:
            self.last.step = None

    def reach_boundary(self, inside: InsideEpoch, *, is_last: bool) -> None:
        if self.requests is not None:
            self.requests(lambda: self._enter_boundary(inside, is_last=is_last))
        # A state that is lost now must be written again, so this step must come again.
        self.forget_step()
        self.save_asked()
        if self.automatic is not None:
            self.automatic.after_step(ends_epoch=is_last)
        if self.snapshots is not None:
            self.snapshots.after_step(ends_epoch=is_last)
        self._enter_boundary(inside, is_last=is_last)
        # Behind it, so that a rank that is found lost here costs its step only.
        if self.snapshots is not None:
            self.snapshots.after_boundary()

    def save_asked(self) -> None:
        while self.asked:
            self.asked.pop(0)()

    def left_steps(self) -> None:
        if self.automatic is not None:
            self.automatic.left_steps()
        self.forget_step()

    def after_body(self, *, is_last: bool) -> None:
        if self.automatic is not None:
            self.automatic.after_body()
        # Behind the last epoch a run that resumes has no turn, so names that the loop assigns would be missing.
        if self.snapshots is not None and not is_last:
            self.snapshots.after_body()

    def leave_loop(self) -> None:
        if self.automatic is not None:
            self.automatic.leave_loop()

    def take_after(self, error: Exception) -> None:
        if self.last is not None and kind_of(error) is FailureKind.WORKER:
            self.last.take()

    def note_end(self) -> None:
        if self.automatic is not None:
            self.automatic.note_end()

    def end(self) -> None:
        if self.automatic is not None:
            self.automatic.end()
        if self.snapshots is not None:
            self.snapshots.end()
