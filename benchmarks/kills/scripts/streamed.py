"""A stream without a length, shuffled and cropped with the global generators."""

import random
import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import samebits
from benchmarks.kills import notes

STEPS = int(sys.argv[1])


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        numbers = list(range(STEPS // 4 * 8))
        random.shuffle(numbers)
        for number in numbers:
            yield torch.arange(24.0)[(place := random.randrange(8)) : place + 16].sin() * (number % 5), number


run = samebits.init(seed=6, lanes=4, threads=1)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Stream(), batch_size=8))
for _ in run.epochs(4):
    for step in run.steps(loader):
        for x, numbers in step:
            notes.samples(step.number, numbers.tolist())
            run.backward(F.mse_loss(model(x), x + 0.1 * torch.randn_like(x)))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
        notes.ended(step.number)
run.save_state("end")
