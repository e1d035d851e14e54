"""Whose memory a tensor is in, and an arena that follows another one."""

import numpy as np
import pytest
import torch
from torch import nn

from samebits.errors import UsageError
from samebits.rank.strategy.other_users import agree_who_stays, used_elsewhere
from samebits.rank.strategy.replica.arena import ParameterArena
from samebits.rank.transport.alone import AloneTransport


def parameter(size=6):
    return nn.Parameter(torch.arange(float(size)))


VIEWS = {
    "nobody": (lambda p: None, False),
    ".data": (lambda p: p.data, True),
    "detach": (lambda p: p.detach(), True),
    "numpy": (lambda p: p.detach().numpy(), True),
    "a part": (lambda p: p.detach()[2:3], True),
    "a graph": (lambda p: (p * p.detach()).sum(), True),
    "its values": (lambda p: p.detach().clone(), False),
    "an optimizer": (lambda p: torch.optim.AdamW([p]), False),
    "shared": (lambda p: p.share_memory_(), True),
    "a state_dict": (lambda p: nn.ParameterList([p]).state_dict(), True),
}


@pytest.mark.thorough
@pytest.mark.parametrize("view", VIEWS)
def test_who_uses_the_memory_of_a_parameter_is_known(view):
    make, expected = VIEWS[view]
    one = parameter()
    kept = make(one)
    assert used_elsewhere([one]) == [expected]
    del kept
    assert used_elsewhere([one]) == [view in ("shared", "numpy")]  # torch marks both for good


def test_memory_that_torch_did_not_make_may_be_anybodys():
    assert used_elsewhere([nn.Parameter(torch.from_numpy(np.ones(3, np.float32)))]) == [True]


def test_parameters_that_share_memory_only_with_each_other_may_move():
    flat = torch.zeros(10)
    both = [nn.Parameter(flat[:4]), nn.Parameter(flat[4:])]
    assert used_elsewhere(both) == [True, True]
    del flat
    assert used_elsewhere(both) == [False, False]


def test_what_can_neither_stay_nor_move_is_refused():
    table = torch.zeros(4, 4)
    model = nn.ParameterList([nn.Parameter(table[:, 1])])
    with pytest.raises(UsageError, match="strided view"):
        agree_who_stays([("Model", model)], AloneTransport())


def test_what_has_not_moved_stays_when_a_model_is_laid_out_anew():
    model = nn.ParameterList([parameter(), parameter(3)])
    first = ParameterArena([("Model", model)])
    views = [one.data for one in model]
    model.append(parameter(5))
    model[1].data = torch.ones(4)
    second = ParameterArena([("Model", model)], previous=[first])
    assert [one.data_ptr() == view.data_ptr() for one, view in zip(model, views, strict=False)] == [True, False]
    assert [one.tolist() for one in model] == [[0, 1, 2, 3, 4, 5], [1] * 4, [0, 1, 2, 3, 4]]
    assert not second.has_changed()
    before = second.checksums()
    views[1].fill_(7.0)  # nobody's parameter any more
    assert second.checksums() == before
    model[0].data[0] = 9.0
    assert second.checksums() != before


def test_an_arena_that_follows_itself_has_the_same_memory():
    model = nn.ParameterList([parameter(), parameter(3)])
    first = ParameterArena([("Model", model)])
    second = ParameterArena([("Model", model)], previous=[first])
    assert second.segments == first.segments
    assert all(ours is theirs for ours, theirs in zip(second.flats, first.flats, strict=True))
