"""Which epochs are left: whatever is saved where, a resumed script runs each epoch once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.rank.position.epoch_count import EpochCount


def script(count, loops, stop=None):
    """The epochs that train, as (loop, epoch); the state saved after the `stop`-th of them."""
    made, state = [], None
    for number, epochs in enumerate(loops):
        for epoch in count.epochs(epochs):
            count.begin_steps()
            made.append((number, epoch))
            count.end_steps()
            if len(made) == stop:
                state = count.position()
                return made, state
    return made, state


@given(st.lists(st.integers(0, 3), max_size=4), st.data())
def test_a_stopped_and_resumed_script_makes_each_epoch_once(loops, data):
    whole, _ = script(EpochCount(), loops)
    assert whole == [(number, epoch) for number, epochs in enumerate(loops) for epoch in range(epochs)]
    for stop in range(1, len(whole) + 1):
        before, state = script(EpochCount(), loops, stop)
        resumed = EpochCount()
        resumed.restore(state)
        after, _ = script(resumed, loops)
        assert before + after == whole


def test_a_loop_that_was_left_counts_the_epoch_that_was_trained():
    count = EpochCount()
    for epoch in count.epochs(5):
        if epoch == 3:
            break
        count.end_steps()
        if epoch == 2:
            break
    assert count.position() == {"loop": 1, "next": 3}


def test_a_state_of_another_loop_is_not_loaded_inside_one():
    count = EpochCount()
    for _ in count.epochs(1):
        with pytest.raises(UsageError, match=r"run\.epochs loop 2, but this is loop 1"):
            count.restore({"loop": 2, "next": 0})
