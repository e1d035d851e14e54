"""The table of optimizers holds: what may be given chunks gives the same bits by chunks, with one and two threads."""

import warnings

import pytest
import torch
from torch import nn, optim

from samebits.errors import UsageError
from samebits.rank.strategy.optimizer_kinds import KNOWN, UpdatesBy, updates_by

FORMS = {
    optim.SGD: [
        {"lr": 0.1},
        {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True},
    ],
    optim.Adam: [{}, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}],
    optim.AdamW: [{}, {"amsgrad": True}],
    optim.Adamax: [{"weight_decay": 0.1}],
    optim.NAdam: [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    optim.RAdam: [{"weight_decay": 0.1}],
    optim.Adagrad: [{"lr_decay": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.1}],
    optim.Adadelta: [{"weight_decay": 0.1}],
    optim.RMSprop: [{}, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}],
    optim.Rprop: [{}],
    optim.ASGD: [{"t0": 3, "weight_decay": 0.1}],
}
FUSED = (optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad)
CASES = [
    (kind, options | form)
    for kind, some in FORMS.items()
    for options in some
    for form in ({"foreach": False}, {"foreach": True}, {"fused": True})
    if "fused" not in form or kind in FUSED
]
SIZE = 40_003
"""Long enough for two threads, and odd."""


def trained(kind, options, dtype, cuts):
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(SIZE, generator=generator).to(dtype)
    pieces = [whole[start:end] for start, end in cuts]
    optimizer = kind(pieces, **options)
    for _ in range(4):
        gradient = torch.randn(SIZE, generator=generator).to(dtype)
        for piece, (start, end) in zip(pieces, cuts, strict=True):
            piece.grad = gradient[start:end]
        optimizer.step()
    states = [optimizer.state[piece] for piece in pieces]
    joined = {
        key: torch.cat([state[key] for state in states]) if value.dim() else value
        for key, value in states[0].items()
        if isinstance(value, torch.Tensor)
    }
    return {"parameter": whole, **joined}


def differing(whole, chunks):
    """Where they differ, by name: how many elements, the first one and the last one."""
    places = {key: (whole[key] != chunks[key]).reshape(-1).nonzero().flatten().tolist() for key in whole}
    return {key: (len(found), found[0], found[-1]) for key, found in places.items() if found}


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("kind", "options"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_an_element_wise_optimizer_has_the_same_bits_by_chunks(kind, options, threads):
    assert KNOWN[kind] is UpdatesBy.ELEMENT
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for dtype in (torch.float32, torch.float64):
            whole = trained(kind, options, dtype, [(0, SIZE)])
            chunks = trained(kind, options, dtype, [(0, 1024), (1024, 30 * 1024), (30 * 1024, SIZE)])
            assert whole.keys() == chunks.keys()
            assert not whole["parameter"].isnan().any()
            assert differing(whole, chunks) == {}, dtype
    finally:
        torch.set_num_threads(before)


def test_adafactor_and_muon_look_at_whole_parameters():
    whole, half = (
        trained(optim.Adafactor, {}, torch.float32, cuts) for cuts in ([(0, SIZE)], [(0, 1024), (1024, SIZE)])
    )
    assert not torch.equal(whole["parameter"], half["parameter"])
    assert updates_by(optim.Adafactor([torch.ones(3)]), None) is UpdatesBy.PARAMETER
    assert updates_by(optim.Muon([torch.ones(3, 3)]), None) is UpdatesBy.PARAMETER


def test_every_optimizer_of_torch_is_in_the_table_or_refused_elsewhere():
    there = {kind for kind in vars(optim).values() if isinstance(kind, type) and issubclass(kind, optim.Optimizer)}
    assert there - set(KNOWN) == {optim.Optimizer, optim.LBFGS}
    assert set(FORMS) == {kind for kind, by in KNOWN.items() if by is UpdatesBy.ELEMENT}


class Renamed(optim.AdamW):
    """Inherits everything that updates."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)


class OwnStep(optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class OwnGroups(optim.Adam):
    def _init_group(self, *arguments):
        return super()._init_group(*arguments)


def test_a_subclass_is_known_when_it_changes_nothing_of_the_update():
    parameters = [nn.Parameter(torch.ones(3))]
    assert updates_by(Renamed(parameters), None) is UpdatesBy.ELEMENT
    for kind in (OwnStep, OwnGroups):
        with pytest.raises(UsageError, match=f"does not know whether {kind.__name__}"):
            updates_by(kind(parameters), None)
        assert updates_by(kind(parameters), "parameter") is UpdatesBy.ITSELF
        assert updates_by(kind(parameters), "element") is UpdatesBy.ITSELF


def test_forms_whose_bits_depend_on_the_sharing_are_refused():
    half = [nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]
    with pytest.raises(UsageError, match="Use fused=False"):
        updates_by(optim.SGD(half, lr=0.1, momentum=0.9, fused=True), None)
    assert updates_by(optim.SGD(half, lr=0.1, fused=True), None) is UpdatesBy.ELEMENT
    with warnings.catch_warnings(), pytest.raises(UsageError, match="Use --strategy ddp"):
        warnings.simplefilter("ignore")
        updates_by(optim.Adam([nn.Parameter(torch.ones(3))], differentiable=True), "element")
