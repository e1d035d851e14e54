"""A student that learns from its own average (DINO): the teacher follows after each step, and so does its centre.

samebits run -n 2 examples/recipes/ema_teacher.py
"""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

images = torch.tensor(load_digits().data / 16, dtype=torch.float32)

run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32))
teacher = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(images), batch_size=128, shuffle=True)
model, teacher, optimizer, loader = run.prepare(model, teacher, optimizer, loader)
run.state.center = torch.zeros(32)

for _epoch in run.epochs(12):
    for step in run.steps(loader):
        made = []
        for (x,) in step:
            guess = model(x + 0.2 * torch.randn_like(x))
            target = teacher(x + 0.2 * torch.randn_like(x))
            made.append(target.sum(0))
            wanted = F.softmax((target - run.state.center) / 0.04, 1)
            run.backward(F.cross_entropy(guess / 0.1, wanted))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, new in zip(teacher.parameters(), model.parameters(), strict=True):
                mean.lerp_(new, 0.05)
        shift = run.lane_sum(made) / step.num_samples
        run.state.center = torch.lerp(run.state.center, shift, 0.1)
        run.log(loss=step.loss)
