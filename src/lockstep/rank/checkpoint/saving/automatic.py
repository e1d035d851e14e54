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

from lockstep.errors import EnvironmentFailure, PeerLost, RanksDiffer, UsageError
from lockstep.machine.processes import signal_name
from lockstep.machine.regular_file import read_regular
from lockstep.notices import say
from lockstep.protocol.events import Kind
from lockstep.protocol.run_folder import write_private
from lockstep.protocol.saving import Saving, Schedule, claim, step_of
from lockstep.protocol.state_files.folder import is_state, not_finite_in, trouble_of
from lockstep.protocol.state_files.remote_state import RemoteRing
from lockstep.protocol.url import shown
from lockstep.rank.caller import where
from lockstep.rank.checkpoint.saving.asked import NobodyAsks
from lockstep.rank.checkpoint.saving.async_checkpoint.checkpointer import AsyncCheckpointer
from lockstep.rank.checkpoint.saving.resume import load_state
from lockstep.rank.checkpoint.saving.ring import Ring
from lockstep.rank.checkpoint.saving.state import save_state
from lockstep.rank.checks.script.labels import skips_states
from lockstep.rank.data.loader import OWN_ORDER_FIX, own_order
from lockstep.rank.run.loop.recording import record_saved, stops_after_saving
from lockstep.rank.run.run_state import NoStates, RunState
from lockstep.rank.transport.together import Together

CALL = "automatic state"
RESUME_NONFINITE = "--resume-nonfinite"
ENDED = ".ended"
"""A file beside the folder of the states: the step after which the run ended well."""


class Automatic(NoStates):
    """Saves and loads the states of one run. Collective: call `begin`, `hear`, `after_step` and `after_body` on every rank.

    Args:
        run: it calls them.
        saving: when, where, and how many stay.
        claims: whether no launcher keeps other starts of the run out.
        asks: may ask the run to save and end.
    """

    is_on = True

    def __init__(self, run: RunState, saving: Saving, *, claims: bool, asks: NobodyAsks) -> None:
        self._run, self._schedule = run, Schedule.parse(saving.every)
        self.place = saving.folder
        self._ring, self._claims = Ring(Path(saving.folder), saving.kept), claims
        self._remote = RemoteRing(saving.url, saving.kept) if saving.url else None
        self._checkpointer = AsyncCheckpointer(saving.kept, saving.url)
        self._saved_at = time.monotonic()
        self._taken = 0, 0.0
        """After which step the newest state was taken, and how long the step stood still for it."""
        self._has_said = self.owes = False
        self._asks, self._ends_by = asks, 0
        settings = run.config.environment.settings
        self._restart_number = settings.restart.number if settings is not None else 0
        self._takes_any = settings is not None and settings.resume_nonfinite
        run.loop_state.checkpointing.automatic = self

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
            return False
        together = Together(self._run.components.transport, CALL, where())
        name = together.do(self._newest) if self._run.components.transport.rank == 0 else None
        name = together.agree(name)[0]
        if not name or (step_of(name) or 0) <= beyond:
            return False
        load_state(self._run, self._ring.place / name, {}, missing_ok=False)
        if self._run.components.transport.rank == 0:
            _tell_of_earlier_end(self._ring.place, self._run.components.step_timer.step)
        return True

    def note_end(self) -> None:
        """Note that the run has ended well, and after which step."""
        if self._run.components.transport.rank == 0 and self._ring.place.is_dir():
            with suppress(OSError):
                write_private(self._ring.place.parent / ENDED, f"{self._run.components.step_timer.step}\n")

    def after_step(self, *, ends_epoch: bool) -> None:
        """Save when it is time; end when the run was asked to.

        Raises:
            SystemExit: on every rank, to end.
        """
        self._learn(self._checkpointer.look)
        if self._is_due(ends_epoch=ends_epoch) or self._ends_by:
            self._save_or_owe(ends_epoch=ends_epoch)
        if ends_epoch and not self._run.loop_state.epochs.in_body:
            self.leave_loop()

    def _save_or_owe(self, *, ends_epoch: bool) -> None:
        epochs = self._run.loop_state.epochs
        if epochs.in_body and (ends_epoch or not epochs.is_first):
            self.owes = True  # until the body is over: nothing of it has to run again
        elif epochs.is_first:
            self._save()
        else:
            self._say_once(
                f"{where()}: no state is saved here. Use run.epochs for a loop over epochs, with one run.steps in its body."
            )
            self._end_if_asked(None)

    def left_steps(self) -> None:
        """The script leaves its loop over steps; not a place where ranks may exchange anything."""
        if self._schedule.steps:
            self.owes = self.owes or self._run.components.step_timer.step % self._schedule.steps == 0
        self.owes = self.owes or bool(self._ends_by)
        if not self._run.loop_state.epochs.in_body:
            self.leave_loop()

    def after_body(self) -> None:
        """Save between epochs, when it is time; end when the run was asked to.

        Raises:
            SystemExit: on every rank, to end.
        """
        if self.owes or self._schedule.epoch:
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
        seconds = time.monotonic() - self._saved_at
        if not self._schedule.seconds:
            return self._schedule.is_due(self._run.components.step_timer.step, seconds, ends_epoch=ends_epoch)
        mine = self._schedule.is_due(0, seconds, ends_epoch=ends_epoch)
        record: list[bool] = self._run.components.transport.all_gather_object(mine, CALL, where())
        # [Note: whose clock decides]
        # Clocks of ranks differ, so all follow rank 0's; otherwise one would save and wait for the others.
        return record[0]

    def end(self) -> None:
        """The run is over: wait until the last state is on the disk."""
        self._tell(self._checkpointer.close())

    def _save(self) -> None:
        self._learn(self._checkpointer.settle)
        self._saved_at, self.owes = time.monotonic(), False
        place = self._ring.path(self._run.components.step_timer.step)
        try:
            save_state(self._run, place, {}, self._checkpointer.take, self._checkpointer.tell())
        except (PeerLost, RanksDiffer):
            raise
        except EnvironmentFailure as error:
            self._tell(str(error))
            self._end_if_asked(None)
            return
        problem = self._checkpointer.hand_over()
        self._taken = self._run.components.step_timer.step, time.monotonic() - self._saved_at
        if self._ends_by or stops_after_saving(self._run):
            problem = problem or self._checkpointer.settle()
        self._tell(problem)
        if stops_after_saving(self._run):
            record_saved(self._run)
        # [Note: what counts as saved]
        # A state that could not be copied to its URL is on the disk: the run was saved.
        step = self._run.components.step_timer.step
        self._end_if_asked(step if not problem or is_state(self._ring.path(step)) else None)

    def _learn(self, answer: Callable[[], str]) -> None:
        """Learn, on rank 0, what has become of the last state."""
        was_busy, problem = self._checkpointer.is_busy, answer()
        self._tell(problem)
        if was_busy and not (self._checkpointer.is_busy or problem):
            step, stall_s = self._taken
            self._run.note(Kind.CHECKPOINT, step, path=str(self._ring.path(step)), stall_s=round(stall_s, 4))
            self._run.loop_state.checkpointing.snapshots.count_saved(
                step, self._saved_at, stall_s + self._checkpointer.cpu_s
            )

    def comes_within(self, num_steps: int) -> bool:
        return 0 < self._schedule.steps <= num_steps

    def _tell(self, problem: str) -> None:
        if problem:
            self._say(f"{problem} The run {'ends' if self._ends_by else 'continues'}.")

    def _end_if_asked(self, saved: int | None) -> None:
        """Leave the script, on every rank; `saved`: the step after which the run was saved for that, if it was."""
        if not self._ends_by:
            return
        self.has_ended = True
        self._asks.answer(saved)
        if self._run.config.folder is None:  # else the launcher says so
            what = "not saved" if saved is None else f"saved after step {saved}: the same command resumes from there"
            self._say(f"stopped by {signal_name(self._ends_by)}; {what}.")
        raise SystemExit(128 + self._ends_by)

    def _newest(self) -> str:
        """The name of the newest state that is whole, here and at the URL; empty when there is none yet."""
        if self._claims:
            claim(self._ring.place.parent)
        if self._remote is None or self._restart_number:
            # [Note: why a restart does not ask the URL]
            # All that this run has saved since it started is on the disk, and nobody else writes there.
            return self._newest_here()
        here, trouble = "", None
        try:
            here = self._newest_here()
        except UsageError as error:
            trouble = error
        beyond = step_of(here) if here else None
        remote, problems = self._remote.fetch_newest(
            self._ring.place, -1 if beyond is None else beyond, takes_any=self._takes_any
        )
        for problem in problems:
            self._say(f"{problem} It is left out.")
        if not (remote or here) and (trouble or problems):
            raise trouble or UsageError(
                f"No state at {shown(self._remote.url)} is whole and finite. {problems[0]}",
                f"Move them away to begin anew, choose another name, or give {RESUME_NONFINITE} if they are not finite.",
            )
        return remote or here

    def _newest_here(self) -> str:
        try:
            states = self._ring.newest_first()
        except OSError as error:
            raise UsageError(
                f"{self._ring.place} cannot be read ({error.strerror}).", "Check its permissions."
            ) from None
        damaged: list[tuple[Path, str]] = []
        not_finite: list[tuple[Path, str]] = []
        for path in states:
            trouble = trouble_of(path)
            if trouble is not None:
                damaged.append((path, trouble.problem if isinstance(trouble, UsageError) else str(trouble)))
            elif (tensor := not_finite_in(path)) and not self._takes_any:
                not_finite.append((path, tensor))
            else:
                return self._chosen(path, damaged, not_finite)
        if not_finite:
            return self._without_finite(damaged, not_finite)
        if damaged:
            raise UsageError(
                f"No state in {self._ring.place} is whole. {damaged[0][1]}",
                "Move them away to begin anew, or choose another name.",
            )
        return ""

    def _chosen(self, path: Path, damaged: list[tuple[Path, str]], passed: list[tuple[Path, str]]) -> str:
        """The name of the state at `path`, once damaged ones are put aside and it is said which were passed over."""
        for bad, problem in damaged:
            self._say(f"{problem} It is put aside.")
            self._ring.put_aside(bad)
        if passed:
            newest, tensor = passed[0]
            self._say(
                f"{newest.name} is not finite ({tensor}), so the run resumes from {path.name}, the newest state that is; "
                f"{RESUME_NONFINITE} takes the newest as it is."
            )
        return path.name

    def _without_finite(self, damaged: list[tuple[Path, str]], not_finite: list[tuple[Path, str]]) -> str:
        """The same where no state is finite: ranks that start again continue as they would have; otherwise the user decides."""
        newest, tensor = not_finite[0]
        if self._restart_number:
            return self._chosen(newest, damaged, [])
        raise UsageError(
            f"No state in {self._ring.place} is finite: {tensor} of {newest.name} is not.",
            f"Give {RESUME_NONFINITE} to resume from it as it is, or choose another name to begin anew.",
        )

    def _say_once(self, text: str) -> None:
        if text and not self._has_said:
            self._has_said = True
            self._say(text)

    def _say(self, text: str) -> None:
        if self._run.components.transport.rank == 0:
            say(text)


def _tell_of_earlier_end(place: Path, step: int) -> None:
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
