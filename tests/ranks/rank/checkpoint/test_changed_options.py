"""Options that the script changed between two starts, and that a resumed state overrides."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader

import samebits
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios

pytestmark = pytest.mark.ranks


def train(place, options, milestones, stop_after=None, scale=1.0):
    os.chdir(place)
    os.dup2(os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)  # what forks ranks has a stderr of its own
    run = samebits.init(seed=3, lanes=2, threads=1, name="exp1", save_every="1steps")
    model = scenarios.mlp()
    optimizer = torch.optim.Adam(model.parameters(), **options)
    scheduler = MultiStepLR(optimizer, milestones, gamma=0.5)  # changes the rate in the state, not what was made
    loader = DataLoader(scenarios.digits(96), batch_size=32)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    run.state.scale, run.state.best, run.state.more = scale, float("nan"), options.get("fused")
    for _ in run.epochs(2):
        for step in run.steps(loader):
            if step.number == stop_after:
                return None
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return optimizer.param_groups[0]["lr"]


@pytest.mark.thorough
def test_an_option_that_a_state_overrides_is_named_with_both_values_at_each_start(tmp_path):
    def start(*args):
        [rate] = run_ranks(train, Started(1), str(tmp_path), *args)
        said = (tmp_path / "said.txt").read_text()
        return rate, "the script makes" in said, said

    assert not start({"lr": 0.1}, [1, 2], 3)[1]
    assert not start({"lr": 0.1}, [1, 2], 4)[1], "a scheduler changes the rate by itself"
    _, is_named, said = start({"lr": 0.01, "betas": (0.8, 0.9)}, [1, 3], 5)
    assert is_named
    for change in (
        "lr=0.01 of optimizer1, which was 0.1",
        "betas=[0.8, 0.9] of optimizer1, which was [0.9, 0.999]",
        "milestones=[1, 3] of scheduler1, which was [1, 2]",
    ):
        assert change in said
    assert "scale=0.5 of run.state, which was 1.0" in start({"lr": 0.1}, [1, 2], 6, 0.5)[2]
    assert "fused=True of optimizer1, which was None" in start({"lr": 0.1, "fused": True}, [1, 2], 7)[2]
    rate, is_named, said = start({"lr": 0.01}, [1, 2])
    assert is_named
    assert "lr=0.01 of optimizer1, which was 0.1" in said
    assert rate == pytest.approx(0.025)
