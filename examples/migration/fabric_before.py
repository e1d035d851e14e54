"""Digits with Lightning Fabric.

torchrun --standalone --nproc-per-node=2 examples/migration/fabric_before.py
"""

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

digits = load_digits()
dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))

fabric = Fabric()
fabric.launch()
fabric.seed_everything(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = fabric.setup(model, optimizer)
loader = DataLoader(dataset, batch_size=64 // fabric.world_size, shuffle=True)
loader = fabric.setup_dataloaders(loader)
for _epoch in range(3):
    for x, y in loader:
        fabric.backward(F.cross_entropy(model(x), y))
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
fabric.save("digits.ckpt", {"model": model})
