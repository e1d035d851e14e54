"""Digits in samebits: what ddp_before.py, accelerate_before.py and fabric_before.py become.

samebits run -n 2 examples/migration/after.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import samebits

digits = load_digits()
dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))

run = samebits.init(seed=0, lanes=4, threads=1)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(dataset, batch_size=64, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for _epoch in run.epochs(3):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
run.save_weights(model, "digits.safetensors")
