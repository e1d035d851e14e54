"""Cutting models into stages: the balance, the schedules, what a trace sees."""

import json
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss

from samebits.errors import UsageError
from samebits.protocol.layout.cut import StepCut
from samebits.protocol.layout.mesh import Form, choose_mesh
from samebits.protocol.layout.placement import place
from samebits.protocol.layout.schedule import TOLERANCE, Kind, balance, schedule
from samebits.rank.strategy.agreement import spans_devices
from samebits.rank.strategy.choice import on_several_devices
from samebits.rank.strategy.replica.replica import Replica
from samebits.rank.strategy.stages.cutting.first_lane import WatchedCall
from samebits.rank.strategy.stages.cutting.model_cut import ModelCut, allowed_candidates, decide_cut
from samebits.rank.strategy.stages.cutting.module_marks import StatePlace
from samebits.rank.transport.alone import AloneTransport
from tests.support.promises import promise


def stages_of(costs, bounds):
    edges = [0, *bounds, len(costs)]
    return [sum(costs[start:end]) for start, end in pairwise(edges)]


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=9), st.integers(1, 4))
def test_no_cut_is_much_better_than_the_balanced_one(costs, num_stages):
    if num_stages > len(costs):
        with pytest.raises(ValueError, match="cannot make"):
            balance(costs, num_stages)
        return
    found = balance(costs, num_stages)
    assert len(found) == num_stages - 1
    assert list(found) == sorted(set(found))

    def every(start, stages):
        if stages == 1:
            yield ()
        else:
            for end in range(start + 1, len(costs) - stages + 2):
                yield from ((end, *rest) for rest in every(end, stages - 1))

    best = min(max(stages_of(costs, bounds)) for bounds in every(0, num_stages))
    assert max(stages_of(costs, found)) <= best * (1 + TOLERANCE) + 1e-9


@promise(
    "shares-of-an-update-stages-of-a-model",
    "Ten nearly equal layers on two stages are cut 5 + 5; every schedule does each forward and backward "
    "once, never waits for ever, and idles (p - 1) / m of the ideal time",
    also=["test_a_schedule_does_everything_once_and_idles_as_the_formula_says"],
)
@given(st.lists(st.floats(0.96, 1.04), min_size=10, max_size=10))
def test_ten_nearly_equal_layers_are_cut_five_and_five(costs):
    assert balance(costs, 2) == (5,)


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(1, 12))
def test_a_schedule_does_everything_once_and_idles_as_the_formula_says(name, stages, micro_batches):
    made = schedule(name, stages, micro_batches)
    made.check()
    ideal = 3.0 * micro_batches
    assert made.simulate([1.0] * stages).total_s == pytest.approx(ideal * (1 + (stages - 1) / micro_batches))
    held, most = 0, 0
    for action in made.stages[0]:
        held += 1 if action.kind is Kind.FORWARD else -1
        most = max(most, held)
    assert most == (micro_batches if name == "gpipe" else min(stages + (stages > 1), micro_batches))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_two_stages_wait_for_a_message_once_in_each_direction(name):
    made = schedule(name, 2, 16)
    alone = made.simulate([1.0, 1.0]).total_s
    assert made.simulate([1.0, 1.0], message_s=0.2).total_s == pytest.approx(alone + 2 * 0.2)


def test_a_schedule_prints_itself_and_a_wrong_one_is_found():
    made = schedule("1f1b", 2, 3)
    assert str(made).splitlines() == [
        "1f1b: 2 stages, 3 micro-batches, 25% idle",
        "stage 0  F0 F1 F2    B0 B0    B1 B1    B2 B2",
        "stage 1     F0 B0 B0 F1 B1 B1 F2 B2 B2",
    ]
    backwards_first = tuple(sorted(made.stages[1], key=lambda action: action.kind is Kind.FORWARD))
    with pytest.raises(ValueError, match="waits forever"):
        type(made)("wrong", 3, (made.stages[0], backwards_first)).check()
    with pytest.raises(ValueError, match="in the order"):
        type(made)("short", 3, (made.stages[0][:-1], made.stages[1])).check()


@given(st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_each_rank_has_one_place_in_the_mesh(replicas, stages, stages_inside):
    axes = [f"pipeline={stages}", f"ddp={replicas}"]
    mesh = choose_mesh(Form(mesh=",".join(reversed(axes) if stages_inside else axes)), replicas * stages)
    places = {(mesh.replica(rank), mesh.stage(rank)) for rank in range(mesh.num_ranks)}
    assert len(places) == replicas * stages
    assert all(mesh.rank(mesh.replica(rank), mesh.stage(rank)) == rank for rank in range(mesh.num_ranks))
    assert sorted(rank for stage in range(stages) for rank in mesh.peers(stage)) == list(range(mesh.num_ranks))
    assert sorted(rank for replica in range(replicas) for rank in mesh.members(replica)) == list(range(mesh.num_ranks))


@pytest.mark.parametrize(
    ("form", "replicas", "words"),
    [
        (Form(mesh="pipeline=3,ddp=2"), [(0, 2, 4), (1, 3, 5)], "pipeline, 3 stages x 2 replicas, 1f1b"),
        (Form(mesh="ddp=2,pipeline=3"), [(0, 1, 2), (3, 4, 5)], "pipeline, 2 replicas x 3 stages, 1f1b"),
        (Form(mesh="ddp=2,mp=3"), [(0, 1, 2), (3, 4, 5)], "model_parallel, 2 replicas x 3 stages"),
        (Form("model_parallel", "ddp=2"), [(0, 2, 4), (1, 3, 5)], "model_parallel, 3 stages x 2 replicas"),
        (Form("pipeline"), [(0, 1, 2, 3, 4, 5)], "pipeline, 6 stages, 1f1b"),
    ],
    ids=str,
)
def test_the_last_axis_of_a_mesh_is_the_inner_one(form, replicas, words):
    mesh = choose_mesh(form, 6)
    assert [mesh.members(replica) for replica in range(mesh.replicas)] == replicas
    assert str(mesh) == words


@pytest.mark.parametrize(
    ("form", "ranks", "sentence"),
    [
        (Form("magic"), 2, "There is no strategy 'magic'"),
        (Form("single"), 2, "for one rank, but there are 2"),
        (Form("pp", "mp=2"), 2, "do not fit together"),
        (Form(mesh="pp=2,ddp=3"), 4, "needs 6 ranks, but there are 4"),
        (Form(mesh="pp"), 4, "Write names and sizes"),
        (Form(mesh="pp=0"), 4, "Write names and sizes"),
        (Form(mesh="pp=2,mp=2"), 4, "a mesh has ddp and one of"),
        (Form(mesh="hogwild=2"), 2, "a mesh has ddp and one of"),
        (Form("ddp", schedule="gpipe"), 2, "belongs to the strategy `pipeline`"),
        (Form("pp", schedule="zero"), 2, "There is no schedule 'zero'"),
        (Form("ddp", "ddp=3"), 4, "Leave it out"),
    ],
)
def test_what_cannot_be_true_together_is_one_sentence(form, ranks, sentence):
    with pytest.raises(UsageError, match=sentence):
        choose_mesh(form, ranks)


class Net(nn.Module):
    """Ten equal layers, a constant buffer, a parameter of its own, and BatchNorm."""

    def __init__(self, num_layers=10, size=64):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))
        self.register_buffer("shift", torch.ones(size))
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(num_layers))
        self.norm = nn.BatchNorm1d(size)

    def forward(self, x):
        x = x * self.scale
        for layer in self.layers:
            x = layer(x) + self.shift
        return self.norm(x)


def cut_of(model, inputs, num_stages=2, wanted=()):
    watched = WatchedCall(model, lambda: model(inputs), torch.device("cpu"))
    with watched.going_back():
        watched.take_result().sum().backward()
    places = allowed_candidates("Net", watched.trace, num_stages, wanted)
    return decide_cut(watched.trace, places, watched.costs(places), num_stages)


def test_a_watched_call_finds_every_parameter_and_a_cut_survives_its_words():
    model, inputs = Net(), torch.randn(8, 64)
    cut = cut_of(model, inputs, 3)
    written = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert set(cut.holders) == {name for name, _ in model.named_parameters()} | written
    assert cut.holders["scale"] == 0
    cut = replace(cut, changing=(StatePlace("layers.0", "calls"), StatePlace(None, "Net.calls")))
    assert ModelCut.decode(json.loads(json.dumps(cut.encode()))) == cut
    assert cut_of(model, inputs, 2, ["layers.7"]).stages[1].layers == ("layers.7", "layers.8", "layers.9", "norm")


def test_ten_equal_layers_that_are_measured_once_are_cut_about_in_the_middle():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # others on the machine count little then
    try:
        stages = cut_of(Net(size=512), torch.randn(64, 512)).stages
    finally:
        torch.set_num_threads(threads)
    assert 4 <= sum(name.startswith("layers") for name in stages[0].layers) <= 6
    assert all(stage.cost_s > 0 for stage in stages)


class Reused(nn.Module):
    """One layer called four times, and a table that is used at both ends."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 16), nn.Sequential(nn.Linear(16, 16), nn.Tanh())

    def forward(self, numbers):
        x = self.table(numbers)
        for _ in range(4):
            x = self.layer(x)
        return x @ self.table.weight.t()


def test_parameters_of_several_stages_belong_to_the_first_and_are_lent_to_the_others():
    cut = cut_of(Reused(), torch.randint(0, 7, (8, 3)), 3, ["layer:2", "layer:4"])
    assert cut.holders == {"table.weight": 0, "layer.0.weight": 0, "layer.0.bias": 0}
    assert [stage.borrowed for stage in cut.stages] == [(), tuple(cut.holders), tuple(cut.holders)]
    assert [stage.entry and (stage.entry.layer, stage.entry.number) for stage in cut.stages] == [
        None,
        ("layer", 2),
        ("layer", 4),
    ]
    with pytest.raises(UsageError, match="called several times, so say which call, such as layer:2"):
        cut_of(Reused(), torch.randint(0, 7, (8, 3)), 2, ["layer"])


def gradients(strategy, model, inputs):
    strategy.adopt([model])
    current = strategy.begin_pass(StepCut(1, (4, 4), (1.0, 1.0)), "test.py:1")
    for lane in (0, 1):
        opened = current.begin_lane(lane)
        opened.backward(mse_loss(model(inputs[lane]), torch.ones(4, 64)), None)
        opened.end()
    result = current.end({}, 0)
    strategy.close()
    return result.loss, [parameter.grad.clone() for parameter in model.parameters()], dict(model.named_buffers())


class Tied(Net):
    """A layer that is called twice, a weight that is used at the end too, a result with a name."""

    def forward(self, x):
        x = self.layers[0](super().forward(self.layers[0](x)))
        return OrderedDict(result=x @ self.layers[1].weight)["result"]


@promise(
    "shares-of-an-update-stages-of-a-model",
    "Stages on several devices of one process have the bits of one device, also after a resume; so has a "
    "model that its author put on two GPUs",
    also=[
        "test_stages_on_several_gpus_have_the_bits_of_one_gpu_and_go_on_with_them",
        "test_a_model_that_its_author_put_on_two_gpus_has_the_bits_of_one",
    ],
)
@pytest.mark.parametrize("net", [Net, Tied])
def test_stages_on_several_devices_of_a_process_have_the_bits_of_one(net):
    inputs = torch.randn(2, 4, 64)
    results = []
    for make in (
        lambda alone, lanes: Replica("single", alone, lanes),
        lambda alone, lanes: on_several_devices(alone, lanes, [torch.device("cpu")] * 3),
    ):
        torch.manual_seed(0)
        results.append(gradients(make(AloneTransport(), place(2, 1)), net(), inputs))
    (loss, grads, buffers), (other_loss, other_grads, other_buffers) = results
    assert loss == other_loss
    assert all(map(torch.equal, grads, other_grads))
    assert all(torch.equal(value, other_buffers[name]) for name, value in buffers.items())


def test_a_module_that_spans_devices_is_known():
    assert not spans_devices(Net())
    assert spans_devices(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")))
