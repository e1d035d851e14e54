"""`run.per_lane`: what a lane hands on to itself has the same bits on any number of ranks, after a kill and a resume too."""

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.support.launching import run_script, said

pytestmark = pytest.mark.ranks
ROOT = Path(__file__).parents[4]
SENTENCES = torch.randn(52, 5, 8, generator=torch.Generator().manual_seed(3))


def train(place=None, stop_after=None, lanes=4, dies=0):
    """A GRU that goes on from its last hidden state, a list that grows in place, and rows of all lanes."""
    saving = {}
    if place is not None:
        os.chdir(place)
        saving = {"name": "exp1", "save_every": "1steps"}
    run = samebits.init(seed=1, lanes=lanes, threads=1, **saving)
    model = nn.ModuleList([nn.GRU(8, 6, batch_first=True), nn.Linear(6, 1)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(SENTENCES), batch_size=16)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    hidden, seen = run.per_lane(lambda: 0.1 * torch.randn(1, 1, 6)), run.per_lane(list)
    for epoch in run.epochs(2):
        if epoch == 1:
            hidden.reset()
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                return "stopped"
            if step.number == dies and run.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            rows = []
            for (x,) in step:
                out, new = model[0](x, hidden.value.expand(1, len(x), 6).contiguous())
                hidden.value = new.detach().mean(1, keepdim=True)
                seen.value.append(float(x.mean()))
                rows.append(new[0, : len(x) // 2 + step.lane].detach())
                run.backward((model[1](out).squeeze(-1) - x.mean(2)).pow(2).mean() * (1 + seen.value[0]))
            optimizer.step()
            optimizer.zero_grad()
            run.log(rows=float(run.lane_cat(rows)[-1, 0]), count=len(run.lane_cat(rows)))
    return digest_of(model, hidden, seen)


def leave(kind):
    """A mistake."""
    run = samebits.init(seed=1, lanes=4, threads=1)
    model = nn.Linear(8, 1)
    loader = DataLoader(TensorDataset(SENTENCES.mean(1)), batch_size=16)
    model, loader = run.prepare(model, loader)
    kept = run.per_lane(torch.zeros(1) if kind == "value" else lambda: None)
    if kind == "outside":
        return kept.value
    for step in run.steps(loader):
        for (x,) in step:
            loss = model(x).mean()
            kept.value = loss if kind == "graph" else object()
    return None


MISTAKES = {
    "value": "run.per_lane takes a function that makes a lane's first value, but got a Tensor",
    "outside": "A value for each lane is known inside the step's lanes only",
    "graph": "must not hold a graph of this step",
    "object": "the value of a lane is a object, which cannot be saved without pickle",
}


@pytest.fixture(scope="module")
def undisturbed():
    return run_ranks(train, Started(1))[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_lane_goes_on_from_what_it_left_itself(undisturbed, ranks):
    assert run_ranks(train, Started(ranks)) == [undisturbed] * ranks


def test_the_values_go_on_with_the_run_on_another_number_of_ranks(tmp_path, undisturbed):
    assert run_ranks(train, Started(2), str(tmp_path), 5) == ["stopped"] * 2
    assert run_ranks(train, Started(1), str(tmp_path)) == [undisturbed]


def test_a_state_of_other_lanes_is_one_sentence(tmp_path):
    assert run_ranks(train, Started(2), str(tmp_path), 3) == ["stopped"] * 2
    with pytest.raises(RankFailed, match=r"values of run\.per_lane for 4 lanes, but this run has 2"):
        run_ranks(train, Started(1), str(tmp_path), None, 2)


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_one_sentence(kind):
    with pytest.raises(RankFailed) as caught:
        run_ranks(leave, Started(1), kind)
    assert MISTAKES[kind] in caught.value.message


@pytest.mark.thorough
def test_a_killed_rank_takes_no_value_with_it(tmp_path):
    script = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from tests.ranks.rank.run.test_per_lane import train
        train(dies=int(sys.argv[1]))
    """
    whole, killed = (run_script(tmp_path, script, "-n", "2", args=(dies,)) for dies in ("0", "6"))
    assert said(killed, "restart")
    assert killed.bits == whole.bits
