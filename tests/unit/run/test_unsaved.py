"""What a script holds that no state does: what of it has changed is found, whatever kind of thing it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.run.watch import holdings
from lockstep.run.watch.own_values import OwnValues


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of test modules lie beside this script, and whatever they hold would be walked in each look."""
    monkeypatch.setattr(holdings, "_FOREIGN", set(sys.modules))


class Meter:
    def __init__(self) -> None:
        self.sum, self.values = 0.0, []


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.meter = model, Meter()


def grow(meter: Meter) -> None:
    meter.values.append(1)


def changed_since(before: OwnValues, model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    """What the caller's variables hold that has changed."""
    return set(OwnValues([model], [model, optimizer]).changed_since(before).values())


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "average": lambda held: held["average"].update_parameters(held["model"]),
    "scheduler": lambda held: held["scheduler"].step(),
    "trainer.meter.sum": lambda held: setattr(held["trainer"].meter, "sum", 2.0),
    "trainer.meter.values": lambda held: grow(held["trainer"].meter),
    "history": lambda held: held["history"].append(1),
    "noise": lambda held: held["noise"].normal_(),
    "table": lambda held: held["table"].fill(3),
    "generator": lambda held: torch.rand(1, generator=held["generator"]),
    "": lambda held: held["optimizer"].step() or held["model"].eval(),
}


@pytest.mark.parametrize("name", CHANGES, ids=lambda name: name or "what a state holds")
def test_a_change_is_found(name: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2)).sum().backward()
    scheduler, average = torch.optim.lr_scheduler.StepLR(optimizer, 1), torch.optim.swa_utils.AveragedModel(model)
    trainer, history, noise, table = Trainer(model), [], torch.zeros(4), np.zeros(4)
    generator = torch.Generator()
    before = OwnValues([model], [model, optimizer])
    assert changed_since(before, model, optimizer) == set()
    optimizer.step()
    CHANGES[name](locals())
    assert changed_since(before, model, optimizer) == ({name} if name else set())
    assert (trainer, history, noise, table, generator, scheduler, average) is not None


def test_what_a_loop_over_parts_of_an_optimizer_or_a_model_leaves_in_its_variable_is_no_change() -> None:
    model = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        model(torch.randn(3, 2)).square().sum().backward()
        optimizer.step()
    [group], [weight, bias] = optimizer.param_groups, model.parameters()
    mean, state, momentum = model.running_mean, optimizer.state, optimizer.state[weight]["momentum_buffer"]
    before = OwnValues([model], [model, optimizer])
    group["lr"] = 0.05
    model(torch.randn(3, 2)).square().sum().backward()
    optimizer.step()
    assert changed_since(before, model, optimizer) == set()
    assert (bias, mean, state, momentum) is not None


def test_an_object_with_a_state_that_was_not_there_is_new() -> None:
    model = nn.Linear(2, 2)
    before = OwnValues([model], [model])
    loss_of = nn.CrossEntropyLoss()
    assert OwnValues([model], [model]).new_since(before) == ""
    best = torch.optim.swa_utils.AveragedModel(model)
    assert OwnValues([model], [model]).new_since(before) == "best"
    assert (loss_of, best) is not None
