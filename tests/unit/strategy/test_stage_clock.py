"""What a stage's clock tells about the next pass."""

import time

from lockstep.strategy.stages.clock import SURE, StageClock


def test_a_pass_can_expect_its_first_message_a_little_earlier_than_the_last_one_did():
    clock = StageClock()
    assert clock.spare_s == 0.0
    began = time.monotonic()
    clock.begin_pass()
    between = time.monotonic() - began
    clock.end_pass([(began + 1.0, began + 2.0), (began + 5.0, began + 9.0)])
    assert SURE * (2.0 - between) <= clock.spare_s <= SURE * 2.0
    clock.begin_pass()
    clock.end_pass([])
    assert clock.spare_s == 0.0
