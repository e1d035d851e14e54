"""A small model in the prepared loop, of which one rank is killed and replaced.

    prepared.py FOLDER STEPS

Rank 0 writes what init and prepare took, the median step, and the longest time between two steps into FOLDER/steps.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

WIDTH, CLASSES = 64, 10
SETTLED = 10
"""Steps before the first one whose time counts."""


def main() -> None:
    folder, num_steps = Path(sys.argv[1]), int(sys.argv[2])
    began = time.monotonic()
    run = lockstep.init(seed=0, threads=1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    count = 2 * run.world_size * num_steps
    samples = TensorDataset(torch.randn(count, WIDTH), torch.randint(CLASSES, (count,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(samples, batch_size=2 * run.world_size))
    prepare_s, ends, step_s = time.monotonic() - began, [], 0.0
    for number, step in enumerate(run.steps(loader)):
        for inputs, targets in step:
            run.backward(F.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.monotonic())
        if number == num_steps // 2:
            step_s = statistics.median(b - a for a, b in pairwise(ends[SETTLED:]))
            (folder / f"pid-{run.rank}").write_text(str(os.getpid()))
        if number > num_steps // 2:
            time.sleep(0.01)  # so that there are steps left when a rank is killed
    if run.rank == 0:
        lost_s = max(b - a for a, b in pairwise(ends[num_steps // 2 :]))
        (folder / "steps.json").write_text(json.dumps({"prepare_s": prepare_s, "step_s": step_s, "lost_s": lost_s}))


if __name__ == "__main__":
    main()
