"""Pictures that two loader workers fetch and crop at random; they stay from epoch to epoch."""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import samebits
from benchmarks.kills import notes


class Pictures(Dataset[tuple[Tensor, int, int]]):
    def __init__(self) -> None:
        self.pictures = torch.randn(160, 12, 12, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        top, left = np.random.randint(0, 4, 2)
        picture = self.pictures[index, top : top + 8, left : left + 8]
        return picture + 0.1 * torch.randn(8, 8), index % 3, index


run = samebits.init(seed=4, lanes=4, threads=1)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(Pictures(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for _ in run.epochs(int(sys.argv[1]) // 20):
    for step in run.steps(loader):
        for x, y, numbers in step:
            notes.samples(step.number, numbers.tolist())
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
        notes.ended(step.number)
run.save_state("end")
