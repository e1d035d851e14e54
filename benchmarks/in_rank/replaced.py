"""What runs in the ranks of `replace`: steps of a small model, in one of which the last rank kills itself.

lockstep run -n 2 -m benchmarks.in_rank.replaced --to replaced.json
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from benchmarks.in_rank.contestants import adamw
from benchmarks.in_rank.options import rank_parser

BATCH, STEPS, AT = 16, 40, 20


def die(told: Path) -> None:
    """Say when, and end by SIGKILL; the replacement finds what was said, and lives."""
    if not told.exists():
        told.write_text(str(time.monotonic_ns()))
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    options = rank_parser().parse_args()
    death = options.to.with_name("death")

    run = lockstep.init(seed=0)
    samples = STEPS * BATCH * run.world_size
    data = TensorDataset(torch.randn(samples, 32), torch.randint(10, (samples,)))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    loader = DataLoader(data, batch_size=BATCH * run.world_size)
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    gap_ns = 0
    for step in run.steps(loader):
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            if step.number == AT and run.rank == run.world_size - 1:
                die(death)
            run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step.number == AT and run.rank == 0:
            gap_ns = time.monotonic_ns() - int(death.read_text())
    if run.rank == 0:
        options.to.write_text(json.dumps(gap_ns))


if __name__ == "__main__":
    main()
