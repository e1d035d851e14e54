"""A death in the middle of sums, which overwrite what they are made of: the step begins again, with the same bits."""

import pytest

from tests.ranks.launcher.test_killed_ranks import straight
from tests.support.launching import run_script

pytestmark = pytest.mark.ranks

TRAIN = """
import functools, signal, sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.rank.transport import shared_memory

kind, *kills = sys.argv[1:]
kills = [kill.split(":") for kill in kills]
at = None


def fatal(kind, name):
    inner = getattr(kind, name)

    def call(*args, **kwargs):
        for rank, step, where, number, after_us in kills:
            mark = Path(f"killed-{rank}-{step}-{where}")
            if at is not None and (int(rank), int(step), where) == (run.rank, at, name) and not mark.exists():
                if count[name] == int(number):
                    mark.touch()
                    signal.setitimer(signal.ITIMER_REAL, max(int(after_us), 1) * 1e-6)
                    if not int(after_us):
                        signal.pause()
        count[name] += 1
        return inner(*args, **kwargs)

    setattr(kind, name, call)


run = samebits.init(seed=3, lanes=3 if kind == "kept" else 5, threads=1)
CALLS = "advance", "finish", "broadcast"
count = dict.fromkeys(CALLS, 0)
for name in CALLS:
    fatal(shared_memory.SharedMemoryTransport if name == "broadcast" else shared_memory._TreeSum, name)
dtype = torch.bfloat16 if kind == "half" else torch.float32
model = nn.Sequential(nn.Linear(64, 9000), nn.Tanh(), nn.Linear(9000, 250), nn.Tanh(), nn.Linear(250, 8)).to(dtype)
x, y = torch.randn(80, 64, dtype=dtype), torch.randn(80, 8, dtype=dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True))
gradients = functools.lru_cache(maxsize=1)(lambda number: [parameter.grad for parameter in model.parameters()])
for epoch in run.epochs(1):
    for step in run.steps(loader):
        at, count = step.number, dict.fromkeys(CALLS, 0)
        for a, b in step:
            run.backward((model(a) - b).square().mean())
        optimizer.step()
        if kind == "kept" and run.rank == 0:
            gradients(step.number)
        if kind != "accumulates" or step.number % 3 == 0:
            optimizer.zero_grad()
        run.log(loss=step.loss)
at = None
"""

KILLS = (
    "1:1:advance:0:0",
    "2:2:advance:1:40",
    "0:3:finish:1:0",
    "1:4:finish:0:100",
    "2:5:advance:1:100",
    "0:6:advance:0:200",
)
"""Rank, step, before which call of the rank in it, and how many microseconds after it; 0: at once."""
MORE = (
    "0:2:advance:2:0",
    "2:4:advance:2:60",
    "0:5:advance:1:110",
    "2:7:finish:1:0",
)


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("accumulates", "ddp"),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in (("plain", "ddp"), ("plain", "zero1"), ("half", "ddp"), ("kept", "zero1"), ("kept", "ddp"))
        ),
    ],
)
def test_a_death_in_the_middle_of_sums_spoils_none(tmp_path, kind, strategy):
    """Also sums in another dtype, where a rank keeps gradients, and where they are kept into the next pass."""
    ends = {}
    for ranks, kills in (("2", ()), ("3", KILLS + MORE)):
        folder = tmp_path / ranks
        folder.mkdir()
        options = ("-n", ranks, "--strategy", strategy, "--max-restarts", "20")
        ends[ranks] = run_script(folder, TRAIN, *options, args=(kind, *kills))
    assert straight(ends["2"]) == straight(ends["3"])
    died = len(list((tmp_path / "3").glob("killed-*")))
    assert died >= 3
    if strategy == "ddp":
        assert ends["3"].err.count("kept in memory") >= died - 2, ends["3"].err  # those of the first step have none
