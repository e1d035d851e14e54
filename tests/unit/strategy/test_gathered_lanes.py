"""Lanes whose small gradients are moved into their places together: the bits of lanes that add them up one by one."""

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lockstep.errors import UsageError
from lockstep.node.native import available, compiled
from lockstep.strategy.replica.slot_lane import SlotLane, are_apart, can_gather
from lockstep.strategy.replica.slots import SlotPool
from lockstep.transport.alone import AloneTransport

pytestmark = pytest.mark.skipif(not available(), reason="this installation has no compiled part")

ODD = (-0.0, 0.0, 1e-38, -1e-45, float("inf"), float("nan"), 3.0, -3.0)


def bits_after(parameters, losses, *, gathers):
    """The bits of a lane's slot after backward calls, as a pass makes them."""
    pool = SlotPool(parameters, AloneTransport(), 0)
    assert can_gather(pool)
    pool.give_back(pool.take())
    arrivals = []
    for flat in (one := pool.take()).flats:
        flat.fill_(7.0)  # what an earlier step left
    for part in one.zeroed if not gathers else ():
        part.zero_()
    pool.give_back(one)
    for parameter in parameters:
        parameter.grad = None
    lane = SlotLane(0, pool, arrivals, gathers=gathers)
    gate = compiled.Arrivals(arrivals, lane.gradient_arrived)
    hooks = [
        parameter.register_post_accumulate_grad_hook(
            gate.hook(number) if not pool.is_copied[number] else lambda _, number=number: lane.gradient_arrived(number)
        )
        for number, parameter in enumerate(parameters)
    ]
    for loss in losses:
        gate.are_noted = True
        loss(parameters).backward()
        gate.are_noted = False
        lane.backward_finished()
        lane.check_untouched()
    for hook in hooks:
        hook.remove()
    lane.fill()
    found = [view.clone().reshape(-1).view(torch.int32) for view in lane.slot.views]
    return found, lane


def both(make, losses):
    """The bits in either way, which must be the same."""
    (gathered, lane), (added, _) = (bits_after(make(), losses, gathers=gathers) for gathers in (True, False))
    assert all(map(torch.equal, gathered, added))
    return gathered, lane


def weighted(parameters):
    """A loss whose gradients are odd numbers."""
    odd = torch.tensor(ODD)
    return sum((p.reshape(-1) * odd.to(p.dtype).repeat(p.numel() // 8 + 1)[: p.numel()]).sum() for p in parameters)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12), backwards=st.integers(1, 3), used=st.integers(0, 12)
)
def test_gathered_gradients_have_the_bits_of_added_ones(sizes, backwards, used):
    def make():
        return [nn.Parameter(torch.ones(size)) for size in sizes] + [nn.Parameter(torch.ones(3, dtype=torch.float64))]

    both(make, [lambda parameters: weighted(parameters[used % len(parameters) :])] * backwards)


def test_gradients_of_other_layouts_have_the_same_bits():
    def make():
        plain = nn.Parameter(torch.arange(24.0).reshape(2, 3, 4))
        turned = nn.Parameter(torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2))
        apart = nn.Parameter(torch.arange(48.0).reshape(4, 12)[:, ::2])
        return [plain, turned, apart, nn.Parameter(torch.zeros(4)), nn.Parameter(torch.tensor(2.0))]

    def loss(parameters):
        plain, turned, apart, summed, scalar = parameters
        complex_one = torch.complex(plain, -plain).conj().imag.sum()
        return complex_one + (plain * turned.permute(2, 1, 0)).sum() + apart.T.sum() + summed.sum() * scalar

    both(make, [loss])


def test_a_parameter_that_is_used_twice_is_noted_and_has_the_same_bits():
    def make():
        return [nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))]

    def twice(parameters):
        weighted(parameters).backward(retain_graph=True)
        return weighted(parameters[:1])

    _, lane = both(make, [twice])
    assert lane.came_twice


def test_several_gradients_in_shared_memory_are_refused_because_torch_may_have_added_to_the_wrong_one():
    shared = torch.ones(8)
    lane = SlotLane(0, SlotPool([nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))], AloneTransport(), 0), noted := [],
                    gathers=True)  # fmt: skip
    for parameter in lane._parameters:
        parameter.grad = shared.view(8)
    noted += [0, 1, 0]
    with pytest.raises(UsageError, match="same memory"):
        lane.backward_finished()


def test_gradients_are_apart_unless_their_memory_overlaps():
    whole = torch.zeros(8)
    assert are_apart([whole[:4], whole[4:], torch.zeros(2)])
    assert not are_apart([whole[:5], whole[4:]])


def test_a_gradient_that_a_hook_removed_is_missed():
    parameter = nn.Parameter(torch.ones(8))
    lane = SlotLane(0, SlotPool([parameter], AloneTransport(), 0), noted := [], gathers=True)
    noted.append(0)
    with pytest.raises(UsageError, match="removed a parameter's gradient"):
        lane.backward_finished()


def test_a_gradient_that_the_script_sets_before_the_backward_is_found():
    parameter = nn.Parameter(torch.ones(8))
    lane = SlotLane(0, SlotPool([parameter], AloneTransport(), 0), [], gathers=True)
    lane.check_untouched()
    parameter.grad = torch.ones(8)
    with pytest.raises(UsageError, match="Gradients were changed"):
        lane.check_untouched()


def test_what_lies_in_a_place_before_the_lane_is_gone_where_no_gradient_came():
    found, _ = bits_after(
        [nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))], [lambda p: p[0].sum()], gathers=True
    )
    assert found[1].tolist() == [0] * 8


def test_a_hook_notes_its_number_only_while_it_may_and_tells_it_otherwise():
    noted, told = [], []
    gate = compiled.Arrivals(noted, told.append)
    parameter = nn.Parameter(torch.ones(2))
    parameter.register_post_accumulate_grad_hook(gate.hook(300))
    parameter.sum().backward()
    gate.are_noted = True
    parameter.sum().backward()
    assert (noted, told) == ([300], [300])


def test_an_error_of_what_is_told_comes_out_of_the_backward():
    def refuse(_):
        raise UsageError("no", "never")

    parameter = nn.Parameter(torch.ones(2))
    parameter.register_post_accumulate_grad_hook(compiled.Arrivals([], refuse).hook(0))
    with pytest.raises(UsageError, match="no"):
        parameter.sum().backward()


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
