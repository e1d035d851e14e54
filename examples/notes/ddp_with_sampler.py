"""DistributedDataParallel with a DistributedSampler (note a): 90 samples on 2 ranks, 45 + 45, in batches of 30 and 15.

    $ samebits run -n 2 --threads 1 examples/notes/ddp_with_sampler.py
    the number of cpu threads: 1
    Model 0, input size: torch.Size([30, 5]), output size: torch.Size([30, 2])
    Model 0, input size: torch.Size([15, 5]), output size: torch.Size([15, 2])
    Model 1, input size: torch.Size([30, 5]), output size: torch.Size([30, 2])
    Model 1, input size: torch.Size([15, 5]), output size: torch.Size([15, 2])

Plain torch: `torchrun --standalone --nproc-per-node=2` runs the same file. `ddp_with_sampler_samebits.py` is the same
without sampler and wrapper.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

local_rank = int(os.environ["LOCAL_RANK"])  # not dist.get_rank(): the second node's first rank is 2, its device 0
on_gpu = torch.cuda.is_available()
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
print(f"the number of cpu threads: {torch.get_num_threads()}")

dataset = TensorDataset(torch.randn(90, 5, generator=torch.Generator().manual_seed(0)))  # the same on every rank
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=30, sampler=sampler)  # 30 is per rank: 60 samples in one step
model = DistributedDataParallel(nn.Linear(5, 2).to(device), device_ids=[local_rank] if on_gpu else None)

for epoch in range(1):
    sampler.set_epoch(epoch)  # without this every epoch has the same order
    for (samples,) in loader:
        output = model(samples.to(device))
        print(f"Model {dist.get_rank()}, input size: {samples.size()}, output size: {output.size()}")

dist.destroy_process_group()
