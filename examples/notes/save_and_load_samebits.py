"""Weights in samebits (note b): one call on every rank writes one file, and the keys are those of the plain model.

    $ samebits run -n 2 examples/notes/save_and_load_samebits.py
    rank 0 loaded: True
    rank 1 loaded: True
    keys: 0.weight, 0.bias, 2.weight, 2.bias
    the note's checkpoint.pth.tar with DDP's keys: True

The model was never wrapped, so there is no `.module`; the file is plain safetensors and needs no samebits to be read.
"""

import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


run = samebits.init(seed=0, lanes=2, threads=1)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 2)), batch_size=8, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for step in run.steps(loader):
    for inputs, targets in step:
        run.backward(nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
    optimizer.zero_grad()

run.save_weights(model, "toy.safetensors")  # no guard, no barrier: rank 0 writes, all wait
fresh = network()
samebits.load_weights(fresh, "toy.safetensors")  # onto whatever device `fresh` is on
same = all(torch.equal(mine, saved) for mine, saved in zip(fresh.parameters(), model.parameters(), strict=True))
print(f"rank {run.rank} loaded: {same}")
run.print(f"keys: {', '.join(sorted(load_file('toy.safetensors'), key=list(fresh.state_dict()).index))}")

if run.is_main:  # what a DDP script has saved: nested, with the wrapper's prefix
    saved = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"model_state_dict": saved}, "checkpoint.pth.tar")
    fresh = network()
    samebits.load_weights(fresh, "checkpoint.pth.tar")
    same = all(torch.equal(mine, other) for mine, other in zip(fresh.parameters(), model.parameters(), strict=True))
    print(f"the note's checkpoint.pth.tar with DDP's keys: {same}")
