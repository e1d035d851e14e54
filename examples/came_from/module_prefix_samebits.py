"""`prepare` gives back the model itself, so there is no prefix."""

import torch
from torch import nn

import samebits

run = samebits.init(seed=0, lanes=4, threads=1)
model = run.prepare(nn.Linear(4, 1))
if run.is_main:
    torch.save(model.state_dict(), "net.pt")
