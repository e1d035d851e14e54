"""States by themselves: taken between two steps on a schedule, the newest loaded before the first one."""

from __future__ import annotations

import time
from pathlib import Path

from lockstep.caller import where
from lockstep.errors import UsageError, WorldError
from lockstep.handover.schedule import Saving, Schedule
from lockstep.notices import say
from lockstep.run.loop.training import counter_of_steps
from lockstep.run.run_state import RunState
from lockstep.run.saving.resume import load_state
from lockstep.run.saving.ring import Ring
from lockstep.run.saving.state import save_state

CALL = "automatic state"


class Automatic:
    """Saves and loads the states of one run.

    Args:
        run: it calls `begins` and `after_step`.
        saving: when, where, and how many stay.
    """

    def __init__(self, run: RunState, saving: Saving) -> None:
        self._run, self._schedule = run, Schedule.parse(saving.every)
        self._ring = Ring(Path(saving.folder), saving.keep)
        self._has_begun = self._has_said = False
        self._saved_at = time.monotonic()
        run.progress.begins, run.progress.after_step = self.begin, self.after_step

    def begin(self) -> None:
        """Load the newest state that is whole, if there is one. Collective: call it on every rank."""
        if self._has_begun:
            return
        self._has_begun = True
        for name in self._agreed_names():
            try:
                load_state(self._run, self._ring.place / name, {}, missing_ok=False)
            except UsageError as error:
                if "is damaged" not in error.problem:
                    raise
                self._say(f"{error.problem} Going on from the one before.")
            else:
                return

    def after_step(self, ends_epoch: bool) -> None:
        """Save when it is time. Collective: call it on every rank."""
        step = self._run.machinery.ledger.step
        seconds = time.monotonic() - self._saved_at
        due = self._schedule.is_due(step, seconds, ends_epoch=ends_epoch)
        if self._schedule.seconds:  # rank 0's clock
            due = self._run.machinery.transport.all_gather_object(due, CALL, where())[0]
        if not due:
            return
        self._saved_at = time.monotonic()
        self._say_counters()
        try:
            save_state(self._run, self._ring.path(step), {})
        except WorldError as error:
            self._say(f"{error} The run goes on.")
            return
        if self._run.machinery.transport.rank == 0:
            self._ring.prune()

    def _say_counters(self) -> None:
        """Say once that a run that goes on from here will be refused."""
        if self._has_said or self._schedule.epoch:
            return
        self._has_said = True
        if counter := counter_of_steps(self._run.progress):
            self._say(
                f"{where()}: {counter} around run.steps counts from its beginning, so a run cannot go on in the middle of "
                f"an epoch. Use step.index instead, or save every epoch."
            )

    def _agreed_names(self) -> list[str]:
        """The states that rank 0 sees, newest first."""
        mine = [path.name for path in self._ring.newest_first()]
        told: list[str] = self._run.machinery.transport.all_gather_object(mine, CALL, where())[0]
        return told

    def _say(self, text: str) -> None:
        if self._run.machinery.transport.rank == 0:
            say(text)
