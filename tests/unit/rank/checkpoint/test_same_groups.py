"""Whoever keeps an optimizer's group has the group that counts, after every load."""

import copy

import pytest
import torch
from torch import nn

from samebits.rank.checkpoint.parts.optimizers import keep_groups
from samebits.rank.checkpoint.parts.part import with_references
from tests.support.promises import promise


def made(kind=torch.optim.AdamW, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return kind([{"params": [model.weight], **options}, {"params": [model.bias], "weight_decay": 0.5}], lr=0.1)


def stepped(optimizer):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@promise(
    "save-and-resume",
    "`optimizer.param_groups`, a group, and the tensors in it stay the objects that the script keeps; an "
    "option, or a first value of `run.state`, that a state overrides is named with both values",
    also=[
        "test_a_kept_group_counts_after_a_resumed_start",
        "test_an_option_that_a_state_overrides_is_named_with_both_values_at_each_start",
    ],
)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_groups_their_list_and_the_lists_in_them_stay(kind):
    saved = copy.deepcopy(stepped(made(kind, warm=3)).state_dict())
    saved["param_groups"][0]["lr"] = 0.7
    optimizer = made(kind, cold=4)
    keep_groups(optimizer)
    groups, first, params = optimizer.param_groups, optimizer.param_groups[0], optimizer.param_groups[0]["params"]
    for _ in range(2):
        optimizer.load_state_dict(copy.deepcopy(saved))
        assert optimizer.param_groups is groups
        assert groups[0] is first
        assert first["params"] is params
        assert (first["lr"], first["warm"], "cold" in first) == (0.7, 3, False)
        assert optimizer.state_dict()["param_groups"] == saved["param_groups"]


def test_a_learning_rate_that_is_a_tensor_stays_that_tensor():
    saved = copy.deepcopy(made(lr=torch.tensor(0.25)).state_dict())
    rate = torch.tensor(0.5)
    optimizer = made(lr=rate)
    keep_groups(optimizer)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25


def test_a_refused_state_leaves_the_groups_as_they_were():
    optimizer = made()
    keep_groups(optimizer)
    first, before = optimizer.param_groups[0], dict(optimizer.param_groups[0])
    with pytest.raises(ValueError, match="number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    assert optimizer.param_groups[0] is first
    assert first == before


def test_what_a_scheduler_keeps_of_its_optimizer_is_no_copy_after_a_load():
    optimizer = made()
    own = {"group": optimizer.param_groups[0], "all": (optimizer.param_groups, 1), "count": 1}
    saved = {"group": {"lr": 9.0}, "all": ([], 2), "count": 5}
    state, live = with_references(own, saved, [optimizer])
    loaded = copy.deepcopy(state, dict(live))
    assert loaded["group"] is optimizer.param_groups[0]
    assert loaded["all"][0] is optimizer.param_groups
    assert (loaded["all"][1], loaded["count"]) == (2, 5)
