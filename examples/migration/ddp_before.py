"""Digits with torch's DistributedDataParallel, as people write it.

torchrun --standalone --nproc-per-node=2 examples/migration/ddp_before.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

digits = load_digits()
dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

local_rank = int(os.environ["LOCAL_RANK"])
on_gpu = torch.cuda.is_available()
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
dist.init_process_group("nccl" if on_gpu else "gloo")
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=64 // dist.get_world_size(), sampler=sampler)
device_ids = [local_rank] if on_gpu else None
model = DistributedDataParallel(model.to(device), device_ids=device_ids)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "digits.pt")
dist.destroy_process_group()
