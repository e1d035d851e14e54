"""Where the state of an optimizer goes that had one before its model moved. "meta" stands for a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, Optimizer

from samebits.rank.strategy.optimizer_kinds import follow_parameters, moved

THERE = torch.device("meta")


def stepped(kind: type[Optimizer], **options: object) -> dict[str, object]:
    """The state of one parameter, as the optimizer makes it on the CPU."""
    model = nn.Linear(3, 1, bias=False)
    optimizer = kind(model.parameters(), **options)  # type: ignore[call-arg, arg-type]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return dict(optimizer.state[model.weight])


def test_adagrads_first_state_moves_and_its_count_of_steps_stays():
    model = nn.Linear(3, 1)
    optimizer = Adagrad(model.parameters())
    state = moved(optimizer.state[model.weight], THERE, counts_there=False)
    assert (state["sum"].device, state["step"].device.type) == (THERE, "cpu")


@pytest.mark.parametrize("options", [{"fused": True}, {"capturable": True}])
def test_the_count_of_steps_moves_where_kernels_read_it(options):
    state = moved(stepped(Adam), THERE, counts_there=bool(options))
    assert {value.device for value in state.values()} == {THERE}


def test_the_lists_of_lbfgs_move_too():
    state = moved(stepped(LBFGS), THERE, counts_there=False)
    assert state["d"].device == THERE
    assert all(one.device == THERE for one in state["old_dirs"] + state["old_stps"])


@pytest.mark.parametrize("kind", [Adam, SGD])
def test_state_beside_its_parameter_is_left_as_it_is(kind):
    model = nn.Linear(3, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    before = {name: id(value) for name, value in optimizer.state[model.weight].items()}
    follow_parameters(optimizer)
    assert {name: id(value) for name, value in optimizer.state[model.weight].items()} == before
