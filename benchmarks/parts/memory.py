"""Memory of all ranks together after some steps with AdamW (C14): the sum of their proportional set sizes (PSS).

PSS divides what processes share by their number, so shared memory counts once. Stock DDP is measured under torchrun,
and under `samebits run` too, where the ranks share torch's own pages because they are forks of one process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.parts.sides import adamw, rank_parser
from benchmarks.rank_program import measure_in_ranks, measure_program
from benchmarks.summary import Aim, Line, Unit, compare

SIZES = (1024, 4096, 4096, 4096, 1024, 10)
STEPS, BATCH = 4, 16
GOAL = 1.5
COPIES_OF_STATE = 4
"""Parameters, gradients and AdamW's two moments."""


def measure_memory() -> list[Line]:
    """`ddp` and `zero1` of ours beside DDP, for one large MLP on two ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    stock = {
        "DDP, samebits run": measure_in_ranks("memory", 2, ["--side", "stock"]),
        "DDP, torchrun": measure_program([*torchrun, "-m", "benchmarks.parts.memory", "--side", "stock"]),
    }
    ours = {
        name: measure_in_ranks("memory", 2, ["--side", "ours"], ["--strategy", *name.split()])
        for name in ("ddp", "ddp --recover off", "zero1", "zero1 --recover off")
    }
    goals = {name: GOAL * name.startswith("zero1") for name in ours}
    return [
        compare(
            Aim("C14", f"memory, {told['parameters'] / 1e6:.0f} M parameters", goals[name]),
            (name, [told["pss_bytes"]]),
            (other, [of["pss_bytes"]]),
            ("one copy of all state", [told["parameters"] * 4 * COPIES_OF_STATE]),
            Unit.BYTES,
        )
        for name, told in ours.items()
        for other, of in stock.items()
    ]


def network() -> nn.Module:
    """42 M parameters."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for a, b in pairwise(SIZES) for layer in (nn.Linear(a, b), nn.ReLU())))


def samples(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, SIZES[0]), torch.randint(SIZES[-1], (count,)))


def stock_steps() -> Iterator[int]:
    """DDP with Gloo; the number of parameters after each update."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    optimizer = adamw(model)
    for inputs, targets in DataLoader(samples(STEPS * BATCH), batch_size=BATCH):
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        yield sum(p.numel() for p in model.parameters())
        optimizer.zero_grad()


def our_steps() -> Iterator[int]:
    """The same on our engine."""
    run = samebits.init(seed=0)
    loader = DataLoader(samples(STEPS * BATCH * run.world_size), batch_size=BATCH * run.world_size)
    model = network()
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    for step in run.steps(loader):
        for inputs, targets in step:
            run.backward(F.cross_entropy(model(inputs), targets))
        optimizer.step()
        yield sum(p.numel() for p in model.parameters())
        optimizer.zero_grad()


def pss_bytes(text: str) -> int:
    """The proportional set size in the text of smaps_rollup."""
    line = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) << 10


def main() -> None:
    parser = rank_parser()
    parser.add_argument("--side", choices=("ours", "stock"), required=True)
    options = parser.parse_args()

    parameters = 0
    steps = our_steps() if options.side == "ours" else stock_steps()
    for _ in range(STEPS):
        parameters = next(steps)
    dist.barrier()  # until now nobody has given its gradients back
    total = torch.tensor(float(pss_bytes(Path("/proc/self/smaps_rollup").read_text())), dtype=torch.float64)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        options.to.write_text(json.dumps({"pss_bytes": total.item(), "parameters": parameters}))
    dist.barrier()
    steps.close()  # type: ignore[attr-defined]
    if options.side == "stock":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
