"""What a stage's clock tells about the next pass."""

import time

from samebits.rank.strategy.stages.clock import SURE, StageClock


def test_a_pass_can_expect_its_first_messages_a_little_earlier_than_the_last_one_did():
    clock = StageClock()
    began = time.monotonic()
    clock.begin_pass()
    assert clock.spare_s("F") == clock.spare_s("B") == 0.0
    between = time.monotonic() - began
    waits = [(began - 1.0, began - 0.5), (began + 1.0, began + 2.0), (began + 5.0, began + 9.0)]
    clock.end_pass(waits)  # the first one was over before anything was due
    clock.begin_pass()
    for kind in "FB":
        assert SURE * (2.0 - between) <= clock.spare_s(kind) <= SURE * 2.0
        assert clock.spare_s(kind) == 0.0  # a later action of the kind
    clock.end_pass([])
    clock.begin_pass()
    assert clock.spare_s("F") == 0.0


def test_who_did_not_wait_fetches_nothing_in_the_next_pass():
    clock = StageClock()
    clock.begin_pass()
    clock.spare_s("B")
    before = time.monotonic() - 3.0
    clock.end_pass([(before, before + 1.0)])
    clock.begin_pass()
    assert clock.spare_s("B") == 0.0
