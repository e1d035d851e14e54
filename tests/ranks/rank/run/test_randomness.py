"""Random numbers that one rank draws alone, and seeds inside lanes, are noted once; what all ranks do alike is not."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_evaluation import lines_with
from torch.utils.data import DataLoader

import samebits
from samebits.protocol.layout.stream_key import Domain
from samebits.rank.init.random_streams import Streams
from samebits.rank.position.moment import LoopPosition, Region
from samebits.rank.recording.calm import calm_random_numbers
from samebits.testing.ranks import Started, run_ranks
from tests.scripts.scenarios import digits, mlp

pytestmark = pytest.mark.ranks


counted = iter(range(1000))


def forked():
    with torch.random.fork_rng():
        torch.manual_seed(5)


DRAWS = {
    "nothing": lambda run: None,
    "torch": lambda run: run.is_main and torch.rand(1),
    "numpy": lambda run: run.is_main and np.random.rand(),
    "random": lambda run: run.rank == 1 and random.random(),
    "one more": lambda run: torch.rand(run.rank + 1),
    "alike": lambda run: (torch.rand(3), np.random.rand(3), random.random()),
    "a counter as seed": lambda run: torch.manual_seed(next(counted)),
    "a seed put back": lambda run: forked(),
}


def train(places):
    """Two epochs that draw at the given places: "step", "lane" and "between" to names of `DRAWS`."""
    draw = {
        place: DRAWS[name]
        for place, name in ({"step": "nothing", "lane": "nothing", "between": "nothing"} | places).items()
    }
    run = samebits.init(seed=1, lanes=4)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), 32, shuffle=True))
    for _ in run.epochs(2):
        for step in run.steps(loader):
            draw["step"](run)
            for images, labels in step:
                draw["lane"](run)
                run.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            draw["step"](run)
        draw["between"](run)


@pytest.mark.parametrize("draw", ["torch", "numpy", "random", "one more"])
def test_a_rank_that_draws_alone_is_said_once(draw):
    assert len(lines_with("drew different random numbers", train, 2, {"step": draw})) == 1


def test_a_rank_that_draws_alone_between_epochs_is_said_once():
    [line] = lines_with("drew different random numbers", train, 3, {"between": "torch"})
    assert "ranks 1, 2 drew" in line
    assert "before step 6" in line


def test_what_all_ranks_draw_alike_or_in_lanes_is_not_said():
    assert lines_with("samebits:", train, 2, {"step": "alike", "between": "alike", "lane": "one more"}) == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_seed_inside_of_a_lane_is_said_once_at_the_loops_line(ranks):
    [line] = lines_with("torch.manual_seed", train, ranks, {"lane": "a counter as seed"})
    assert "test_randomness.py:" in line


def test_a_seed_that_is_put_back_is_not_said():
    assert lines_with("torch.manual_seed", train, 1, {"lane": "a seed put back"}) == []


def test_the_noise_of_the_row_plain_is_no_seed_of_the_script():
    assert run_ranks(_seeded_by_noise, Started(1)) == [(False, False)]


def _seeded_by_noise():
    place, streams = LoopPosition(Region.LANE), Streams(0, torch.device("cpu"))
    calm_random_numbers(place, streams)
    streams.enter(Domain.LANE, 1, 0)
    before = streams.was_seeded()
    torch.randn(3)
    return before, streams.was_seeded()
