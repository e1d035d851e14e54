"""Whether somebody who goes on from a snapshot would have all that the script has now.

A snapshot inside an epoch lets the body of `run.epochs` run again up to its steps, one between epochs nothing. What a state
does not hold must not have changed: since the steps began, or since the first epoch. Nobody has asked for snapshots, so
every doubt is an objection.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lockstep.run.loop.training import counter_of_steps
from lockstep.run.run_state import Progress
from lockstep.run.saving.automatic import own_order
from lockstep.run.saving.changes import unsaved_versions
from lockstep.run.watch.carried import carried_variables
from lockstep.run.watch.own_values import OwnChanges, OwnValues

CARRIED = "the script carries {} from step to step, which no state holds; keep it in run.state"
CHANGED = "the script changes {}, which no state holds; run.state or run.track would"
BUFFERS = "a model changes buffers that are not in its state_dict"
COUNTED = "{} around run.steps counts from its beginning"
SHORT = "the epochs are too short to look at the script's variables in each"
GRADIENTS = "gradients are left at the end of the epoch, which a state between epochs does not hold"

SHARE = 0.01
"""Of the time, what looking at the script's variables before each epoch may take, if only snapshots need it."""


class Guard:
    """What one rank has seen of the script. Nothing here is collective, and ranks may object differently.

    Args:
        progress: of the run.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._own = OwnChanges()
        self.share = SHARE
        """Of the time, what looking may take before epochs are too short for it."""
        self._is_short = False
        """Whether the current epoch followed on the last look too soon to look once more."""
        self._now: OwnValues | None = None
        """What it holds where a snapshot is due."""
        self._buffers: list[Any] = []
        self._looked_at_s = self._look_s = 0.0

    def enter_body(self) -> None:
        """A body of `run.epochs` begins."""
        self._is_short = self._look_s > self.share * (time.monotonic() - self._looked_at_s)
        if not self._is_short:
            self._look(self._own.enter_body)

    def enter_steps(self) -> None:
        """The first step of an epoch is next."""
        if not self._is_short:
            self._look(self._own.enter_steps)

    def _look(self, at: Callable[[OwnValues], None]) -> None:
        if self._own.first is None:
            self._buffers = unsaved_versions(self._progress)
        began_s = time.monotonic()
        at(OwnValues(self._progress.models, self._progress.known))
        self._looked_at_s = time.monotonic()
        self._look_s = 2 * (self._looked_at_s - began_s)

    def never(self) -> str:
        """Why no snapshot of this script would be right any more; empty when one may be."""
        self._now = OwnValues(self._progress.models, self._progress.known)
        if problem := own_order(self._progress):
            return problem
        if unsaved_versions(self._progress) != self._buffers:
            return BUFFERS
        return ""

    def not_inside(self) -> str:
        """Why none can be taken between the steps of this epoch."""
        if carried := self._carried():
            return carried
        if counter := counter_of_steps(self._progress):
            return COUNTED.format(counter)
        if self._is_short or self._own.steps is None or self._now is None:
            return self._changed_since_the_first() or SHORT
        return _changed(self._own.changed(self._now) or self._now.new_since(self._own.steps))

    def not_between(self) -> str:
        """Why none can be taken at the end of this body."""
        if carried := self._carried():
            return carried
        models = self._progress.models
        if any(parameter.grad is not None for model in models for parameter in model.parameters()):
            return GRADIENTS
        return self._changed_since_the_first()

    def _changed_since_the_first(self) -> str:
        """What is another now than before the first epoch."""
        first, now = self._own.first, self._now
        if first is None or now is None:
            return SHORT
        return _changed(now.name_changed_since(first) or now.new_since(first))

    def _carried(self) -> str:
        """Of the loops around the caller: at the end of a body, what an epoch makes anew is not carried."""
        found = carried_variables(self._progress.holds)
        return CARRIED.format(", ".join(found[:3])) if found else ""


def _changed(name: str) -> str:
    return CHANGED.format(name) if name else ""
