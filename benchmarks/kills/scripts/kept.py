"""What a script keeps itself: values in `run.state`, an average that is tracked, a scheduler, a sum over lanes."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.kills import notes

run = samebits.init(seed=7, lanes=4, threads=1)
data = TensorDataset(torch.randn(160, 8), torch.arange(160))
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
loader = DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
run.track(average=average)
run.state.seen = 0
run.state.best = float("inf")
run.state.center = torch.zeros(8)
run.state.history = []
for _ in run.epochs(int(sys.argv[1]) // 20):
    for step in run.steps(loader):
        made = []
        for x, numbers in step:
            notes.samples(step.number, numbers.tolist())
            found = model(x)
            made.append(found.detach().sum(0))
            run.backward(F.mse_loss(found + run.state.center, x))
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        run.state.center = torch.lerp(run.state.center, run.lane_sum(made) / step.num_samples, 0.1)
        run.state.seen += step.num_samples
        run.state.best = min(run.state.best, float(step.loss))
        run.log(loss=step.loss, seen=run.state.seen, best=run.state.best)
        notes.ended(step.number)
    run.state.history.append(run.state.best)
    scheduler.step(run.state.best)
run.save_state("end")
