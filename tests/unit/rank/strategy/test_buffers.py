"""The bank of a model's buffers, and what a pass with several lanes makes of them."""

import pytest
import torch
from torch import nn

from samebits.errors import UsageError
from samebits.protocol.layout.cut import StepCut
from samebits.protocol.layout.placement import place
from samebits.rank.strategy.replica.buffer_pass import BufferPass
from samebits.rank.strategy.replica.buffers import BufferBank
from samebits.rank.transport.alone import AloneTransport


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(3), nn.BatchNorm1d(70)
        self.register_buffer("constant", torch.arange(5.0))


def pass_of(model, *lanes, bank=None):
    bank = bank or BufferBank([("Model", model)], {})
    whole = BufferPass(bank, StepCut(1, (1,) * len(lanes), (1.0,) * len(lanes)))
    for number, lane in enumerate(lanes):
        lane(model)
        whole.after_lane(number)
    whole.begin([whole.header()], AloneTransport(), place(len(lanes), 1))
    whole.finish()
    return bank


def use(layer, mean):
    def lane(model):
        norm = getattr(model, layer)
        norm.running_mean.fill_(mean)
        norm.num_batches_tracked.add_(1)

    return lane


def both(mean):
    return lambda model: (use("first", mean)(model), use("second", 2 * mean)(model))


def test_statistics_of_a_model_are_one_piece_whatever_lies_between_them():
    model = Model()
    bank = BufferBank([("Model", model)], {})
    means = [index for index, entry in enumerate(bank.entries) if entry.rule == "mean"]
    assert len(bank.runs(means)) == 1
    assert len(bank.runs(means[:1] + means[2:])) == 2


def test_statistics_are_the_mean_over_the_lanes_that_used_the_layer():
    model = Model()
    pass_of(model, both(1.0), use("first", 3.0), lambda model: None)
    assert model.first.running_mean.tolist() == [2.0] * 3
    assert model.second.running_mean.tolist() == [2.0] * 70
    assert (int(model.first.num_batches_tracked), int(model.second.num_batches_tracked)) == (1, 1)
    assert model.second.running_var.tolist() == [1.0] * 70


def test_counters_end_as_their_largest_value_in_any_lane():
    model = Model()
    pass_of(model, lambda m: m.first.num_batches_tracked.fill_(7), both(1.0))
    assert (int(model.first.num_batches_tracked), int(model.second.num_batches_tracked)) == (7, 1)


def test_one_lane_leaves_its_buffers_where_they_are():
    model = Model()
    pass_of(model, lambda m: (both(5.0)(m), m.constant.add_(1)))
    assert model.second.running_mean.tolist() == [10.0] * 70
    assert model.constant.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_pass_that_is_left_can_be_taken_back():
    model = Model()
    bank = BufferBank([("Model", model)], {})
    BufferPass(bank, StepCut(1, (1,), (1.0,)))
    both(5.0)(model)
    model.constant = model.constant + 1
    bank.restore()
    assert model.second.running_mean.tolist() == [0.0] * 70
    assert model.constant.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_constant_that_differs_between_lanes_is_named():
    with pytest.raises(UsageError, match="left different values in the buffer 'constant'"):
        pass_of(Model(), lambda m: m.constant.add_(1), lambda m: m.constant.add_(2))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.register_buffer("more", torch.zeros(2)),
        lambda m: delattr(m, "constant"),
        lambda m: setattr(m, "constant", torch.zeros(6)),
        lambda m: m.double(),
    ],
    ids=["more", "fewer", "resized", "double"],
)
def test_a_model_with_other_buffers_needs_a_new_bank(change):
    model = Model()
    bank = BufferBank([("Model", model)], {})
    model.constant = model.constant + 1
    assert not bank.has_changed()
    bank.take_in()
    assert not bank.has_changed()
    change(model)
    assert bank.has_changed()


class Counter(nn.Module):
    def __init__(self, dtype=torch.float32, size=()):
        super().__init__()
        self.register_buffer("seen", torch.zeros(size, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_a_sum_is_what_it_was_and_all_that_the_lanes_added(dtype):
    model = Counter(dtype, (3,))
    bank = BufferBank([("Model", model)], {"seen": "sum"})
    for total in (17, 37):
        pass_of(model, lambda m: m.seen.add_(8), lambda m: m.seen.add_(9), lambda m: None, bank=bank)
        assert model.seen.tolist() == [total] * 3
        model.seen.add_(3)


@pytest.mark.parametrize(
    "lane",
    [
        lambda m: m.seen.add_(4),
        lambda m: m.seen.add_(1),
        lambda m: m.seen.sub_(4),
        lambda m: m.seen.add_(4 / 96),
        lambda m: m.seen[1].add_(4),
    ],
    ids=["samples", "calls", "left", "part", "one of three"],
)
def test_a_buffer_that_every_lane_counts_up_alike_is_named(lane):
    model = Counter(size=(3,))
    bank = BufferBank([("Model", model)], {})
    with pytest.raises(UsageError, match="Every lane counts up the buffer 'seen' by the same amount"):
        for _ in range(2):
            pass_of(model, lane, lane, bank=bank)


@pytest.mark.parametrize(
    "lane",
    [
        lambda m: m.seen.fill_(1),
        lambda m: m.seen.copy_(torch.tensor([0.1, -0.2, 0.3])),
        lambda m: m.seen.lerp_(torch.tensor([0.1, 2.0, 3.0]), 0.1),
        lambda m: m.seen.add_(1).mul_(0.9),
    ],
    ids=["switch", "from weights", "average", "decay"],
)
def test_a_buffer_that_lanes_set_alike_is_not(lane):
    model = Counter(size=(3,))
    bank = BufferBank([("Model", model)], {})
    for _ in range(5):
        pass_of(model, lane, lane, bank=bank)
