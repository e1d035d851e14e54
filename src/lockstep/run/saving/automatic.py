"""States by themselves: saved on a schedule, the newest loaded before the first step.

    run.epochs, run.steps        -> begin        the newest state that is whole is loaded
    between two steps            -> after_step   saved when it is due: inside the epoch
    the script left its steps    -> left_steps   a save that was due is owed
    a body of run.epochs is over -> after_body   saved when it is due or owed: between epochs

A state inside an epoch lets the body run again up to its `run.steps`. So it is taken in the first `run.steps` of a body
only: what lies between two of them, or in a loop that is not `run.epochs`, would run twice.
"""

from __future__ import annotations

import time
from pathlib import Path

from lockstep.caller import where
from lockstep.errors import PeerLost, UsageError, WorldError
from lockstep.handover.claim import claim
from lockstep.handover.schedule import Saving, Schedule
from lockstep.notices import say
from lockstep.run.loop.testimony import stops_after_saving, testify_saved
from lockstep.run.loop.training import counter_of_steps
from lockstep.run.run_state import NoStates, RunState
from lockstep.run.saving.aside.aside import Aside
from lockstep.run.saving.resume import load_state
from lockstep.run.saving.ring import Ring, trouble_of
from lockstep.run.saving.state import save_state
from lockstep.transport.together import Together

CALL = "automatic state"


class Automatic(NoStates):
    """Saves and loads the states of one run. Collective: call `begin`, `after_step` and `after_body` on every rank.

    Args:
        run: it calls them.
        saving: when, where, and how many stay.
        claims: whether no launcher keeps other starts of the run out.
    """

    is_on = True

    def __init__(self, run: RunState, saving: Saving, *, claims: bool) -> None:
        self._run, self._schedule = run, Schedule.parse(saving.every)
        self.place = saving.folder
        self._ring, self._claims = Ring(Path(saving.folder), saving.keep), claims
        self._aside = Aside(saving.keep)
        self._saved_at = time.monotonic()
        self._has_said = self._owes = False
        run.progress.automatic = self

    def begin(self) -> None:
        """Load the newest state that is whole, if there is one; once.

        Raises:
            UsageError: on every rank, when states are there and none can be loaded.
        """
        if self._run.progress.has_begun:
            return
        self._run.progress.has_begun = True
        self._refuse_own_order()
        together = Together(self._run.machinery.transport, CALL, where())
        name = together.do(self._newest) if self._run.machinery.transport.rank == 0 else None
        name = together.agree(name)[0]
        if name:
            load_state(self._run, self._ring.place / name, {}, missing_ok=False)

    def after_step(self, *, ends_epoch: bool) -> None:
        """Save when it is time; say what has become of the last state."""
        self._tell(self._aside.look())
        if not self._is_due(ends_epoch=ends_epoch):
            return
        epochs = self._run.progress.epochs
        if epochs.in_body and (ends_epoch or not epochs.is_first):
            self._owes = True  # until the body is over: nothing of it has to run again
        elif epochs.is_first:
            self._say_once(self._counters() if not ends_epoch else "")
            self._save()
        else:
            self._say_once(
                f"{where()}: no state is saved here. Use run.epochs for a loop over epochs, with one run.steps in its body."
            )

    def left_steps(self) -> None:
        """The script leaves its loop over steps; not a place where ranks may exchange anything."""
        if self._schedule.steps:
            self._owes = self._owes or self._run.machinery.ledger.step % self._schedule.steps == 0

    def after_body(self) -> None:
        """Save between epochs, when it is time."""
        if self._owes or self._schedule.epoch:
            self._save()

    def _is_due(self, *, ends_epoch: bool) -> bool:
        seconds = time.monotonic() - self._saved_at
        if not self._schedule.seconds:
            return self._schedule.is_due(self._run.machinery.ledger.step, seconds, ends_epoch=ends_epoch)
        mine = self._schedule.is_due(0, seconds, ends_epoch=ends_epoch)
        told: list[bool] = self._run.machinery.transport.all_gather_object(mine, CALL, where())
        return told[0]  # rank 0's clock

    def end(self) -> None:
        """The run is over: wait until the last state is on the disk."""
        self._tell(self._aside.close())

    def _save(self) -> None:
        self._saved_at, self._owes = time.monotonic(), False
        self._tell(self._aside.settle())
        try:
            save_state(self._run, self._ring.path(self._run.machinery.ledger.step), {}, self._aside.take)
        except PeerLost:
            raise
        except WorldError as error:
            self._tell(str(error))
            return
        if stops_after_saving(self._run):
            self._tell(self._aside.settle())
            testify_saved(self._run)

    def _tell(self, problem: str) -> None:
        if problem:
            self._say(f"{problem} The run goes on.")

    def _newest(self) -> str:
        """The name of the newest state that is whole; empty when there is none yet."""
        if self._claims:
            claim(self._ring.place.parent)
        try:
            states = self._ring.newest_first()
        except OSError as error:
            raise UsageError(
                f"{self._ring.place} cannot be read ({error.strerror}).", "Check its permissions."
            ) from None
        damaged: list[tuple[Path, str]] = []
        for path in states:
            trouble = trouble_of(path)
            if trouble is None:
                for bad, problem in damaged:
                    self._say(f"{problem} It is put aside.")
                    self._ring.put_aside(bad)
                return path.name
            damaged.append((path, trouble.problem if isinstance(trouble, UsageError) else str(trouble)))
        if damaged:
            raise UsageError(
                f"No state in {self._ring.place} is whole. {damaged[0][1]}",
                "Move them away to begin anew, or choose another name.",
            )
        return ""

    def _refuse_own_order(self) -> None:
        for number, loader in enumerate(self._run.progress.loaders, 1):
            samplers = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
            if any(getattr(one, "generator", None) is not None for one in samplers):
                raise UsageError(
                    f"The order of loader {number} comes from a generator of its own, which a state does not hold.",
                    "Leave generator= out: lockstep keys the order by the run's seed and the epoch.",
                )

    def _counters(self) -> str:
        counter = counter_of_steps(self._run.progress)
        if not counter:
            return ""
        return (
            f"{where()}: {counter} around run.steps counts from its beginning, so a run cannot go on in the middle of an "
            f"epoch. Use step.index instead, or save every epoch."
        )

    def _say_once(self, text: str) -> None:
        if text and not self._has_said:
            self._has_said = True
            self._say(text)

    def _say(self, text: str) -> None:
        if self._run.machinery.transport.rank == 0:
            say(text)
