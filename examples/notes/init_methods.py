"""The three meeting places of `init_process_group` (note e): env://, tcp:// and file://, one after another in a program.

    $ lockstep run -n 2 examples/notes/init_methods.py
    rank 0 of 2 met by env://, the sum of ranks + 1 is 3
    rank 1 of 2 met by env://, the sum of ranks + 1 is 3
    rank 0 of 2 met by tcp://, the sum of ranks + 1 is 3
    rank 1 of 2 met by tcp://, the sum of ranks + 1 is 3
    rank 0 of 2 met by file://, the sum of ranks + 1 is 3
    rank 1 of 2 met by file://, the sum of ranks + 1 is 3

env:// reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which a launcher sets; none of them has a default. tcp:// and
file:// need `rank=` and `world_size=` in the call. The rank is RANK: LOCAL_RANK is the same only on the first node.
Under a launcher tcp:// takes the launcher's address. With a port of your own rank 0 does not listen either (torchrun's
TORCHELASTIC_USE_AGENT_STORE=True makes every rank a client), and all wait for half an hour.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def met_by(name: str, **how: object) -> Iterator[None]:
    dist.init_process_group("gloo", **how)
    ones = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(ones)
    sum_ = int(ones.item())
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} met by {name}, the sum of ranks + 1 is {sum_}")
    try:
        yield
    finally:
        dist.destroy_process_group()


with met_by("env://"):
    folders = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folders)  # file:// needs a path that all ranks see
meeting = Path(folders[0]) / "meeting"

address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
with met_by("tcp://", init_method=f"tcp://{address}", rank=RANK, world_size=WORLD_SIZE):
    pass
with met_by("file://", init_method=f"file://{meeting}", rank=RANK, world_size=WORLD_SIZE):
    pass
with met_by("env://"):  # again: when all are here, all have left the file
    pass
if RANK == 0:
    shutil.rmtree(folders[0])
