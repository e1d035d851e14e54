"""An optimizer's state goes by the names of parameters: order, groups' order and torch's numbers do not matter."""

import json

import pytest
import torch
from torch import nn

from samebits.errors import UsageError
from samebits.rank.checkpoint.format.state import State
from samebits.rank.checkpoint.parts.optimizers import OptimizerPlan, add_optimizer
from samebits.rank.checkpoint.parts.part import parameter_names
from samebits.testing.digests import digest_of


def net(**options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2)).to(**options)


def step(model, optimizer):
    torch.manual_seed(1)
    dtype = next(model.parameters()).dtype
    model(torch.rand(4, 2, 4, 4).to(dtype)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def saved(model, optimizer, models=None):
    contents = State()
    add_optimizer(
        contents,
        "optimizer",
        optimizer,
        optimizer.state,
        names=parameter_names(models or [model]),
        holder=lambda _: None,
    )
    return contents


def load(contents, model, optimizer, models=None):
    document, entries = json.loads(json.dumps([contents.documents["optimizer"], contents.entries["optimizer"]]))
    plan = OptimizerPlan(optimizer, document, entries, parameter_names(models or [model]))
    tensors = contents.files["optimizer.safetensors"].tensors
    plan.carry_out(lambda name: tensors[name].detach().clone(memory_format=torch.contiguous_format))


def groups(model, *, swapped):
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    both = [{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": torch.tensor(0.02)}]
    return [{**group, "params": group["params"][::-1]} for group in reversed(both)] if swapped else both


def test_groups_and_parameters_may_come_in_another_order():
    first, second = net(), net()
    one = torch.optim.AdamW(groups(first, swapped=False), lr=0.05, foreach=False)
    two = torch.optim.AdamW(groups(second, swapped=True), lr=7.0, foreach=False)
    step(first, one)
    load(saved(first, one), second, two)
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        step(first, one)
        step(second, two)
    assert digest_of(first) == digest_of(second)
    assert [group["weight_decay"] for group in two.param_groups] == [0.01, 0.1]


@pytest.mark.parametrize(
    "options", [{"dtype": torch.bfloat16}, {"memory_format": torch.channels_last}, {"dtype": torch.float64}], ids=str
)
def test_a_state_keeps_its_dtype_and_its_strides(options):
    first, second = net(**options), net(**options)
    one, two = (torch.optim.Adam(model.parameters(), amsgrad=True) for model in (first, second))
    step(first, one)
    for state in one.state.values():
        state["exp_avg_sq"] = state["exp_avg_sq"].float()  # wider than a bfloat16 parameter
    load(saved(first, one), second, two)
    for before, after in zip(one.state.values(), two.state.values(), strict=True):
        for key, value in before.items():
            assert (value.dtype, value.stride()) == (after[key].dtype, after[key].stride())
            assert torch.equal(value, after[key])


def test_values_that_are_no_tensors_come_back():
    first, second = net(), net()
    one, two = (torch.optim.SGD(model.named_parameters(), lr=0.1) for model in (first, second))
    step(first, one)
    one.state[first[0].weight].update(momentum_buffer=None, history=[(1, torch.ones(2))], note={2: float("inf")})
    one.state["shared"] = {"count": 3}
    load(saved(first, one), second, two)
    assert two.state[second[0].weight]["history"][0][1].tolist() == [1.0, 1.0]
    assert two.state[second[0].weight]["note"] == {2: float("inf")}
    assert two.state["shared"] == {"count": 3}
    assert two.param_groups[0]["param_names"] == one.param_groups[0]["param_names"]


def test_an_optimizer_over_several_models_names_the_model():
    first, second = net(), net()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9)
    step(first, optimizer)
    names = list(saved(None, optimizer, [first, second]).files["optimizer.safetensors"].tensors)
    assert names[0] == "momentum_buffer/1/0.weight"


def test_another_optimizer_is_refused_before_anything_changes():
    first, second = net(), net()
    one = torch.optim.Adam(first.parameters())
    step(first, one)
    contents = saved(first, one)

    def said(optimizer):
        with pytest.raises(UsageError) as caught:
            load(contents, second, optimizer)
        assert not optimizer.state
        return str(caught.value)

    assert "is that of Adam, but the run prepared SGD" in said(torch.optim.SGD(second.parameters(), lr=0.1))
    assert "0.weight is not in the state" not in said(torch.optim.Adam([second[0].weight]))
    assert "the groups are divided differently" in said(torch.optim.Adam([second[0].weight]))
    second.append(nn.Linear(2, 2))
    assert "4.weight is not in the state" in said(torch.optim.Adam(second.parameters()))
    foreign = torch.optim.Adam(nn.Linear(1, 1).parameters())
    assert "a parameter that is no longer in a prepared model" in said(foreign)
