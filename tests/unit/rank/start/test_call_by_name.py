"""A call is looked at by names and handed on as it was made, also to a function that takes anything."""

import inspect

import pytest
import torch.distributed as dist

from samebits.rank.start.guards.device_guard import _guarded
from samebits.rank.start.guards.wrapping import INIT, NEW_GROUP, CallByName


def torchs(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None):
    return [backend, init_method, timeout, world_size, rank, store]


def anything(*args, **kwargs):
    return torchs(*args, **kwargs)


def first_by_name(backend, *rest, **more):
    return torchs(backend, *rest, **more)


FUNCTIONS = pytest.mark.parametrize("function", [torchs, anything, first_by_name])


@FUNCTIONS
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("gloo",), {}),
        (("gloo", "env://"), {"rank": 1, "world_size": 2}),
        (("gloo", "env://", None, 2, 1), {}),
        (("gloo", None, None, 2, 1, "a store"), {}),
    ],
)
def test_values_are_changed_wherever_they_were_given(function, args, kwargs):
    call = CallByName(function, INIT)
    given = call.look(args, kwargs)
    assert given["backend"] == "gloo"
    assert given.get("world_size", 2) == 2
    changed_args, changed = call.change(
        args, kwargs, {"init_method": None, "store": "the run's", "rank": 1, "world_size": 2}
    )
    assert len(changed_args) == len(args)
    assert function(*changed_args, **changed) == ["gloo", None, None, 2, 1, "the run's"]


def test_a_call_that_cannot_be_made_is_one_for_torch_to_explain():
    with pytest.raises(TypeError):
        CallByName(torchs, INIT).look((), {"unknown": 1})
    assert CallByName(anything, INIT).look((), {"unknown": 1}) == {"unknown": 1}


@pytest.mark.parametrize(("function", "order"), [(dist.init_process_group, INIT), (dist.new_group, NEW_GROUP)])
def test_the_order_is_that_of_this_torch(function, order):
    assert tuple(inspect.signature(function).parameters)[: len(order)] == order


@pytest.mark.parametrize(("args", "kwargs"), [(("nccl",), {}), ((), {"backend": "nccl"}), ((), {})])
def test_a_backend_is_replaced_in_a_function_that_takes_anything(args, kwargs):
    made = _guarded("init_process_group", anything, "gloo", "cpu")
    assert made(*args, **kwargs)[0] == "gloo"
