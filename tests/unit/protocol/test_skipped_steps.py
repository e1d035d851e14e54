"""Ranges of steps that are passed over: reading, adding, and what a resumed run makes of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.protocol.skipped_steps import SkippedSteps, of_resumed

RANGES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 9)).map(lambda one: (one[0], one[0] + one[1])), max_size=5
)


def numbers(steps):
    return {step for first, last in steps.ranges for step in range(first, last + 1)}


@given(RANGES, RANGES, st.integers(0, 50))
def test_ranges_are_sets_of_steps(one, other, step):
    mine, theirs = SkippedSteps.of(one), SkippedSteps.of(other)
    assert numbers(mine) == {number for first, last in one for number in range(first, last + 1)}
    assert numbers(mine | theirs) == numbers(mine) | numbers(theirs)
    assert numbers(mine.without(theirs)) == numbers(mine) - numbers(theirs)
    assert numbers(mine.until(step)) == {number for number in numbers(mine) if number <= step}
    assert numbers(mine.after(step)) == {number for number in numbers(mine) if number > step}
    assert mine.between(5, step) == sorted(number for number in numbers(mine) if 5 <= number <= step)
    assert [number in mine for number in range(52)] == [number in numbers(mine) for number in range(52)]
    assert all(last + 1 < first for (_, last), (first, _) in zip(mine.ranges, mine.ranges[1:], strict=False))
    assert not mine or SkippedSteps.parse(str(mine)) == mine
    assert SkippedSteps.read([list(each) for each in mine.ranges]) == mine


@pytest.mark.parametrize(
    "text",
    ["x:y", "5:3", "0:2", "", "5", "5:", ":5", "1:2:3", "-1:2", "1:2,", "1 :2", "1:2;3:4", "٣:٤", "1:" + "9" * 20],
)
def test_what_is_no_range_is_refused_in_a_sentence(text):
    with pytest.raises(UsageError, match="--skip-steps"):
        SkippedSteps.parse(text)


@pytest.mark.parametrize("record", [None, 3, [[1]], [[2, 1]], [[0, 1]], [["1", "2"]], [[True, 2]], "12"])
def test_a_state_of_others_is_refused(record):
    with pytest.raises((ValueError, TypeError)):
        SkippedSteps.read(record)


def test_a_run_keeps_its_ranges_until_their_steps_are_over():
    ranges = SkippedSteps.parse("3:5")
    assert of_resumed(ranges, ranges, 4, is_branch=False) == ranges
    assert of_resumed(SkippedSteps(), ranges, 5, is_branch=False) == ranges
    with pytest.raises(UsageError, match="passes over step 5, as it was started"):
        of_resumed(SkippedSteps(), ranges, 4, is_branch=False)
    with pytest.raises(UsageError, match="has made them already"):
        of_resumed(ranges, SkippedSteps(), 4, is_branch=False)
    # more of them may come, and a branch has none of its parent's
    assert of_resumed(SkippedSteps.parse("5:5,9:9"), ranges, 4, is_branch=False) == SkippedSteps.parse("3:5,9:9")
    assert of_resumed(SkippedSteps(), ranges, 4, is_branch=True) == SkippedSteps.parse("3:4")
