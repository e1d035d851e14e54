"""When a state is taken: `Trigger`, of a schedule that the user gave (`OnSchedule`), or of what snapshots may cost (`Pace`).

Nothing here knows the run, or talks to anybody: whoever asks gives the step, the time, and the place in the loop. A signal that asks
the run to save and end is in `signals`; what is done when a rank is lost in `last_snapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from samebits.protocol.saving import Schedule

SHARE = 0.01
"""Of the run's time, what snapshots may cost."""
FIRST_S = 2.0
"""After how much work the first one is taken, before anything is measured."""
FIRST_STEPS = 20
"""Where a state on the disk comes within so many steps, it is the first one."""


class SavePoint(Enum):
    """Where a state that is wanted after a step can be taken."""

    HERE = "here"
    AFTER_BODY = "after the body of run.epochs"
    BEFORE = "here, where the script reads nothing behind its loop that the loop assigns; else before the last step"
    NOWHERE = "nowhere"


@dataclass
class Trigger:
    """Whether a state is wanted, and whether it can be taken here."""

    owed: bool = field(default=False, kw_only=True)
    """Whether one is taken when the body of `run.epochs` is over, because it could not be before."""

    def place(self, *, in_body: bool, is_first: bool, ends_epoch: bool) -> SavePoint:
        """Where a state is taken that is wanted after a step."""
        # [Note: why a state inside an epoch is one of the first run.steps]
        # A resumed run starts the body again and skips the steps that are done. What lies before a second loop would run twice.
        if in_body and (ends_epoch or not is_first):
            self.owed = True
            return SavePoint.AFTER_BODY
        if ends_epoch and is_first:
            # A run that resumes behind its loop has no turn there, so names that the loop assigns would be missing.
            return SavePoint.BEFORE
        return SavePoint.HERE if is_first else SavePoint.NOWHERE

    def settle(self) -> bool:
        """Whether one was owed; it is not any more."""
        owed, self.owed = self.owed, False
        return owed


@dataclass
class OnSchedule(Trigger):
    """Automatic states: `--save-every 500steps`, `10min` or `epoch`."""

    schedule: Schedule
    saved_at_s: float
    """When the last one was taken, or the run began; of a clock, as below."""

    @property
    def asks_clock(self) -> bool:
        """Whether ranks may disagree about `is_due`, because their clocks do."""
        return self.schedule.seconds > 0

    def is_due(self, step: int, now_s: float, *, ends_epoch: bool) -> bool:
        """Whether one is due after `step`."""
        return self.schedule.is_due(step, now_s - self.saved_at_s, ends_epoch=ends_epoch)

    def leave_steps(self, step: int, *, is_asked: bool) -> None:
        """The script leaves its loop over steps before it learned whether a state was due after `step`."""
        steps = self.schedule.steps
        self.owed = self.owed or is_asked or step in self.schedule.at or (steps > 0 and step % steps == 0)

    def took(self, now_s: float) -> None:
        """One was taken."""
        self.saved_at_s, self.owed = now_s, False


def steps_between(cost_s: float, step_s: float) -> int:
    """Every how many steps a snapshot may be taken that costs `cost_s`, where a step takes `step_s`."""
    return max(1, -(-int(cost_s * 1e9) // max(int(step_s * SHARE * 1e9), 1)))


@dataclass
class Pace(Trigger):
    """Snapshots: as often as costs `SHARE` of the run's time.

    Args:
        steps: every so many steps; 0: as often as costs `SHARE` of the time.
        step: the run's step now.
        now_s: a clock, here and below.
    """

    steps: int
    step: int
    now_s: float
    cost_s: float = 0.0
    """Of the newest one; 0.0 before the first."""
    waits: bool = False
    """Whether the first one is to be a state on the disk."""

    def is_due(self, step: int, now_s: float) -> bool:
        """Whether to take one after `step`, which has begun."""
        made = step - self.step
        if made < 1 or self.steps:
            return made >= max(self.steps, 1)
        if not self.cost_s:
            return not self.waits and now_s - self.now_s >= FIRST_S
        return made >= steps_between(self.cost_s, (now_s - self.now_s) / made)

    def took(self, step: int, now_s: float, stall_s: float) -> None:
        """One was taken after `step`, or refused, or is on the disk; the step stood still for `stall_s`. Its writing is not measured yet."""
        self.step, self.now_s, self.cost_s = step, now_s, max(self.cost_s, stall_s)
