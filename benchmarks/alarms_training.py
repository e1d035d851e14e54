"""What `alarms` runs: training with everything that makes ranks wait for each other for good reasons.

lockstep run -n 2 benchmarks/alarms_training.py LOAD SECONDS
"""

import gzip
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import lockstep

load, seconds = sys.argv[1], float(sys.argv[2])


class Data(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pictures that now and then take long."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if load == "uneven data" and index % 97 == 0:
            time.sleep(3)
        if load == "decoding" and index % 211 == 0:
            gzip.compress(os.urandom(1 << 20) * 40)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=generator), torch.tensor(index % 10)


def evaluate() -> float:
    """Ten seconds of work on one rank: tensors, Python, and a pass of the collector."""
    end = time.monotonic() + 10
    found: list[float] = []
    while time.monotonic() < end:
        with torch.no_grad():
            found.append(float(torch.randn(256, 256).mm(torch.randn(256, 256)).mean()))
        found = sorted(value * 0.5 for value in found[-1000:])
    return sum(found)


run = lockstep.init(seed=0, lanes=4)
model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
workers = 1 if load in {"uneven data", "decoding", "workers"} else 0
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Data(), 32, shuffle=True, num_workers=workers))
if load == "compile":
    model.compile()
began = time.monotonic()
if load == "prepare first":
    with run.main_first():
        if run.is_main:
            end = time.monotonic() + 9
            with Path("prepared.bin").open("wb") as file:
                while time.monotonic() < end:
                    file.write(os.urandom(1 << 20))
                    os.fsync(file.fileno())
for _ in run.epochs(10000):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if load == "evaluation on rank 0" and step.number % 300 == 0 and run.is_main:
            evaluate()
        if load == "a child of rank 0" and step.number % 300 == 0 and run.is_main:
            work = "import time; end = time.time() + 8\nwhile time.time() < end: sum(range(1000))"
            subprocess.run([sys.executable, "-c", work], check=True)
        if load == "a large file" and step.number % 300 == 0 and run.is_main:
            end = time.monotonic() + 8
            with Path("large.bin").open("wb") as file:
                while time.monotonic() < end:
                    file.write(os.urandom(4 << 20))
                    file.flush()
                    os.fsync(file.fileno())
                    file.seek(0)
    if load == "saves":
        run.save_state("state")
    if run.any(time.monotonic() - began > seconds):
        break
