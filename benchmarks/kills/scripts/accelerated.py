"""samebits's Accelerator: two batches of a step accumulated, dropout, a schedule, an evaluation behind each epoch."""

import sys

import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.kills import notes
from samebits.integrations.accelerate import Accelerator

STEPS, EPOCHS, BATCH, LANES = int(sys.argv[1]), 5, 4, 4

set_seed(3)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, lanes=LANES)
inputs = torch.randn(STEPS // EPOCHS * BATCH * LANES - 3, 16)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long(), torch.arange(len(inputs)))
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
train, test = DataLoader(data, BATCH, shuffle=True), DataLoader(data, 32)
model, optimizer, scheduler, train, test = accelerator.prepare(model, optimizer, scheduler, train, test)
for _ in range(EPOCHS):
    model.train()
    for features, labels, numbers in train:
        with accelerator.accumulate(model):
            notes.samples(accelerator.completed_steps, numbers.tolist())
            accelerator.backward(F.cross_entropy(model(features), labels))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.run.log(loss=accelerator.loop.loss, lr=scheduler.get_last_lr()[0])
            notes.ended(accelerator.completed_steps)
    model.eval()
    with torch.no_grad():
        right = [accelerator.gather_for_metrics(model(x).argmax(1) == y) for x, y, _ in test]
    assert len(torch.cat(right)) == len(data)
accelerator.run.save_state("end")
