"""A mean teacher with BatchNorm: an average in training mode that the loss asks, and rows of all lanes in a bank."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.kills import notes

run = samebits.init(seed=9, lanes=4, threads=1)
data = TensorDataset(torch.randn(240, 8), torch.arange(240))
student = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))
optimizer = torch.optim.SGD(student.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
teacher = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.9))
loader = DataLoader(data, batch_size=12, shuffle=True)
student, optimizer, teacher, loader = run.prepare(student, optimizer, teacher, loader)
run.state.bank = torch.zeros(24, 8)
for _ in run.epochs(int(sys.argv[1]) // 20):
    for step in run.steps(loader):
        made = []
        for x, numbers in step:
            notes.samples(step.number, numbers.tolist())
            with torch.no_grad():
                wanted = teacher(x + 0.1 * torch.randn_like(x))
            made.append(wanted)
            found = student(x)
            run.backward(
                F.mse_loss(found, wanted) + F.mse_loss(found, x) + 0.1 * (found @ run.state.bank.T).logsumexp(1).mean()
            )
        optimizer.step()
        optimizer.zero_grad()
        teacher.update_parameters(student)
        run.state.bank = torch.cat([run.state.bank, run.lane_cat(made)])[-24:]
        run.log(loss=step.loss)
        notes.ended(step.number)
run.save_state("end")
