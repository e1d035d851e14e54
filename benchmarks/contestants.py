"""The sides of a comparison, each an endless generator that makes one training step at each `next`.

All fetch the same samples from the same data set in memory through a DataLoader, so fetching is part of every step. All
use fused AdamW. The exact side has torch's deterministic switch on, as `lockstep.init` sets it; the others have it off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset

import lockstep
from benchmarks.workloads import Workload

OURS, LIMIT, BARE = "lockstep", "no exchange", "bare loop"
BUCKET_CAPS_MIB = (1, 4, 25)

Capture = Callable[[nn.Module], None]
"""Called with the model in every step when its gradients are complete."""


def adamw(model: nn.Module) -> Optimizer:
    """The same optimizer for every side."""
    return AdamW(model.parameters(), lr=1e-4, fused=True)


def lockstep_side(
    run: lockstep.Run, workload: Workload, model: nn.Module, data: Dataset[Any], capture: Capture
) -> Iterator[None]:
    """Our engine: one lane per rank."""
    loader = DataLoader(data, batch_size=workload.batch * run.world_size)
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    while True:
        for step in run.steps(loader):
            for inputs, targets in step:
                run.backward(F.cross_entropy(model(inputs), targets))
            capture(model)
            optimizer.step()
            optimizer.zero_grad()
            yield


def plain_side(
    model: nn.Module, data: Dataset[Any], batches: list[list[int]], capture: Capture, *, exchange: bool
) -> Iterator[None]:
    """An ordinary loop over `model`, which may be wrapped in DDP; `exchange` False takes DDP's exchange out."""
    optimizer = adamw(model)
    loader = DataLoader(data, batch_sampler=batches)
    while True:
        for inputs, targets in loader:
            with nullcontext() if exchange else model.no_sync():
                F.cross_entropy(model(inputs), targets).backward()
            capture(model)
            optimizer.step()
            optimizer.zero_grad()
            yield


def ddp_name(bucket_cap_mib: int) -> str:
    """The name of the DDP side with this bucket cap."""
    return f"DDP {bucket_cap_mib} MiB"


def sides(
    run: lockstep.Run, workload: Workload, data: Dataset[Any], capture: Callable[[str], Capture]
) -> dict[str, Iterator[None]]:
    """All sides for a world of this size: our engine first; DDP's and the limit, or the bare loop for one rank."""
    torch.manual_seed(0)
    first = workload.model()
    weights = {name: value.clone() for name, value in first.state_dict().items()}

    def copy() -> nn.Module:
        model = workload.model()
        model.load_state_dict(weights)
        return model

    step, start = workload.batch * run.world_size, workload.batch * run.rank
    total = len(data)  # type: ignore[arg-type]
    batches = [list(range(at + start, at + start + workload.batch)) for at in range(0, total, step)]
    found = {OURS: lockstep_side(run, workload, first, data, capture(OURS))}
    if run.world_size == 1:
        found[BARE] = plain_side(copy(), data, batches, capture(BARE), exchange=True)
        return found
    for cap in BUCKET_CAPS_MIB:
        wrapped = DistributedDataParallel(copy(), bucket_cap_mb=cap, gradient_as_bucket_view=True)
        found[ddp_name(cap)] = plain_side(wrapped, data, batches, capture(ddp_name(cap)), exchange=True)
    limit = DistributedDataParallel(copy(), gradient_as_bucket_view=True)
    found[LIMIT] = plain_side(limit, data, batches, capture(LIMIT), exchange=False)
    return found
