"""What the cost of an operation is taken from."""

import gc
import time

import torch

from samebits.rank.strategy.stages.cutting.watch import OperationClock

LONG_S = 0.02


class Slow:
    """An operation whose first runs take long, as when its kernel is compiled."""

    def __init__(self, num_slow):
        self.num_slow = num_slow
        self.collects = []

    def __call__(self, value):
        self.collects.append(gc.isenabled())
        began = time.thread_time()
        while self.num_slow > 0 and time.thread_time() - began < LONG_S:
            pass
        self.num_slow -= 1
        return value


def test_an_operation_costs_what_its_kind_costs_after_the_first_run():
    clock, slow, value = OperationClock(torch.device("cpu")), Slow(1), torch.ones(3)
    for position in (1, 2, 3):
        clock.run(position, slow, (value,), {})
    before, behind = clock.between([2])
    assert before < LONG_S
    assert behind < LONG_S


def test_operations_on_other_shapes_are_of_another_kind():
    clock, slow = OperationClock(torch.device("cpu")), Slow(1)
    clock.run(1, slow, (torch.ones(3),), {})
    clock.run(2, slow, (torch.ones(4),), {})
    before, behind = clock.between([2])
    assert before >= LONG_S > behind


def test_no_garbage_is_collected_in_an_operation():
    clock, slow = OperationClock(torch.device("cpu")), Slow(0)
    clock.run(1, slow, (torch.ones(3),), {})
    assert slow.collects == [False]
    assert gc.isenabled()
