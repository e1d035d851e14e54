"""Ranks on several nodes, here processes of one machine that take it for several: bits, losses, leaving, a new generation."""

import gc
import json
import os
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.distributed_c10d import PrefixStore
from torch.utils.data import DataLoader

import samebits
from samebits.errors import PeerLost
from samebits.machine.own_sockets import own_sockets
from samebits.protocol.layout.mesh import Form
from samebits.protocol.layout.placement import place, sized
from samebits.rank.strategy.agreement import tensor_hash
from samebits.rank.transport.across import Across
from samebits.rank.transport.local import native
from samebits.rank.transport.over_nodes import OverNodesTransport
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import corner_cases, embeddings, scenarios
from tests.scripts.registration import SCENARIOS
from tests.scripts.staged_models import MODELS, train
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(not native.available(), reason=native.why_not())]
__all__ = ["corner_cases", "embeddings"]  # they register

CPU = torch.device("cpu")
QUICK = (scenarios.batch_norm_and_dropout, scenarios.several_backwards)


@promise(
    "same-bits",
    "On several nodes, whatever ranks each has, and in both orders of a mesh: the bits of one rank, for "
    "training, evaluation, tallies and states, and each goes on from the other's state",
    also=[
        "test_the_bits_do_not_depend_on_the_nodes",
        "test_stages_over_nodes_have_the_bits_of_one_rank",
        "test_the_last_axis_of_a_mesh_is_the_inner_one",
        "test_training_evaluation_and_states_on_uneven_and_on_three_nodes_have_the_bits_of_one_rank",
        "test_two_agents_train_evaluate_save_and_go_on_with_the_bits_of_one_rank",
    ],
)
@pytest.mark.parametrize(
    ("scenario", "form"), list(zip(QUICK, (Form(), Form("zero1")), strict=True)), ids=["ddp", "zero1"]
)
def test_a_script_on_two_nodes_has_the_bits_of_one_rank(scenario, form):
    [alone] = run_ranks(scenario, Started(1))
    assert run_ranks(scenario, Started(3, form=form, nodes=(2, 1))) == [alone] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("nodes", [(2, 2), (1, 1), (1, 2, 1)], ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_bits_do_not_depend_on_the_nodes(scenario, nodes):
    [alone] = run_ranks(scenario, Started(1))
    assert run_ranks(scenario, Started(sum(nodes), nodes=nodes)) == [alone] * sum(nodes)


STAGED = [
    pytest.param(Form(mesh="pipeline=2,ddp=2"), (2, 2), id="stages-over-nodes"),
    pytest.param(Form(mesh="ddp=2,pipeline=2"), (2, 2), id="replicas-over-nodes", marks=pytest.mark.thorough),
    pytest.param(Form(mesh="model_parallel=2,ddp=2"), (2, 2), id="layers-over-nodes", marks=pytest.mark.thorough),
    pytest.param(Form(mesh="ddp=2,model_parallel=2"), (2, 1, 1), id="replicas-over-three", marks=pytest.mark.thorough),
    pytest.param(Form(mesh="pipeline=2,ddp=2"), (1, 2, 1), id="both-over-nodes", marks=pytest.mark.thorough),
    pytest.param(Form("model_parallel"), (2, 1), id="one-replica", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("form", "nodes"), STAGED)
def test_stages_over_nodes_have_the_bits_of_one_rank(form, nodes, tmp_path):
    [alone] = run_ranks(train, Started(1), "tokens", True, True, 2, str(tmp_path / "alone"))
    started = Started(sum(nodes), form=form, nodes=nodes)
    for result in run_ranks(train, started, "tokens", True, True, 2, str(tmp_path / "staged")):
        assert result["losses"] == alone["losses"]
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("alone", "staged")]
    assert files[0] == files[1]


EVERYWHERE = [
    pytest.param(form, nodes, id=f"{form.mesh or form.strategy} on {'+'.join(map(str, nodes))}")
    for form, nodes in (
        (Form("ddp"), (4, 2)),
        (Form("zero1"), (4, 2)),
        (Form("zero1"), (2, 1, 1)),
        (Form(mesh="pipeline=2,ddp=3"), (4, 2)),
        (Form(mesh="ddp=3,pipeline=2"), (4, 2)),
        (Form(mesh="ddp=2,model_parallel=2"), (2, 1, 1)),
        (Form("pipeline"), (2, 1, 1)),
        (Form(mesh="ddp=4,pipeline=2"), (4, 4)),
    )
]


def one_epoch(going_on, state):
    """Train one epoch from a state, if any; evaluate; save. Returns all numbers, the same on every rank."""
    run = samebits.init(seed=3, lanes=8, threads=1)
    build, data, loss_of = MODELS["tokens"]
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader, rest = DataLoader(data(), batch_size=16, shuffle=True), DataLoader(data(), batch_size=5)
    model, optimizer, loader, rest = run.prepare(model, optimizer, loader, rest)
    if going_on:
        run.load_state(going_on)
    numbers = []
    for _ in run.epochs(2 if going_on else 1):
        model.train()
        for step in run.steps(loader):
            step.backward(lambda batch: loss_of(model, *batch))
            numbers.append(run.clip_grad_norm_(model.parameters(), 0.5).hex())
            optimizer.step()
            optimizer.zero_grad()
            numbers.append(step.loss.hex())
        model.eval()
        tally, rows = run.tally(), []
        with torch.no_grad():
            for tokens, labels in rest:
                rows.append(model(tokens))
                tally.add(loss=F.cross_entropy(rows[-1], labels))
        numbers += [float(tally.mean()["loss"]).hex(), float(tally.sum()["loss"]).hex()]
        numbers.append(tensor_hash(run.gather(torch.cat(rows) if rows else torch.zeros(0, 3))))
    run.save_state(state)
    return numbers


@pytest.mark.thorough
@pytest.mark.parametrize(("form", "nodes"), EVERYWHERE)
def test_training_evaluation_and_states_on_uneven_and_on_three_nodes_have_the_bits_of_one_rank(form, nodes, tmp_path):
    def on(started, going_on, state):
        return run_ranks(one_epoch, started, going_on and str(tmp_path / going_on), str(tmp_path / state))

    alone, started = Started(1), Started(sum(nodes), form=form, nodes=nodes)
    [first], [second] = on(alone, "", "first"), on(alone, "first", "second")
    assert on(started, "", "first-there") == [first] * sum(nodes)
    assert on(started, "first", "second-there") == [second] * sum(nodes)
    assert on(alone, "first-there", "second-back") == [second]
    for one, other in (("first", "first-there"), ("second", "second-there"), ("second", "second-back")):
        files = [(tmp_path / state / "model.safetensors").read_bytes() for state in (one, other)]
        assert files[0] == files[1]


def meet(folder, generation, nodes, rank):
    store = dist.FileStore(f"{folder}/meeting-{generation}", sum(nodes))
    return OverNodesTransport(PrefixStore(f"generation {generation}", store), rank, sized(nodes))


def use(transport):
    """Every kind of exchange, between all ranks."""
    placement = place(transport.world_size, transport.world_size)
    part = transport.allocate(300_000, torch.float32, CPU)
    part.fill_(1.0)
    transport.all_reduce([part], placement, part)
    assert part[0] == part[-1] == transport.world_size
    transport.free(part)
    assert transport.all_gather_object(transport.rank) == list(range(transport.world_size))
    transport.broadcast(torch.zeros(20_000), transport.world_size - 1)


def held():
    """What a transport must not leave behind."""
    return len(own_sockets()), sorted(thread.name for thread in threading.enumerate() if "samebits" in thread.name)


def loses_a_rank(folder, victim, sleeper):
    rank = int(os.environ["RANK"])
    before = held()
    transport = meet(folder, 0, (2, 2), rank)
    use(transport)
    if rank == victim:
        os._exit(9)  # without a word
    if rank == sleeper:  # its mates on both nodes wait for the living: they must hear of it all the same
        told = [Path(folder) / f"told-{other}" for other in range(4) if other not in (victim, sleeper)]
        while not all(map(Path.exists, told)):
            time.sleep(0.01)
    with pytest.raises(PeerLost) as lost:
        use(transport)
    with pytest.raises(PeerLost):  # from now on
        transport.barrier()
    (Path(folder) / f"told-{rank}").write_text(json.dumps(lost.value.is_dead))
    gone = weakref.ref(transport)
    del transport, lost
    gc.collect()
    assert gone() is None
    assert held() == before
    rest = [other for other in range(4) if other != victim]
    again = meet(folder, 1, (1, 2) if victim < 2 else (2, 1), rest.index(rank))
    use(again)
    again.close()
    (Path(folder) / f"again-{rank}").touch()


@pytest.mark.parametrize(
    ("victim", "sleeper"), [(1, 0), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((0, 3), (3, 1)))]
)
def test_the_death_of_a_rank_reaches_all_nodes_and_the_others_can_meet_again(victim, sleeper, tmp_path):
    with pytest.raises(RankFailed, match=f"rank {victim} failed"):
        run_ranks(loses_a_rank, Started(4, nodes=(2, 2)), str(tmp_path), victim, sleeper)
    for rank in {0, 1, 2, 3} - {victim}:
        assert json.loads((tmp_path / f"told-{rank}").read_text()) is True, "somebody died"
        assert (tmp_path / f"again-{rank}").exists()


def leaves_early(folder):
    rank = int(os.environ["RANK"])
    transport = meet(folder, 0, (2, 1), rank)
    use(transport)
    if rank == 2:
        transport.close()
        return "left"
    try:
        use(transport)
    except PeerLost as lost:
        return lost.is_dead
    return "went on"


def test_a_rank_that_leaves_is_told_from_one_that_died(tmp_path):
    assert run_ranks(leaves_early, Started(3, nodes=(2, 1)), str(tmp_path)) == [False, False, "left"]


def hears_of_a_leaving_rank_from_another(folder):
    rank = int(os.environ["RANK"])
    across = Across(dist.FileStore(f"{folder}/meeting", 3), rank, range(3), range(3))
    if rank == 2:
        across.close()
        return "left"
    from_whom = 2 if rank == 0 else 0  # no message comes
    try:
        across.wait([(across.receive(torch.zeros(1), from_whom, 0), from_whom)], "a message")
    except PeerLost as lost:
        across.cut()
        return lost.is_dead
    return "went on"


def test_who_lost_a_rank_that_left_is_not_taken_for_dead(tmp_path):
    ranks = run_ranks(hears_of_a_leaving_rank_from_another, Started(3), str(tmp_path))
    assert ranks == [False, False, "left"]
