"""Facts about all parameters that are compared in each step: whatever Python would see, the compiled loops see too."""

import pytest
import torch
from torch import nn

from samebits.rank.strategy.replica.arena import Holders, Places, reader, surely_hold
from samebits.rank.transport.local.native import available

pytestmark = pytest.mark.skipif(not available() or reader() is None, reason="there are no compiled loops here")


def make():
    return [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(4))]


def test_tensors_that_were_written_to_are_where_they_were():
    parameters = make()
    places = Places(parameters)
    with torch.no_grad():
        parameters[0].add_(1)
    assert places.surely_same(parameters)


@pytest.mark.parametrize(
    "other",
    [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(3, 2).T, torch.zeros(6)],
    ids=["memory", "shape", "strides", "dims"],
)
def test_a_tensor_that_moved_is_found(other):
    parameters = make()
    places = Places(parameters)
    parameters[0].data = other
    assert not places.surely_same(parameters)
    assert not places.surely_same(parameters, only_addresses=True)


def test_a_tensor_with_other_strides_over_the_same_memory_is_found():
    parameters = make()
    places = Places(parameters)
    parameters[0].data = parameters[0].data.as_strided((2, 3), (1, 2))
    assert not places.surely_same(parameters)
    assert places.surely_same(parameters, only_addresses=True)


def test_another_number_of_tensors_is_found():
    parameters = make()
    assert not Places(parameters).surely_same(parameters[:2])


def test_of_tensors_that_cannot_be_read_nothing_is_known():
    parameters = [nn.Parameter(torch.zeros(2)), torch.zeros(2).to_sparse()]
    assert not Places(parameters).surely_same(parameters)


def test_modules_that_got_lost_or_replaced_something_are_found():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tables = [table for module in model.modules() for table in (module._parameters, module._modules)]
    values = [value for table in tables for value in table.values()]
    assert surely_hold(tables, values)
    former = model[1].bias
    model[1].bias = nn.Parameter(torch.zeros(2))
    assert not surely_hold(tables, values)
    model[1].bias = former
    assert surely_hold(tables, values)
    model[1].extra = nn.ReLU()
    assert not surely_hold(tables, values)
    del model[1].extra
    assert not surely_hold(tables, values[:-1])
    model[0].bias = None
    assert not surely_hold(tables, values)


def hold_gradient(parameter, view):
    return parameter.grad


def hold_detached(parameter, view):
    return parameter.grad.detach()


def hold_view(parameter, view):
    return view


@pytest.mark.parametrize("hold", [hold_gradient, hold_detached, hold_view])
def test_a_gradient_that_somebody_keeps_is_found_until_it_is_let_go_of(hold):
    flat = torch.zeros(6)
    views = [flat[:4], flat[4:]]
    holders = Holders(views, [flat])
    assert holders.same()
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = views[0]
    kept = [hold(parameter, views[0])]
    parameter.grad = None
    assert not holders.same()
    kept.clear()
    assert holders.same()
    parameter.grad = views[0]
    assert not holders.same()
