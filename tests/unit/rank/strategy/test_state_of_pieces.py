"""A state that is cut over ranks and put together again is the same state, whatever the shapes, strides and ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from samebits.errors import UsageError
from samebits.rank.strategy.optimizer_kinds import UpdatesBy
from samebits.rank.strategy.replica.arena import ParameterArena
from samebits.rank.strategy.zero1.spread_state import SpreadState, share_out
from samebits.rank.strategy.zero1.state_assembly import assemble
from samebits.rank.strategy.zero1.update_agreement import BroadcastParameters
from samebits.testing.fake_transport import FakeWorld

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
SHAPES = st.sampled_from([(), (0, 3), (7,), (3, 5), (40, 70), (5000,), (8, 8, 5, 5), (33, 100)])


def optimizer_of(kinds):
    parameters = []
    for shape, dtype, is_turned in kinds:
        value = torch.randn(shape).to(dtype)
        parameters.append(nn.Parameter(value.t().contiguous().t() if is_turned and value.dim() == 2 else value))
    return torch.optim.SGD([{"params": parameters[::2]}, {"params": parameters[1::2]}], lr=0.1), parameters


def arena_of(parameters):
    return ParameterArena([("model", nn.ParameterList(parameters))])


def state_of(parameter, number):
    return {
        "step": torch.tensor(float(number)),
        "count": number,
        "moment": torch.randn_like(parameter),
        "wide": torch.randn(parameter.shape, dtype=torch.float64),
        "row": torch.randn(parameter.shape[:1] or (1,)),
        "nothing": None,
    }


@settings(max_examples=40)
@given(st.lists(st.tuples(SHAPES, DTYPES, st.booleans()), min_size=2, max_size=8), st.integers(1, 4), st.booleans())
def test_cut_and_put_together_a_state_is_the_same(kinds, world_size, by_element):
    kind = UpdatesBy.ELEMENT if by_element else UpdatesBy.PARAMETER
    optimizer, parameters = optimizer_of(kinds)
    arena = arena_of(parameters)
    whole = {parameter: state_of(parameter, number) for number, parameter in enumerate(parameters)}

    def rank_of(transport):
        division = share_out(optimizer, kind, arena, transport.rank, transport.world_size)
        state = SpreadState(division)
        state.cut_in(whole, division)
        everything = assemble(division, state, transport, "here", everyone=True)
        held = assemble(division, state, transport, "here", everyone=False)
        return everything, held

    told = FakeWorld(world_size).run(rank_of)
    merged = {parameter: entry for _, held in reversed(told) for parameter, entry in held.items()}
    assert sum(len(held) for _, held in told) == len(parameters)
    for found in (merged, *(everything for everything, _ in told)):
        assert {*map(id, found)} == {*map(id, parameters)}
        for parameter, entry in found.items():
            assert list(entry) == list(whole[parameter])
            for key, value in whole[parameter].items():
                same = torch.equal(entry[key], value) if isinstance(value, torch.Tensor) else entry[key] == value
                assert same, key
            assert entry["moment"].stride() == whole[parameter]["moment"].stride()


@settings(max_examples=40)
@given(st.lists(st.tuples(SHAPES, DTYPES, st.booleans()), min_size=2, max_size=8), st.integers(1, 4))
def test_what_each_rank_writes_into_its_pieces_is_seen_by_all(kinds, world_size):
    _, before = optimizer_of(kinds)

    def rank_of(transport):
        parameters = [nn.Parameter(parameter.detach().clone()) for parameter in before]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        division = share_out(optimizer, UpdatesBy.ELEMENT, arena_of(parameters), transport.rank, transport.world_size)
        for piece in division.pieces:
            piece.tensor.add_(1)
        BroadcastParameters(transport).after_update(division.stretches)
        owners = {stretch.owner for stretch in division.stretches}
        assert owners <= set(range(transport.world_size))
        return [parameter.detach().clone() for parameter in parameters]

    told = FakeWorld(world_size).run(rank_of)
    for values in told:
        assert all(torch.equal(value, parameter.detach() + 1) for value, parameter in zip(values, before, strict=True))


def spread():
    optimizer, parameters = optimizer_of([((40, 70), torch.float32, False), ((7,), torch.float32, False)])
    division = share_out(optimizer, UpdatesBy.ELEMENT, arena_of(parameters), 0, 2)
    return SpreadState(division), division, parameters


def test_before_any_update_it_is_an_ordinary_state():
    state, _, parameters = spread()
    assert parameters[0] not in state
    state[parameters[0]]["x"] = 1
    state["of the optimizer"] = {"y": 2}
    assert state.has_whole
    assert state.take_whole() == {parameters[0]: {"x": 1}}
    assert state.others() == {"of the optimizer": {"y": 2}}


def test_asked_for_a_whole_parameter_it_says_the_way_out():
    state, division, parameters = spread()
    state.cut_in({parameters[0]: state_of(parameters[0], 0)}, division)
    for ask in (state.__getitem__, state.get, state.__contains__):
        with pytest.raises(UsageError, match="on every rank"):
            ask(parameters[1])
    assert [len(entry["moment"]) for entry in state.values()] == [1024]
    assert state.get("something else", 5) == 5
