"""DistributedSampler fills up the last round, so two processes count 6 of 5 samples, and one of them twice."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
is_right = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])  # of 5 test samples: 80 %
loader = DataLoader(is_right, batch_size=2, sampler=DistributedSampler(is_right, shuffle=False))
total = torch.zeros(2)
for batch in loader:
    total += torch.tensor([float(len(batch)), float(batch.sum())])
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"{total[0]:.0f} of {len(is_right)} samples, accuracy {total[1] / total[0]:.3f}")
dist.destroy_process_group()
