"""Where and when a run saves its state by itself: what the script says, and the command line over it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.protocol.claim import check_name
from lockstep.protocol.run_folder import STATES, runs_folder
from lockstep.protocol.schedule import Schedule
from lockstep.protocol.url import below, check_shared

KEPT = 3


@dataclass(frozen=True)
class Saving:
    """Where and when a run saves its state by itself."""

    folder: str
    """An absolute path: the states of all starts of the run."""
    every: str
    """What `Schedule.parse` reads."""
    keep: int | None = None
    """How many states stay; None where the command line leaves it to the script."""
    url: str = ""
    """Where each state is copied to, and looked for at the first start; empty: nowhere, or where the script says."""

    @property
    def name(self) -> str:
        """The run's."""
        return Path(self.folder).parent.name

    @property
    def kept(self) -> int:
        """How many states stay."""
        return KEPT if self.keep is None else self.keep


@dataclass(frozen=True)
class SaidInScript:
    """The arguments of `lockstep.init` that are about states, as they were given."""

    name: Any = None
    save_every: Any = None
    keep: Any = KEPT
    states: Any = None

    @property
    def unused(self) -> str:
        """What is said about states without `save_every`, in a sentence; empty when nothing is."""
        given = [
            word for word, is_given in (("name=", self.name is not None), ("keep=", self.keep != KEPT)) if is_given
        ]
        if not given or self.save_every is not None:
            return ""
        return f'{" and ".join(given)} say nothing without save_every=: no state is saved by itself. Add save_every="10min".'

    def saving(self, told: Saving | None, variables: Mapping[str, str]) -> Saving | None:
        """What holds for the run; None where nobody wants states.

        Args:
            told: what the command line says. It beats the script, option by option.
            variables: of the environment.

        Raises:
            UsageError: for what cannot be.
        """
        every = told.every if told is not None else self.save_every
        if every is None:
            if self.states is not None:
                raise UsageError("states= is about the states of save_every=.", "Give both, or leave it out.")
            return None
        if told is None:
            if self.name is None:
                problem = "save_every= needs a name under which a later start finds the states."
                raise UsageError(problem, 'Add name="exp1".')
            check_name(self.name, "name=")
            Schedule.parse(every)
        if type(self.keep) is not int or self.keep < 1:
            problem = f"`keep` must be a whole number of at least 1, but is {self.keep!r}."
            raise UsageError(problem, f"Leave it out to keep {KEPT}.")
        folder = Path(runs_folder(variables), str(self.name), STATES).absolute()
        mine = told or Saving(str(folder), every)
        if mine.keep is None:
            mine = replace(mine, keep=self.keep)
        if self.states is not None and not mine.url:
            check_shared(self.states, "states=")
            mine = replace(mine, url=below(self.states, mine.name))
        return mine
