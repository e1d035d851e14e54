"""What two runs logged: the first value that differs is found, and nothing that was not recorded is called equal."""

import pytest

from samebits.verify.replay.values import ABSENT, OtherValue, compare_values, logged_in

LINES = [
    {"step": 1, "epoch": 1, "time": 1.0, "loss": 0.5},
    {"step": 2, "epoch": 1, "time": 2.0, "loss": 0.1},
    {"step": 2, "epoch": 1, "time": 2.5, "accuracy": None},
    {"step": True, "loss": 3.0},
    {"no": "step"},
]


def test_values_are_told_by_step_and_name_and_other_lines_are_left_out():
    assert logged_in(LINES) == {1: {"loss": [0.5]}, 2: {"loss": [0.1], "accuracy": [None]}}


def test_the_same_values_are_counted_but_for_those_that_are_not_finite():
    found = compare_values(logged_in(LINES), logged_in(LINES))
    assert (found.count, found.first, found.last, found.names, found.other) == (2, 1, 2, ("loss",), None)


def test_zeros_have_a_sign():
    one, other = (logged_in([{"step": 1, "loss": zero}]) for zero in (0.0, -0.0))
    assert compare_values(one, other).other == OtherValue(1, "loss", 0.0, -0.0)


@pytest.mark.parametrize(
    ("lines", "again"), [(LINES, LINES[:1]), (LINES, [LINES[0], LINES[2]]), ([*LINES, LINES[1]], LINES)]
)
def test_a_value_that_did_not_come_again_is_another_one_where_the_step_was_made_whole(lines, again):
    recorded, replayed = logged_in(lines), logged_in(again)
    assert compare_values(recorded, replayed, range(1, 3)).other == OtherValue(2, "loss", 0.1, ABSENT)
    assert compare_values(recorded, replayed, range(1, 2)).other is None


def test_the_first_other_value_is_named():
    again = logged_in([{**LINES[0], "loss": 0.5000000000000001}, *LINES[1:]])
    assert compare_values(logged_in(LINES), again).other == OtherValue(1, "loss", 0.5, 0.5000000000000001)


def test_a_value_that_the_run_did_not_log_in_that_step_is_another_one():
    again = logged_in([*LINES, {"step": 2, "loss": 0.1}])
    assert compare_values(logged_in(LINES), again).other == OtherValue(2, "loss", ABSENT, 0.1)


def test_steps_of_which_nothing_was_recorded_are_not_compared():
    found = compare_values(logged_in(LINES[:1]), logged_in(LINES))
    assert (found.count, found.last, found.other) == (1, 1, None)
    assert compare_values({}, logged_in(LINES)).count == 0
