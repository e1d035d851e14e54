"""What a look must never do: take long, fail the script, or take what it could not see for the same."""

import ast
import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.errors import UsageError
from samebits.rank.checks.held import prepared_of
from samebits.rank.checks.labels import refuse_loop_without_turn
from samebits.rank.look import looks as when
from samebits.rank.look.looks import Looks
from samebits.rank.look.observation import Observation, Prepared
from samebits.rank.look.reading import Reader
from samebits.rank.look.source import assigned_first
from samebits.rank.look.verdict import Named
from samebits.rank.position.loop_state import LoopState
from tests.unit.rank.look.test_looks import read

NOTHING = Prepared(frozenset(), (), (), ())


def test_a_long_chain_of_branches_is_walked_once():
    chain = "if k == 0: a = 0\n" + "".join(f"    elif k == {n}: a = {n}\n" for n in range(1, 60)) + "    else: a = 1\n"
    loop = ast.parse(f"for k in steps:\n    {chain}    b = a").body[0]
    assert assigned_first(loop).keys() >= {"a", "b"}


def test_looks_that_are_over_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(when, "look", lambda *_: Observation({}, ()))
    looks = Looks()
    for _ in range(3):
        looks.after_step(lambda: NOTHING)
    assert looks.has_compared
    looks.carried.append("kept")
    looks.end()
    assert (looks.carried, looks.has_compared) == (["kept"], True)


def test_a_look_that_comes_to_no_end_compares_nothing(monkeypatch):
    monkeypatch.setattr(when, "look", lambda *_: Observation({}, (), is_cut=True))
    looks = Looks()
    assert [looks.after_step(lambda: NOTHING) for _ in range(3)] == [False, False, True]
    assert not looks.has_compared


def test_ranks_put_together_what_each_has_found():
    ours, theirs = Looks(is_over=True, _compared=2), Looks(is_over=True, _compared=1)
    ours.carried, theirs.carried = [Named("a", "x.py:1")], [Named("a", "x.py:1"), Named("b", "")]
    gathered = [json.loads(json.dumps(one.found())) for one in (ours, theirs)]
    for one in (ours, theirs):
        one.share(gathered)
        assert (one.carried, one.handed_on, one._compared) == ([Named("a", "x.py:1"), Named("b", "")], [], 1)
        assert one.found() == []


@pytest.mark.parametrize("gathered", [[[], ["tally"]], [["tally"], []]])
def test_a_loop_without_a_turn_is_refused_on_every_rank_alike(gathered):
    transport = SimpleNamespace(all_gather_object=lambda *_: gathered)
    with pytest.raises(UsageError, match="reads 'tally'"):
        refuse_loop_without_turn(SimpleNamespace(components=SimpleNamespace(transport=transport)))


def test_a_look_that_fails_compares_nothing():
    def fails():
        raise AttributeError("the script's own")

    looks = Looks()
    assert [looks.after_step(fails) for _ in range(3)] == [False, False, True]
    assert not looks.has_compared


@pytest.mark.parametrize(
    "value",
    [{"images": np.zeros(1 << 22)}, "x" * (1 << 21), ["x" * (1 << 19)] * 5, [[0] * 500] * 20000, np.zeros(1 << 22)],
)
def test_what_is_large_is_not_read(value):
    began = time.thread_time()
    reader = Reader(frozenset(), time.thread_time, time.thread_time() + 0.05)
    assert not reader.read(value)[1] or isinstance(value, list)
    assert time.thread_time() - began < 1, "the clock stops it"


@pytest.mark.parametrize("kind", [list, dict, set])
def test_what_grows_while_it_is_read_is_read_to_an_end(kind):
    """As a list does to which the script's own profiler appends: the look's calls are calls, too."""
    events, grown = 0, kind()

    def profile(*_):
        nonlocal events
        events += 1
        if events < 50_000:
            grown.update({events: 1} if kind is dict else {events}) if kind is not list else grown.append("call")

    sys.setprofile(profile)
    try:
        read(grown)
    finally:
        sys.setprofile(None)
    assert events < 1_000


def test_two_held_objects_that_change_places_are_a_change():
    one, two = object(), object()
    reader = Reader(frozenset({id(one), id(two)}), time.thread_time, time.thread_time() + 9)
    assert reader.read([one, two]) != reader.read([two, one])


def test_a_part_that_could_not_be_read_is_not_whole_where_it_comes_again():
    class Fails:
        def __init__(self):
            self.part = [iter([1])]

    thing = Fails()
    assert not read([thing, thing])[1]
    reader = Reader(frozenset(), time.thread_time, time.thread_time() + 9)
    assert (reader.read(thing)[1], reader.read([thing])[1]) == (False, False)


def test_a_large_tensor_at_the_address_of_one_that_is_gone_is_another_one():
    seen, addresses = set(), set()
    for _ in range(20):
        tensor = torch.zeros(1 << 19)
        addresses.add(id(tensor))
        assert read(tensor) == read(tensor)
        seen.add(read(tensor))
        del tensor
    assert len(addresses) < 20, "an address comes again"
    assert len(seen) == 20


def test_what_hangs_on_a_tensor_and_its_gradient_are_read():
    tensor = torch.ones(1, requires_grad=True)
    seen = {read(tensor)}
    tensor.momentum_buf = torch.zeros(1)
    seen.add(read(tensor))
    tensor.momentum_buf.add_(1)
    seen.add(read(tensor))
    tensor.sum().backward()
    seen.add(read(tensor))
    tensor.grad.add_(1)
    assert len({*seen, read(tensor)}) == 5


class _Function(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        calls.append(function)
        return function(*args, **kwargs or {})


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        calls.append(function)
        return function(*args, **kwargs or {})


calls = []


@pytest.mark.parametrize("mode", [_Function, _Dispatch])
def test_a_look_is_not_seen_by_modes_of_the_scripts(mode):
    model, generator = torch.nn.Linear(2, 1), torch.Generator()
    model(torch.ones(1, 2)).sum().backward()
    values = [torch.zeros(1 << 19), torch.ones(2, requires_grad=True), model, generator]
    looks, held = Looks(), LoopState()
    held.prepared.models.append(torch.nn.Linear(2, 1))
    with mode():
        torch.ones(1).add(1)
        assert calls
        calls.clear()
        for _ in range(2):
            looks.after_step(lambda: prepared_of(None, held, between_lanes=False))
        assert calls == []
    kept = looks._steps[0]
    assert kept is not None
    assert values
    assert any(key[0] == "values" for key in kept.names)
