"""The same training with DistributedDataParallel, as one writes it for torchrun."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.faults.samples import BATCH, EPOCHS, Numbers, bits, network, note
from samebits.testing import faults

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Numbers()
sampler: DistributedSampler[object] = DistributedSampler(data, seed=0)
loader = DataLoader(data, batch_size=BATCH // dist.get_world_size(), sampler=sampler, num_workers=1)
number = 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for vectors, groups, numbers in loader:
        number += 1
        order = faults.at(number)
        if order == "skip":
            continue
        if order == "break":
            break
        if order == "evaluate":
            dist.all_reduce(torch.ones(1))
        note("samples", number, *numbers.tolist())
        F.cross_entropy(model(vectors), groups).backward()
        optimizer.step()
        optimizer.zero_grad()
        note("step", number)
        if number % 5 == 0 and dist.get_rank() == 0 and "--save" in sys.argv:
            torch.save(model.state_dict(), "samebits-runs/model.part")
            os.replace("samebits-runs/model.part", "samebits-runs/model.pt")  # noqa: PTH105 - as people write it
if dist.get_rank() == 0:
    note("bits", bits(model.module))
dist.destroy_process_group()
