"""The lane of a run with one lane: gradients stay where autograd made them."""

import pytest
import torch
from torch import nn

from samebits.errors import UsageError
from samebits.rank.strategy.replica.lane_gradients import GradientBufferPool
from samebits.rank.strategy.replica.lanes import OnlyLane
from samebits.rank.transport.alone import AloneTransport


def lane_of(*parameters):
    return OnlyLane(0, parameters)


def square(*parameters):
    return sum(parameter.pow(2).sum() for parameter in parameters)


def test_a_gradient_is_not_copied():
    parameter = nn.Parameter(torch.tensor([1.0, -0.0]))
    lane = lane_of(parameter)
    made = []
    parameter.register_hook(lambda gradient: made.append(gradient.data_ptr()))
    square(parameter).backward()
    lane.backward_finished()
    lane.hand_over([None], 1.0)
    assert [parameter.grad.data_ptr()] == made
    assert parameter.grad.signbit().tolist() == [False, True]  # the plain loop's


def test_gradients_in_one_piece_of_memory_are_parted_before_the_next_backward_adds_to_them():
    first, second = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    lane = lane_of(first, second)
    for _ in range(2):
        (first.view(4) + second.view(4)).pow(2).sum().backward()
        lane.backward_finished()
    assert first.grad.data_ptr() != second.grad.data_ptr()
    assert first.grad.tolist() == second.grad.tolist() == [[8.0, 8.0], [8.0, 8.0]]


def test_a_sparse_gradient_becomes_dense():
    table = nn.Embedding(4, 2, sparse=True)
    lane = lane_of(table.weight)
    for _ in range(2):
        table(torch.tensor([1, 1, 3])).sum().backward()
        lane.backward_finished()
    assert table.weight.grad.tolist() == [[0.0, 0.0], [4.0, 4.0], [0.0, 0.0], [2.0, 2.0]]


def test_what_was_there_before_the_pass_is_added_to():
    one, two, three = (nn.Parameter(torch.ones(1)) for _ in range(3))
    held = [torch.ones(1), None, torch.ones(1)]
    lane = lane_of(one, two, three)
    square(one, two).backward()
    lane.backward_finished()
    assert lane.arrived() == [True, True, False]
    lane.hand_over(held, 0.5)
    assert (one.grad.item(), two.grad.item(), three.grad.item()) == (2.0, 1.0, 1.0)
    assert one.grad is held[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.grad.mul_(2),
        lambda p: setattr(p, "grad", p.grad.clone()),
        lambda p: setattr(p, "grad", None),
    ],
    ids=["scaled", "replaced", "dropped"],
)
def test_a_changed_gradient_is_found(change):
    parameter = nn.Parameter(torch.ones(2))
    lane = lane_of(parameter)
    lane.losses.append(square(parameter))
    lane.losses[0].backward()
    lane.backward_finished()
    lane.check_untouched()
    change(parameter)
    with pytest.raises(UsageError, match="changed inside a step's lanes"):
        lane.check_untouched()


def test_a_backward_of_the_script_itself_is_found_when_the_lane_ends():
    parameter = nn.Parameter(torch.ones(2))
    lane = lane_of(parameter)
    square(parameter).backward()
    with pytest.raises(UsageError, match=r"loss.backward\(\) was called"):
        lane.check_untouched()


def test_a_gradient_that_a_hook_takes_away_is_none_as_in_a_plain_loop():
    parameter = nn.Parameter(torch.ones(2))
    lane = lane_of(parameter)
    parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    square(parameter).backward()
    lane.backward_finished()
    lane.hand_over([None], 1.0)
    assert lane.arrived() == [False]
    assert parameter.grad is None


def test_the_gradients_can_be_read_as_a_slot():
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    lane = lane_of(used, unused)
    square(used).backward()
    lane.backward_finished()
    buffer = lane.buffer_for_reading(GradientBufferPool([used, unused], AloneTransport(), 0))
    assert [view.tolist() for view in buffer.views] == [[2.0, 2.0, 2.0], [0.0, 0.0]]
