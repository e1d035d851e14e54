"""Scripts that set, forget or keep entries of `optimizer.state`. The same result under zero1 as on one rank."""

import torch
from torch import optim

from samebits.testing.digests import digest_of
from tests.scripts.zero1_scripts import one_step, prepared


def with_momentum(model):
    groups = [{"params": list(model[number].parameters())} for number in (1, 3)]
    return optim.SGD(groups, lr=0.05, momentum=0.9)


def trained(surgery):
    """What comes out of six steps with `surgery` before each of them."""
    run, model, optimizer, loader = prepared(with_momentum)
    told = []
    for _ in range(2):
        for step in run.steps(loader):
            surgery(step.number, model, optimizer)
            one_step(step, model, optimizer)
            told.append(digest_of(model))
    return told


def ones(parameter):
    return {"momentum_buffer": torch.ones_like(parameter)}


def states_of_single_parameters():
    def reset(number, model, optimizer):
        if number == 3:
            optimizer.state[model[1].weight] = {}

    def forget(number, model, optimizer):
        if number in (3, 4):
            del optimizer.state[model[1].weight]
            del optimizer.state[model[3].bias]

    def forget_what_is_not_there(number, model, optimizer):
        if number == 3:
            del optimizer.state[model[1].weight]
            try:
                del optimizer.state[model[1].weight]
            except KeyError:
                return
            raise AssertionError

    def update(number, model, optimizer):
        if number in (1, 3):
            optimizer.state.update({parameter: ones(parameter) for parameter in model.parameters()})

    def merge(number, model, optimizer):
        if number == 3:
            optimizer.state |= {model[1].weight: ones(model[1].weight)}

    def before_there_is_one(number, model, optimizer):
        if number == 1:
            optimizer.state.setdefault(model[1].weight, {}).update(ones(model[1].weight))

    def forget_and_set(number, model, optimizer):
        if number == 3:
            optimizer.state[model[1].weight] = ones(model[1].weight)
            del optimizer.state[model[1].weight]
            optimizer.state[model[1].weight] = ones(model[1].weight)

    ways = (reset, forget, forget_what_is_not_there, update, merge, before_there_is_one, forget_and_set)
    return {way.__name__: trained(way) for way in ways}


def states_while_groups_change():
    """A state stays while the optimizer does not list its parameter; one may be set along with a change of groups."""
    away = []

    def comes_back(number, _model, optimizer):
        if number == 3:
            away.append(optimizer.param_groups.pop())
        if number == 5:
            optimizer.param_groups.append(away.pop())

    def set_meanwhile(number, model, optimizer):
        comes_back(number, model, optimizer)
        if number in (3, 5):
            optimizer.state[model[1].weight] = ones(model[1].weight)
        if number == 4:
            optimizer.state[model[3].weight] = ones(model[3].weight)

    return [trained(comes_back), trained(set_meanwhile)]


SCRIPTS = [states_of_single_parameters, states_while_groups_change]
