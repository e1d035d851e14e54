"""`dp` on real GPUs. Skipped where there are fewer than two."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 10))
        self.devices = []

    def forward(self, inputs):
        self.devices.append((inputs.device.index, len(inputs)))
        return self.layers(inputs)


def train():
    run = samebits.init(seed=0)
    model = Net()
    keys = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(100, 64)
    data = TensorDataset(inputs, inputs[:, :10].argmax(1))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=30))
    losses = []
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(step.loss))
    assert list(model.state_dict()) == keys
    return losses, model.devices


def test_two_gpus_share_each_batch_and_learn_as_one():
    [(split, seen)] = run_ranks(train, Started(1, device="cuda", form=Form("dp", "dp=2")))
    [(whole, _)] = run_ranks(train, Started(1, device="cuda"))
    assert split == pytest.approx(whole, rel=1e-4)
    assert sorted(seen) == sorted([(0, 15), (1, 15)] * 3 + [(0, 5), (1, 5)])


def test_more_replicas_than_gpus_is_one_sentence():
    count = torch.cuda.device_count() + 1
    with pytest.raises(RankFailed, match=f"{count} replicas need {count} GPUs"):
        run_ranks(train, Started(1, device="cuda", form=Form("dp", f"dp={count}")))
