"""A watched call of a model is the call itself: once, with the same bits, and with everything that forward does."""

import random
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from samebits.errors import UsageError
from samebits.rank.init.random_streams import seed_process
from samebits.rank.strategy.stages.cutting.first_lane import (
    FirstLane,
    WatchedCall,
    digest_of_lane,
    refuse_different_lanes,
)
from samebits.rank.strategy.stages.cutting.model_cut import ModelCut, allowed_candidates
from samebits.rank.strategy.stages.cutting.module_marks import StatePlace
from tests.support.promises import promise

CPU = torch.device("cpu")


class Busy(nn.Module):
    """Does in forward whatever leaves a trace, and draws from every stream."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.memory = 0, [], torch.zeros(4, 8)
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)

    def forward(self, batch):
        self.calls += 1
        x = batch["x"].sub_(0.5).div_(0.25)
        self.seen.append((float(x.mean()), random.random(), float(np.random.rand())))
        x = self.norm(self.first(x))
        x = x + self.attention(x[None], x[None], x[None], need_weights=False)[0][0]
        self.memory = torch.cat([self.memory[1:], x.detach()[:1]])
        return self.last(F.dropout(x, 0.2) + self.memory.mean(0)) + torch.randn(3)


def made(watches):
    seed_process(5)
    model, batch = Busy(), {"x": torch.randn(6, 8)}
    watched = None
    if watches:
        watched = WatchedCall(model, lambda: model(batch), CPU)
        result = watched.take_result()
        with watched.going_back():
            result.square().sum().backward()
        watched.forget()
    else:
        result = model(batch)
        result.square().sum().backward()
    left = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    tensors = [result, batch["x"], model.memory, *model.buffers(), *(p.grad for p in model.parameters())]
    assert all(not vars(module).keys() & {"forward", "_call_impl"} for module in model.modules())
    return tensors, (model.calls, model.seen, left), watched


@promise(
    "shares-of-an-update-stages-of-a-model",
    "Cutting a model into stages leaves no trace: forward is called as often as on one rank",
)
def test_a_watched_call_is_the_call_itself():
    plain, words, _ = made(watches=False)
    seen, same_words, watched = made(watches=True)
    assert all(map(torch.equal, plain, seen))
    assert words == same_words
    assert words[0] == 1
    assert all(cost > 0 for cost in watched.costs(watched.trace.candidates))


def around(model, *inputs):
    return WatchedCall(model, lambda: model(*inputs), CPU).trace.around


class Draws(nn.Module):
    """Noise that comes after dropout: a stage that only follows would draw it too early."""

    def __init__(self, noise_first):
        super().__init__()
        self.noise_first, self.first, self.last = noise_first, nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        noise = torch.randn(3)
        x = F.dropout(self.first(x), 0.1)
        if not self.noise_first:
            noise = torch.randn(3)
        return self.last(x) + noise


def test_random_numbers_drawn_behind_those_of_another_stage_may_not_cross_a_cut():
    assert "last" not in around(Draws(noise_first=True), torch.randn(2, 8))
    assert "goes around it" in around(Draws(noise_first=False), torch.randn(2, 8))["last"]


class Writes(nn.Module):
    """Writes, after the last layer, to what went into it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        result = self.last(x)
        x.mul_(2)
        return result.sum() + x.sum()


def test_a_view_that_is_written_to_behind_a_cut_forbids_it():
    assert "last" not in around(Writes(), torch.randn(2, 8))
    assert "a view that is written to later" in around(Writes(), torch.randn(2, 4, 8))["last"]


class CastTwice(nn.Module):
    """Under autocast a weight has one copy for all its uses, whose gradients are added in the lower precision."""

    def __init__(self, uses):
        super().__init__()
        self.uses, self.table, self.middle = uses, nn.Embedding(5, 8), nn.Linear(8, 8)

    def forward(self, numbers):
        x = self.middle(self.table(numbers))
        for _ in range(self.uses):
            x = F.linear(x, self.table.weight).softmax(-1)[..., :1] + x
        return x


@pytest.mark.parametrize("uses", [1, 2])
def test_a_weight_that_is_cast_once_for_several_uses_is_not_lent(uses):
    model, numbers = CastTwice(uses), torch.randint(0, 5, (2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        trace = WatchedCall(model, lambda: model(numbers), CPU).trace
    if uses == 1:
        assert [place.label for place in allowed_candidates("CastTwice", trace, 2, ())] == ["middle"]
    else:
        with pytest.raises(UsageError, match="used on both sides, and several times in a lower precision"):
            allowed_candidates("CastTwice", trace, 2, ())


def test_the_first_lane_tells_what_a_call_changes_and_watches_the_first_one_with_gradients():
    model = Busy()

    def call():
        return model({"x": torch.randn(6, 8)})

    lane = FirstLane(model, True, CPU)
    with torch.no_grad():
        lane.call(call)
    result = lane.call(call)
    lane.call(call)
    assert (lane.num_calls, lane.num_calls_with_gradients, model.calls) == (3, 2, 3)
    with lane.going_back():
        result.sum().backward()
    decided = lane.decide(2, ["last"])
    assert {StatePlace(*place) for place in decided["changing"]} == {
        StatePlace("", "calls"),
        StatePlace("", "seen"),
        StatePlace("", "memory"),
    }
    assert FirstLane(model, False, CPU).decide(2, ()) is None


@promise(
    "shares-of-an-update-stages-of-a-model",
    "`examples/gpt.py`, whose head is its embedding, writes the same weights in stages as alone; ranks "
    "that computed the first lane differently are named",
    also=["test_gpt_with_its_tied_weights_has_the_same_bits_in_stages"],
)
def test_ranks_that_made_the_same_lane_differently_are_named():
    torch.use_deterministic_algorithms(True)
    try:
        one = digest_of_lane([torch.tensor(1.0)], [torch.ones(3), None])
        same = digest_of_lane([torch.tensor(1.0)], [torch.ones(3), None])
        other = digest_of_lane([torch.tensor(1.0)], [torch.tensor([1.0, 1.0, 1.0000001]), None])
    finally:
        torch.use_deterministic_algorithms(False)
    assert one == same != other
    refuse_different_lanes([(0, one), (0, one), (2, other), (2, other), (-1, ""), (-1, "")])
    with pytest.raises(UsageError, match="Ranks 2 and 3 ran the whole model on the same samples"):
        refuse_different_lanes([(0, one), (0, one), (2, one), (2, other)])
    assert digest_of_lane([], [torch.ones(3)]) == ""  # fast numerics promise no bits


def test_reentrant_checkpoints_are_seen():
    model = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4)))
    x = torch.randn(2, 4)

    def forward():
        return model.c(torch.utils.checkpoint.checkpoint(model.b, model.a(x), use_reentrant=True))

    lane = FirstLane(model, True, CPU)
    lane.call(forward)
    assert "pass use_reentrant=False" in lane.decide(2, ["b"])[1]
    cut = ModelCut.decode(lane.decide(2, ()))
    assert cut.stages[1].layers == ("c",)
