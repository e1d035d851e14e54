"""States by themselves: saved on a schedule, the newest loaded before the first step.

    run.epochs, run.steps        -> begin        the newest state that is whole is loaded
    between two steps            -> after_step   saved when it is due: inside the epoch
    the script left its steps    -> left_steps   a save that was due is owed
    a body of run.epochs is over -> after_body   saved when it is due or owed: between epochs
    a pass                       -> hear         some rank was asked to save and end: every rank learns it here

A state inside an epoch lets the body run again up to its `run.steps`. So it is taken in the first `run.steps` of a body
only: what lies between two of them, or in a loop that is not `run.epochs`, would run twice.

A run that was asked to end saves at the next of these places, and `SystemExit` leaves the script on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from samebits.errors import EnvironmentFailure, PeerLost, RanksDiffer, SamebitsError, UsageError
from samebits.machine.processes import signal_name
from samebits.machine.regular_file import read_regular
from samebits.notices import say
from samebits.protocol.events import Kind
from samebits.protocol.run_folder import write_private
from samebits.protocol.saving import NEVER, Saving, Schedule, claim, step_of
from samebits.protocol.state_files.folder import is_state
from samebits.rank.caller import where
from samebits.rank.checkpoint.store.checkpointer import AsyncCheckpointer
from samebits.rank.checkpoint.store.resume import load_state, may_resume_behind, skips_states
from samebits.rank.checkpoint.store.save import save_state
from samebits.rank.checkpoint.store.store import Store
from samebits.rank.checkpoint.when.pace import OnSchedule, SavePoint
from samebits.rank.checkpoint.when.signals import NoStopRequests
from samebits.rank.data.loader import OWN_ORDER_FIX, own_order
from samebits.rank.position.run_state import RunState
from samebits.rank.transport.together import Together

CALL = "automatic state"
ENDED = ".ended"
"""A file beside the folder of the states: the step after which the run ended well."""


class Automatic:
    """Saves and loads the states of one run. Collective: call `begin`, `hear`, `after_step` and `after_body` on every rank.

    Args:
        run: it calls them.
        saving: when, where, and how many stay.
        others: how many older ones stay besides.
        claims: whether no launcher keeps other starts of the run out.
        asks: may ask the run to save and end.
    """

    def __init__(self, run: RunState, saving: Saving, others: int = 0, *, claims: bool, asks: NoStopRequests) -> None:
        self._run, self._trigger = run, OnSchedule(Schedule.parse(saving.every), time.monotonic())
        self.place = saving.folder
        self._store, self._claims = Store(Path(saving.folder), saving.kept, saving.url, others=others), claims
        self._checkpointer = AsyncCheckpointer(saving.kept, saving.url, others=others)
        self._taken = 0, 0.0
        """After which step the newest state was taken, and how long the step stood still for it."""
        self._has_warned, self._has_prepared = False, saving.every == NEVER
        self._asks, self._ends_by = asks, 0
        self.on_saved: Callable[[int, float, float], None] | None = None
        """Is told that a state is on the disk; see `Pace.took`."""

    def begin(self, beyond: int = -1) -> bool:
        """Load the newest state that is whole, if there is one of a later step than `beyond`; once. Whether it did.

        Raises:
            UsageError: on every rank, when states are there and none can be loaded.
        """
        self._asks.listen()
        if self._run.loop_state.resumption.has_begun:
            return False
        self._run.loop_state.resumption.has_begun = True
        if problem := own_order(self._run.loop_state.prepared.loaders):
            raise UsageError(problem, OWN_ORDER_FIX)
        if skips_states(self._run):
            self._require_no_branch(
                "its states lack what the script keeps itself, and --recover exact resumes without nothing"
            )
            return False
        together = Together(self._run.components.transport, CALL, where())
        name = together.do(self._newest) if self._run.components.transport.rank == 0 else None
        name = together.agree(name)[0]
        if not name:
            self._require_no_branch("there is no state in its folder")
        if not name or (step_of(name) or 0) <= beyond:
            return False
        load_state(self._run, self._store.place / name, {}, missing_ok=False)
        if self._run.components.transport.rank == 0:
            _say_of_earlier_end(self._store.place, self._run.components.step_timer.step)
        return True

    def _require_no_branch(self, why: str) -> None:
        """Raise `UsageError` where a branch would begin with the first step: it begins with its parent's state."""
        settings = self._run.config.environment.settings
        if settings is not None and settings.course.parent is not None:
            raise UsageError(
                f"This run is a branch of {settings.course.parent.text}, and cannot begin there: {why}.",
                "Give --from again, on the node that has the parent's states, or begin another branch under another --name.",
            )

    def note_end(self) -> None:
        """Note that the run has ended well, and after which step."""
        if self._run.components.transport.rank == 0 and self._store.place.is_dir():
            with suppress(OSError):
                write_private(self._store.place.parent / ENDED, f"{self._run.components.step_timer.step}\n")

    def after_step(self, *, ends_epoch: bool) -> None:
        """Save when it is time; end when the run was asked to.

        Raises:
            SystemExit: on every rank, to end.
        """
        self._learn(self._checkpointer.look)
        if self._is_due(ends_epoch=ends_epoch) or self._ends_by:
            epochs = self._run.loop_state.epochs
            place = self._trigger.place(in_body=epochs.in_body, is_first=epochs.is_first, ends_epoch=ends_epoch)
            if place is SavePoint.HERE:
                self._save()
            elif place is SavePoint.BEFORE:
                self._save_behind()
            elif place is SavePoint.NOWHERE:
                self._warn_once(
                    f"{where()}: no state is saved here. Use run.epochs for a loop over epochs, with one run.steps in its body."
                )
                self._end_if_asked(None)
        elif not (self._has_prepared or ends_epoch or self._run.config.mesh.asynchronous):
            self._has_prepared = True
            # What the script tracks may not have a state yet; states of whole epochs have no gradients.
            if not self._run.loop_state.prepared.tracked and not self._trigger.schedule.epoch:
                self._prepare()
        if ends_epoch and not self._run.loop_state.epochs.in_body:
            self.leave_loop()

    def _save_behind(self) -> None:
        """The last step of a loop outside of `run.epochs` is over: a run that resumes here has no turn. Collective."""
        if may_resume_behind(self._run):
            self._save()
        else:
            if self._trigger.schedule.epoch:
                self._warn_once(
                    f"{where()}: --save-every epoch saves nothing here, because behind this loop the script reads names that it assigns. Use run.epochs for the loop over epochs, or keep them in run.state."
                )
            self._end_if_asked(None)

    def _prepare(self) -> None:
        """Get memory for the copy of the first state, now that its size is known: optimizers have made a step."""
        # [Note: why bits are not compared here]
        # Nothing is written, and ranks that differ would be found before the first state is.
        resumption = self._run.loop_state.resumption
        is_here = self._run.loop_state.epochs.is_first
        if resumption.late is not None or resumption.load_again is not None or not is_here:
            return
        place, checkpointer = self._store.path(self._run.components.step_timer.step), self._checkpointer
        try:
            save_state(self._run, place, {}, checkpointer.prepare, checkpointer.offer(), compares=False)
        except (PeerLost, RanksDiffer):
            raise
        except SamebitsError:
            pass  # the first state says so

    def left_steps(self) -> None:
        """The script leaves its loop over steps; not a place where ranks may exchange anything."""
        self._trigger.leave_steps(self._run.components.step_timer.step, is_asked=bool(self._ends_by))
        if not self._run.loop_state.epochs.in_body:
            self.leave_loop()

    def after_body(self) -> None:
        """Save between epochs, when it is time; end when the run was asked to.

        Raises:
            SystemExit: on every rank, to end.
        """
        if self._trigger.owed or self._trigger.schedule.epoch:
            self._save()

    def leave_loop(self) -> None:
        """No step follows for now: a signal acts as in any script."""
        self._asks.rest()

    @property
    def asked(self) -> int:
        """The signal because of which this rank was asked to save and end; 0 when it was not."""
        return self._asks.number

    def hear(self, asked: int) -> None:
        """Take what the ranks exchanged in a pass about `asked`."""
        self._ends_by = self._ends_by or asked

    def _is_due(self, *, ends_epoch: bool) -> bool:
        mine = self._trigger.is_due(self._run.components.step_timer.step, time.monotonic(), ends_epoch=ends_epoch)
        if not self._trigger.asks_clock:
            return mine
        record: list[bool] = self._run.components.transport.all_gather_object(mine, CALL, where())
        # [Note: whose clock decides]
        # Clocks of ranks differ, so all follow rank 0's; otherwise one would save and wait for the others.
        return record[0]

    def end(self) -> None:
        """The run is over: wait until the last state is on the disk."""
        self._report(self._checkpointer.close())

    def _save(self) -> None:
        self._learn(self._checkpointer.settle)
        self._trigger.took(time.monotonic())
        self._has_prepared = True
        place = self._store.path(self._run.components.step_timer.step)
        try:
            save_state(self._run, place, {}, self._checkpointer.take, self._checkpointer.offer())
        except (PeerLost, RanksDiffer):
            raise
        except EnvironmentFailure as error:
            self._report(str(error))
            self._end_if_asked(None)
            return
        problem = self._checkpointer.hand_over()
        self._taken = self._run.components.step_timer.step, time.monotonic() - self._trigger.saved_at_s
        if self._ends_by or self._run.config.purpose.stops_after_saving:
            problem = problem or self._checkpointer.settle()
        self._report(problem)
        if self._run.config.purpose.stops_after_saving:
            for saved_state in self._run.components.observers.saved_state:
                saved_state()
        # [Note: what counts as saved]
        # A state that could not be copied to its URL is on the disk: the run was saved.
        step = self._run.components.step_timer.step
        self._end_if_asked(step if not problem or is_state(self._store.path(step)) else None)

    def _learn(self, answer: Callable[[], str]) -> None:
        """Learn, on rank 0, what has become of the last state."""
        was_busy, problem = self._checkpointer.is_busy, answer()
        self._report(problem)
        if was_busy and not (self._checkpointer.is_busy or problem):
            step, stall_s = self._taken
            self._run.note(Kind.CHECKPOINT, step, path=str(self._store.path(step)), stall_s=round(stall_s, 4))
            if self.on_saved is not None:
                self.on_saved(step, self._trigger.saved_at_s, stall_s + self._checkpointer.cpu_s)

    def comes_within(self, num_steps: int) -> bool:
        """Whether the first state comes after so many steps at most."""
        return 0 < self._trigger.schedule.steps <= num_steps

    def _report(self, problem: str) -> None:
        if problem:
            self._say(f"{problem} The run {'ends' if self._ends_by else 'continues'}.")

    def _end_if_asked(self, saved: int | None) -> None:
        """Leave the script, on every rank; `saved`: the step after which the run was saved for that, if it was."""
        if not self._ends_by:
            return
        self._run.components.states.has_ended = True
        self._asks.answer(saved)
        if self._run.config.folder is None:  # else the launcher says so
            what = "not saved" if saved is None else f"saved after step {saved}: the same command resumes from there"
            self._say(f"stopped by {signal_name(self._ends_by)}; {what}.")
        raise SystemExit(128 + self._ends_by)

    def _newest(self) -> str:
        """The name of the newest state that can be loaded; empty when there is none yet."""
        if self._claims:
            claim(self._store.place.parent)
        settings = self._run.config.environment.settings
        takes_any = settings is not None and settings.resume_nonfinite
        is_restart = settings is not None and settings.restart.number > 0
        return self._store.newest(self._say, takes_any=takes_any, is_restart=is_restart)

    def _warn_once(self, text: str) -> None:
        if text and not self._has_warned:
            self._has_warned = True
            self._say(text)

    def _say(self, text: str) -> None:
        if self._run.components.transport.rank == 0:
            say(text)


def _say_of_earlier_end(place: Path, step: int) -> None:
    """Say that the run whose states are in `place` had ended well before, if it had; it resumes after this step."""
    with suppress(OSError, ValueError):
        ended = int(read_regular(place.parent / ENDED, most_bytes=32))
        if ended >= step:
            which = f"step {ended}" if ended == step + 1 else f"steps {step + 1} to {ended}"
            again = f"{which}, after its newest state, {'is' if ended == step + 1 else 'are'} computed again"
            say(
                f"this run ended well before, after step {ended}: "
                f"{again if ended > step else 'it resumes from there, if there is more to do'}. Another name begins anew."
            )
