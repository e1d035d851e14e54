"""A step has one number everywhere: `step.number` of the script."""

from __future__ import annotations

import pytest

from samebits.launcher.diagnosis.words import phase_text, step_text
from samebits.protocol.journal.ring import BETWEEN_STEPS, FETCH, IN_STEP, Phase, Record


@pytest.mark.parametrize(
    ("phase", "operation", "text"),
    [
        (Phase.SCRIPT, IN_STEP, "in step 20 (19 done)"),
        (Phase.DATA, FETCH, "in step 20 (19 done)"),
        (Phase.COMPUTE, "lane 1", "in step 20 (19 done)"),
        (Phase.UPDATE, "optimizer", "in step 20 (19 done)"),
        (Phase.SCRIPT, BETWEEN_STEPS, "after step 20"),
        (Phase.EVALUATE, "evaluate", "after step 20"),
        (Phase.DATA, "epoch order", "after step 20"),
    ],
)
def test_a_step_under_way_is_told_from_one_that_is_done(phase: Phase, operation: str, text: str) -> None:
    record = Record(7, 1, 20, 1, phase, operation, "train.py", 31)
    assert step_text(record.step, is_in_step=record.is_in_step) == text


def test_the_beginning_of_a_step_s_body_belongs_to_it() -> None:
    assert phase_text(Phase.SCRIPT, 20, IN_STEP) == "start of step 20"
    assert phase_text(Phase.SCRIPT, 20, BETWEEN_STEPS) == "in the script since step 20"
    assert step_text(0, is_in_step=False) == "before the first step"
