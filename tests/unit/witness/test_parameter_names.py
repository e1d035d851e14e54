"""Parameters have the names of the modules that hold them, the same in each run of a script."""

import torch
from torch import nn

from samebits.witness.names import Names


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)


def named(*parameters):
    names = Names()
    names.learn(parameters)
    return names, [names.of(one) for one in parameters]


def test_the_outermost_module_gives_the_name():
    net = Net()
    outer = nn.ModuleDict({"module": net})
    names, found = named(*outer.parameters())
    assert found == [f"ModuleDict.module.{name}" for name, _ in net.named_parameters()]
    assert [name for name, _ in names.buffers()] == [
        f"ModuleDict.module.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    ]


def test_two_models_of_one_class_have_two_labels_in_the_order_of_their_parameters():
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    assert named(second.weight, first.weight)[1] == ["Linear.weight", "Linear.2.weight"]


def test_a_second_model_s_names_are_never_those_of_a_part_of_the_first():
    first = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Sequential(nn.Linear(1, 1)))
    second = nn.Sequential(nn.Linear(1, 1))
    found = named(*first.parameters(), *second.parameters())[1]
    assert len(set(found)) == 6
    assert found[-1] == "Sequential.3.0.bias"


def test_a_shared_parameter_has_one_name_and_one_of_no_module_a_number():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    alone = nn.Parameter(torch.zeros(1))
    found = named(*model.parameters(), alone)[1]
    assert found[:-1] == ["ModuleList.0.weight", "ModuleList.0.bias", "ModuleList.1.bias"]
    assert found[-1].startswith("unnamed.")


def test_a_module_with_attributes_of_its_own_runs_no_code_of_the_users():
    class Trap(nn.Linear):
        def __getattribute__(self, name):
            if name != "__class__" and armed:
                raise AssertionError(name)
            return super().__getattribute__(name)

    armed = False
    trap = Trap(1, 1, bias=False)
    weight = trap.weight
    armed = True
    found = named(weight)[1]
    armed = False
    assert found == ["Trap.weight"]
