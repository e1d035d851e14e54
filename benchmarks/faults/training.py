"""The training that faults happen to, with samebits: `samebits run -n 2 -m benchmarks.faults.training`."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import samebits
from benchmarks.faults.samples import BATCH, EPOCHS, Numbers, bits, network, note
from samebits.testing import faults

run = samebits.init(seed=0, lanes=4, threads=1)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(Numbers(), batch_size=BATCH, shuffle=True, num_workers=1)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for _ in run.epochs(EPOCHS):
    for step in run.steps(loader):
        order = faults.at(step.number)
        if order == "skip":
            continue
        if order == "break":
            break
        if order == "evaluate":
            run.sum(1.0)
        for vectors, groups, numbers in step:
            note("samples", step.number, *numbers.tolist())
            run.backward(F.cross_entropy(model(vectors), groups))
        optimizer.step()
        optimizer.zero_grad()
        note("step", step.number)
if run.is_main:
    note("bits", bits(model))
