"""What each phase takes as a rule."""

from samebits.launcher.diagnosis.scene import Pace
from samebits.protocol.journal.ring import Phase, Record


def record(sequence, at_s, phase=Phase.COMPUTE, operation="lane 0"):
    return Record(sequence, int(at_s * 1e9), 1, 1, phase, operation, "train.py", 12)


def test_the_median_of_a_phase_is_learned_and_lanes_are_alike():
    pace = Pace()
    assert pace.usual_s(record(9, 0)) is None
    pace.learn(
        [record(1, 0), record(2, 1, operation="lane 1"), record(3, 4, Phase.UPDATE, "optimizer"), record(4, 4.5)]
    )
    assert pace.usual_s(record(9, 0, operation="lane 17")) == 2.0
    assert pace.usual_s(record(9, 0, Phase.UPDATE, "optimizer")) == 0.5


def test_records_are_learned_once_and_gaps_are_left_out():
    pace = Pace()
    first = [record(1, 0), record(2, 1)]
    pace.learn(first)
    pace.learn(first)
    pace.learn([record(50, 100), record(51, 103)])  # between 2 and 50 nobody knows
    assert pace.usual_s(record(60, 0)) == 2.0
