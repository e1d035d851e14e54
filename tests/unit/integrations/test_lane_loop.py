"""Which calls of `optimizer.step()` in the batches of a step are the same on any number of processes."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate")

from samebits.errors import UsageError
from samebits.integrations.lane_loop import check_updates

GOOD = {
    "one, in every batch": [{1}, {1}, {1}],
    "one, in the last": [set(), set(), {1}],
    "two, in every batch": [{1, 2}, {1, 2}],
    "one in every batch, another in the last": [{1}, {1, 2}],
    "one batch": [{1}],
}
BAD = {
    "in turn": [{1}, {2}, {1}, {2}],
    "in every second": [{1}, set(), {1}, set()],
    "one in all, another in some": [{1, 2}, {1}, {1}],
    "in none": [set(), set()],
    "not in the last": [{1}, {1}, set()],
}


@pytest.mark.parametrize("case", GOOD)
def test_optimizers_step_in_every_batch_or_in_the_last(case: str) -> None:
    check_updates(GOOD[case])


@pytest.mark.parametrize("case", BAD)
def test_updates_by_a_count_of_batches_are_refused(case: str) -> None:
    with pytest.raises(UsageError, match=r"optimizer\.step\(\) was not called in every batch"):
        check_updates(BAD[case])
