"""A script that keeps `optimizer.param_groups[0]` goes on as one that looks it up anew at every step."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios

pytestmark = pytest.mark.ranks


class Warm(LRScheduler):
    """Sets the rate through a group that it keeps itself."""

    def __init__(self, optimizer):
        self.group = optimizer.param_groups[0]
        super().__init__(optimizer)

    def get_lr(self):
        return self.base_lrs

    def step(self, epoch=None):
        self.last_epoch += 1
        self.group["lr"] = 0.01 * (1 + self.last_epoch)


def train(place, stop_after=None, scheduled=False, strategy=None):
    os.chdir(place)
    run = samebits.init(seed=3, lanes=4, threads=1, strategy=strategy, name="exp1", save_every="1steps")
    model = scenarios.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    group, clipped = optimizer.param_groups[0], optimizer.param_groups[0]["params"]
    loader = DataLoader(scenarios.digits(96), batch_size=32, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    scheduler = Warm(optimizer)
    if scheduled:
        run.prepare(scheduler)
    for _ in run.epochs(2):
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                return None
            if scheduled:
                scheduler.step()
            else:
                group["lr"] = 0.1 * min(1, step.number / 5)
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            torch.nn.utils.clip_grad_norm_(clipped, 0.5)
            optimizer.step()
            optimizer.zero_grad()
    assert group is optimizer.param_groups[0]
    return digest_of(model), [group["lr"]]


@pytest.mark.parametrize(
    ("scheduled", "strategy"),
    [(True, "ddp"), *(pytest.param(False, one, marks=pytest.mark.thorough) for one in ("ddp", "zero1"))],
)
def test_a_kept_group_counts_after_a_resumed_start(tmp_path, scheduled, strategy):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    straight.mkdir()
    broken.mkdir()
    expected = run_ranks(train, Started(2), str(straight), None, scheduled, strategy)
    run_ranks(train, Started(2), str(broken), 3, scheduled, strategy)
    assert run_ranks(train, Started(2), str(broken), None, scheduled, strategy) == expected
