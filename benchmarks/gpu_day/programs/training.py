"""A loop for every strategy: layers that can be cut, dropout, AdamW. The last line is the loss, to the bit."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing import faults

BATCH = 32


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.GELU(), nn.Dropout(0.1))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--lanes", type=int, default=4)
    options = parser.parse_args()
    run = samebits.init(seed=0, lanes=options.lanes, threads=1)
    sizes = [64, *[options.width] * 4]
    layers = [block(*pair) for pair in itertools.pairwise(sizes)]
    model = nn.Sequential(*layers, nn.Linear(options.width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(options.steps * BATCH, 64)
    data = TensorDataset(inputs, inputs[:, :10].argmax(1))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, BATCH, shuffle=True))
    for step in run.steps(loader):
        faults.at(step.number)
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    run.print(f"loss {step.loss.hex()} on {run.device.type}")


if __name__ == "__main__":
    main()
