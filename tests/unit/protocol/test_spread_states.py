"""Of many states the newest stay, and a few older ones that are spread over the run."""

import random
from itertools import pairwise

import pytest

from samebits.protocol.saving import spread


@pytest.mark.parametrize(
    ("steps", "keep", "others", "stay"),
    [
        ([], 3, 8, []),
        ([10], 1, 8, [10]),
        ([10, 20, 30, 40], 3, 0, [20, 30, 40]),
        ([10, 20, 30, 40], 3, 1, [10, 20, 30, 40]),
        ([10, 20, 30, 40, 50], 3, 1, [10, 30, 40, 50]),
        ([10, 20, 30, 40, 50], 2, 2, [10, 30, 40, 50]),
        ([10, 20, 30, 40, 50, 60, 70], 1, 3, [10, 30, 50, 70]),
        ([10, 11, 12, 40, 50], 1, 3, [10, 12, 40, 50]),
        ([1, 2, 100], 5, 1, [1, 2, 100]),
    ],
)
def test_of_too_many_the_one_goes_whose_neighbours_are_closest(steps, keep, others, stay):
    assert spread(steps, keep, others) == stay


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("others", [0, 1, 2, 3, 5, 8, 20])
def test_of_ten_thousand_states_those_that_stay_are_spread_over_the_run_at_each_time(keep, others):
    stay: list[int] = []
    for step in range(1, 10_001):
        before, stay = {*stay, step}, spread([*stay, step], keep, others)
        assert before.issuperset(stay)
        assert stay == sorted(stay)
        assert len(stay) == min(step, keep + others)
        assert stay[-keep:] == list(range(max(step - keep, 0) + 1, step + 1))
        assert stay[0] == 1 or not others
        line = stay[: others + 1]
        if others >= 3 and len(stay) == keep + others:
            apart = [after - one for one, after in pairwise(line)]
            assert max(apart) < 2 * -(-(line[-1] - 1) // others)


def test_all_at_once_are_as_many_as_one_by_one():
    steps = list(range(1, 10_001))
    assert len(spread(steps, 3, 8)) == 11
    assert spread(spread(steps, 3, 8), 3, 8) == spread(steps, 3, 8)


def test_states_at_random_times_stay_in_order_with_the_first():
    draw = random.Random(0)
    for _ in range(200):
        steps = sorted(draw.sample(range(10_000), draw.randint(1, 60)))
        keep, others = draw.randint(1, 5), draw.randint(0, 9)
        stay = spread(steps, keep, others)
        assert len(stay) == min(len(steps), keep + others)
        assert stay[-keep:] == steps[-keep:]
        assert not others or stay[0] == steps[0]
        assert stay == sorted({*stay} & {*steps})
