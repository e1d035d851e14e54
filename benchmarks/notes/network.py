"""The network of the PyTorch tutorial that the note quotes: a ResNet-50 with bottleneck blocks, here of a CPU's size.

Runs in the ranks, under `lockstep bench` or `benchmarks.notes.figure`. Width 16 instead of 64, pictures of 64 x 64
instead of 128 x 128, a batch of 128 instead of 120: 1.5 million parameters, about 0.4 s for a step on one core.

    lockstep bench --strategies model_parallel,pipeline -m benchmarks.notes.network
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4
NUM_CLASSES = 100
LIMIT_STEPS = 5


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(images)))
        hidden = F.relu(self.norm2(self.conv2(hidden)))
        return F.relu(self.norm3(self.conv3(hidden)) + self.shortcut(images))


def resnet50(width: int = 16) -> nn.Sequential:
    """(batch, 3, 64, 64) pictures to scores of 100 classes; the tutorial's network has width 64."""
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, count in enumerate(BLOCKS):
        for number in range(count):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage and not number else 1))
            inputs = (width << stage) * EXPANSION
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, NUM_CLASSES))


def data(num_samples: int) -> TensorDataset:
    """Random pictures and classes; the same ones on every rank."""
    numbers = torch.Generator().manual_seed(0)
    pictures = torch.randn(num_samples, 3, 64, 64, generator=numbers)
    return TensorDataset(pictures, torch.randint(NUM_CLASSES, (num_samples,), generator=numbers))


def train(batch: int) -> None:
    """The loop that is measured; the same for every strategy."""
    run = lockstep.init(seed=0)
    model = resnet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(data(4 * batch), batch_size=batch)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.epochs(1000):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()


def compute_alone(batch: int, to: Path) -> None:
    """The same steps in plain PyTorch, whatever other processes do: what this machine has for each of them.

    Writes the nanoseconds of each step, and when the steps began and ended.
    """
    model = resnet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pictures, classes = data(batch).tensors
    edges = []
    for _ in range(LIMIT_STEPS + 1):
        edges.append(time.perf_counter_ns())
        F.cross_entropy(model(pictures), classes).backward()
        optimizer.step()
        optimizer.zero_grad()
    (to / f"{os.environ['RANK']}.json").write_text(json.dumps(edges))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--alone", type=Path, help="a folder: time plain steps in every rank at once, without exchange")
    options = parser.parse_args()
    if options.alone is not None:
        torch.set_num_threads(1)
        compute_alone(options.batch, options.alone)
    else:
        train(options.batch)


if __name__ == "__main__":
    main()
