"""A plain torch.distributed script: meets the other ranks over Gloo, adds a number, and notes when."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
Path(sys.argv[1], str(dist.get_rank())).write_text(str(time.monotonic_ns()))
assert value.item() == dist.get_world_size()
dist.destroy_process_group()
