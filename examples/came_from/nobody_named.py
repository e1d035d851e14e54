"""Rank 1 is busy with something else and does not come to the exchange: the others time out, and nobody says who is missing."""

import datetime as dt
import time

import torch
import torch.distributed as dist


def looks_at_samples():
    time.sleep(60)  # a lock, a dead disk, a download


dist.init_process_group("gloo", timeout=dt.timedelta(seconds=10))  # 30 minutes, if nobody says so
for step in range(4):
    if step == 2 and dist.get_rank() == 1:
        looks_at_samples()
    dist.all_reduce(torch.ones(4))
