"""States that a script asks for, on all processes or on one of them: none can write its state alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from samebits.rank.caller import where
from samebits.rank.position.moment import Region
from samebits.rank.run.ending import has_failed
from samebits.rank.run.run import Run


class AskedStates:
    """Where one process asks for a state (`if accelerator.is_main_process:`), all write it at the next boundary.

    Boundaries are the end of each step, and outside of steps the places that the loop knows. There all say what they were
    asked for, so that no process has to know whether the others were asked too.

    Args:
        run: of this process.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        run._run.components.states.requests = self.agree
        self._mine: list[str] = []
        self._asked_who = False
        self.before_each: Callable[[], None] = lambda: None
        """Is called on all processes before a state of one is written."""
        self.is_alike = False
        """Whether all processes are known to ask for the same: nothing is exchanged."""

    def note_who(self) -> None:
        """The script asked which process it is. Outside of a step, what it asks for until all agree may be for this process only."""
        self._asked_who = self._asked_who or self._is_outside

    @property
    def _is_outside(self) -> bool:
        return self._run._run.loop_state.position.region is Region.SCRIPT

    def ask(self, path: Path) -> None:
        """Write a state: now, where all processes ask for it outside of a step, else at the next boundary."""
        if self._is_outside and (self.is_alike or not self._asked_who):
            self._run.save_state(path)
        else:
            self._mine.append(str(path))

    def agree(self, enter_boundary: Callable[[], None] = lambda: None) -> None:
        """A boundary: what a process was asked for is what all write. Collective: call it on every rank."""
        mine, self._mine, self._asked_who = self._mine, [], False
        run = self._run._run
        if run.loop_state.ended or has_failed(run):
            return
        if not self.is_alike and not mine:
            enter_boundary()
        gathered = (
            [mine] if self.is_alike else run.components.transport.all_gather_object(mine, "end of a step", where())
        )
        # Where several ask, they mean one state, and the lowest of them says where it is.
        for path in next(filter(None, gathered), []):
            run.components.states.asked += [self.before_each, partial(self._run.save_state, path)]

    def agree_outside(self) -> None:
        """Where all processes come outside of a step: agree, and write. Collective, but inside a step, where it does nothing."""
        if self._is_outside:
            self.agree()
            self._run._run.components.states.save_asked()
