"""A script from its first line to the end of its first step, as a user would write it for each side.

lockstep run -n 2 -m benchmarks.in_rank.first_step --model gpt-124m --side lockstep --to noted.json
torchrun --standalone --nproc-per-node 2 -m benchmarks.in_rank.first_step --model gpt-124m --side ddp --to noted.json
"""

from __future__ import annotations

import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.in_rank.contestants import adamw
from benchmarks.in_rank.options import rank_parser
from benchmarks.in_rank.works import WORKS, Work


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def with_lockstep(work: Work) -> tuple[int, int]:
    """Rank, and nanoseconds of `run.prepare`."""
    import lockstep  # the other side must not have it  # noqa: PLC0415

    model, data, batch = work
    run = lockstep.init(seed=0)
    loader = DataLoader(data, batch_size=batch * run.world_size)
    began = time.perf_counter_ns()
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    prepared = time.perf_counter_ns() - began
    for step in run.steps(loader):
        for inputs, targets in step:
            run.backward(loss_of(model, inputs, targets))
        optimizer.step()
        optimizer.zero_grad()
        break
    return run.rank, prepared


def with_ddp(work: Work) -> tuple[int, int]:
    """The same under DistributedDataParallel."""
    model, data, batch = work
    dist.init_process_group("gloo")
    loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data, shuffle=False))
    began = time.perf_counter_ns()
    wrapped = DistributedDataParallel(model)
    optimizer = adamw(wrapped)
    prepared = time.perf_counter_ns() - began
    for inputs, targets in loader:
        loss_of(wrapped, inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        break
    return dist.get_rank(), prepared


def main() -> None:
    parser = rank_parser()
    parser.add_argument("--model", choices=WORKS, required=True)
    parser.add_argument("--side", choices=("lockstep", "ddp"), required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, prepared = (with_lockstep if options.side == "lockstep" else with_ddp)(WORKS[options.model]())
    if rank == 0:
        options.to.write_text(json.dumps({"prepare_ns": prepared, "ended_ns": time.monotonic_ns()}))
    if options.side == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
