"""What the notes claim, and what today's torch does: each line is measured when this runs.

    $ python examples/notes/claims.py
    address and port may be left out with env://: no, ValueError: ... MASTER_ADDR expected, but not set
    world_size alone is enough with env://: no, ValueError: ... RANK expected, but not set
    argparse's --local_rank takes the launcher's --local-rank=0: no, SystemExit: 2
    a sampler beside shuffle=True is ignored or obeyed: no, ValueError: sampler option is mutually exclusive with shuffle
    a CPU model takes device_ids=[rank]: no, ValueError: DistributedDataParallel device_ids and output_device ...
    torch.save returns the checkpoint: no, it is None
    a whole model saved without state_dict() loads by default: no, UnpicklingError: Weights only load failed...
    DistributedSampler without set_epoch shuffles every epoch anew: no, two epochs have one order
    DistributedSampler with set_epoch shuffles every epoch anew: yes
    DistributedSampler gives 91 samples to 2 ranks once each: no, 92 are given
    ranks must be equally fast: no, a collective waits for 0:30:00
    the store is a map behind plain sockets: by libuv: True

Note e: the first two, the fifth. Note b: the third, fourth, sixth, seventh. Note a: the tenth. Note d: the last.
"""

import argparse
import contextlib
import io
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLEAN = {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT", "RANK")}
dataset = TensorDataset(torch.arange(91))


def raised_by(attempt: Callable[[], object]) -> str:
    """`yes`, or `no` with the first line of what was raised."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            attempt()
        except (ValueError, SystemExit, pickle.UnpicklingError) as error:
            return f"no, {type(error).__name__}: {str(error).splitlines()[0]}"
    return "yes"


def parse_underscore() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    parser.parse_args(["--local-rank=0"])


def order(epoch: int | None) -> list[int]:
    sampler = DistributedSampler(dataset, num_replicas=2, rank=0)
    if epoch is not None:
        sampler.set_epoch(epoch)
    return list(sampler)


os.environ.clear()
os.environ.update(CLEAN)
init = dist.init_process_group
print(f"address and port may be left out with env://: {raised_by(lambda: init('gloo', rank=0, world_size=1))}")
print(f"world_size alone is enough with env://: {raised_by(lambda: init('gloo', world_size=2))}")
print(f"argparse's --local_rank takes the launcher's --local-rank=0: {raised_by(parse_underscore)}")
both = raised_by(lambda: DataLoader(dataset, shuffle=True, sampler=DistributedSampler(dataset, 2, 0)))
print(f"a sampler beside shuffle=True is ignored or obeyed: {both}")

with tempfile.TemporaryDirectory() as folder:
    init("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    on_cpu = raised_by(lambda: DistributedDataParallel(nn.Linear(2, 2), device_ids=[0]))
    print(f"a CPU model takes device_ids=[rank]: {on_cpu}")
    dist.destroy_process_group()
    path = Path(folder) / "whole.pt"
    print(f"torch.save returns the checkpoint: no, it is {torch.save(nn.Linear(2, 2), path)}")
    whole = raised_by(lambda: torch.load(path))
    print(f"a whole model saved without state_dict() loads by default: {whole}")

same = "no, two epochs have one order" if order(None) == order(None) else "yes"
print(f"DistributedSampler without set_epoch shuffles every epoch anew: {same}")
print(f"DistributedSampler with set_epoch shuffles every epoch anew: {'yes' if order(0) != order(1) else 'no'}")
given = sum(len(DistributedSampler(dataset, num_replicas=2, rank=rank)) for rank in range(2))
print(f"DistributedSampler gives 91 samples to 2 ranks once each: {'yes' if given == 91 else f'no, {given} are given'}")
print(f"ranks must be equally fast: no, a collective waits for {dist.default_pg_timeout}")
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(f"the store is a map behind plain sockets: by libuv: {store.libuvBackend}")
