"""What a rank's account says of the time behind its last step."""

from __future__ import annotations

import time

from samebits.protocol.journal.ring import Phase
from samebits.rank.position.step_timer import StepTimer


def test_without_steps_nothing_follows_them() -> None:
    # As in ranks that start again behind the last step, and evaluate once more.
    timer = StepTimer(None)
    timer.enter(Phase.EVALUATE)
    timer.enter(Phase.SCRIPT)
    assert timer.ending()["over_since_ns"] == 0


def test_what_follows_the_steps_begins_behind_the_last_one() -> None:
    timer, began_ns = StepTimer(None), time.monotonic_ns()
    timer.publish()
    assert began_ns <= timer.ending()["over_since_ns"] <= time.monotonic_ns()
