"""DistributedSampler shuffles, but without set_epoch every epoch has the order of the first."""

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
data = range(16)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=True))
for epoch in range(3):
    first = next(iter(loader)).tolist()
    if dist.get_rank() == 0:
        print(f"epoch {epoch} begins with {first}")
dist.destroy_process_group()
