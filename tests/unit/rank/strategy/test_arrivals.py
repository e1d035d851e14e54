"""Hooks of gradients: ours come first; compiled ones note a number while they may, and tell it otherwise."""

import gc
import weakref

import pytest
import torch
from torch import nn

from samebits.errors import UsageError
from samebits.rank.strategy.replica.memory import ParameterMemory
from samebits.rank.strategy.replica.model_layout import ModelLayout, _hook_first
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.local.native import available, compiled

compiled_only = pytest.mark.skipif(not available(), reason="this installation has no compiled part")


def test_our_hook_comes_before_those_of_the_script_that_are_there_and_that_come():
    told, parameter = [], nn.Parameter(torch.ones(2))

    def tell(what):
        return lambda _: told.append(what)

    before = parameter.register_post_accumulate_grad_hook(tell("before"))
    ours = _hook_first(parameter, tell("ours"))
    parameter.register_post_accumulate_grad_hook(tell("after"))
    parameter.sum().backward()
    ours.remove()
    _hook_first(parameter, tell("ours again"))
    parameter.sum().backward()
    before.remove()
    parameter.sum().backward()
    assert told == ["ours", "before", "after", "ours again", "before", "after", "ours again", "after"]


@compiled_only
def test_a_hook_notes_its_number_only_while_it_may_and_tells_it_otherwise():
    noted, told = [], []
    gate = compiled.Arrivals(noted, told.append)
    parameter = nn.Parameter(torch.ones(2))
    parameter.register_post_accumulate_grad_hook(gate.hook(300))
    parameter.sum().backward()
    gate.are_noted = True
    parameter.sum().backward()
    assert (noted, told) == ([300], [300])


@compiled_only
def test_an_error_of_what_is_told_comes_out_of_the_backward():
    def refuse(_):
        raise UsageError("no", "never")

    parameter = nn.Parameter(torch.ones(2))
    parameter.register_post_accumulate_grad_hook(compiled.Arrivals([], refuse).hook(0))
    with pytest.raises(UsageError, match="no"):
        parameter.sum().backward()


@compiled_only
def test_hooks_that_are_removed_let_go_of_what_they_told():
    class Told:
        def __call__(self, number):
            pass

    told = Told()
    seen = weakref.ref(told)
    parameter = nn.Parameter(torch.ones(2))
    handle = parameter.register_post_accumulate_grad_hook(compiled.Arrivals([], told).hook(0))
    handle.remove()
    del told, handle
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("in_one_lane", [False, True])
def test_a_model_that_was_laid_out_is_freed_when_nobody_needs_it(in_one_lane):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(200, 200))  # small gradients and large ones
    layout = ModelLayout(AloneTransport(), ParameterMemory(), 0, in_one_lane=in_one_lane)
    layout.adopt([model])
    assert not layout.arena.has_changed()
    seen = weakref.ref(model), weakref.ref(layout)
    del model, layout
    gc.collect()
    assert [one() for one in seen] == [None, None]
