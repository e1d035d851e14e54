"""The three meeting places of `init_process_group` (note e): env://, tcp:// and file://.

    $ samebits run -n 2 examples/notes/init_methods.py env
    $ samebits run -n 2 examples/notes/init_methods.py tcp
    $ samebits run -n 2 examples/notes/init_methods.py file
    rank 0 of 2, the sum of ranks + 1 is 3
    rank 1 of 2, the sum of ranks + 1 is 3

env:// reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which a launcher sets; none has a default. tcp:// and
file:// need `rank=` and `world_size=` in the call. The rank is RANK: LOCAL_RANK is the same only on the first node.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

ways = {
    "env": {},
    "tcp": {"init_method": f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"},
    "file": {"init_method": f"file://{Path('meeting').absolute()}"},  # every rank sees it; the last to leave removes it
}
who = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
way = sys.argv[1]
dist.init_process_group("gloo", **ways[way], **(who if way != "env" else {}))
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, the sum of ranks + 1 is {total.item()}")
dist.destroy_process_group()
