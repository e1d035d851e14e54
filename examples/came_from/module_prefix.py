"""What DDP saves has other names than the model, so it does not load where there is no DDP."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = nn.Linear(4, 1)
if "load" in sys.argv:
    model.load_state_dict(torch.load("net.pt"))
    print("loaded")
else:
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(model)
    if dist.get_rank() == 0:
        torch.save(ddp.state_dict(), "net.pt")
    dist.destroy_process_group()
