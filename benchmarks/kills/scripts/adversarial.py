"""A GAN: two networks, two optimizers, two passes in each step."""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.kills import notes

run = samebits.init(seed=2, lanes=4, threads=1)
data = TensorDataset(torch.randn(160, 8), torch.arange(160))
maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
judge = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.9))
loader = DataLoader(data, batch_size=8, shuffle=True)
maker, judge, of_maker, of_judge, loader = run.prepare(maker, judge, of_maker, of_judge, loader)


def verdict(x: Tensor, is_real: float) -> Tensor:
    scores = judge(x)
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, is_real))


for _ in run.epochs(int(sys.argv[1]) // 20):
    for step in run.steps(loader):
        for x, numbers in step:
            notes.samples(step.number, numbers.tolist())
            run.backward(verdict(x, 1.0) + verdict(maker(torch.randn(len(x), 4)).detach(), 0.0))
        of_judge.step()
        of_judge.zero_grad()
        of_maker.zero_grad()
        run.log(judged=step.loss)
        for x, _ in step:
            run.backward(verdict(maker(torch.randn(len(x), 4)), 1.0))
        of_maker.step()
        of_maker.zero_grad()
        of_judge.zero_grad()
        run.log(made=step.loss)
        notes.ended(step.number)
run.save_state("end")
