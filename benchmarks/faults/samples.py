"""What both scripts train on, and what they write down: which rank ended which step when, and with which samples."""

from __future__ import annotations

import hashlib
import os
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from samebits.testing import faults

NUM_SAMPLES, BATCH, EPOCHS = 1920, 64, 2
NOTES = "FAULTS_NOTES"


class Numbers(Dataset[tuple[Tensor, Tensor, int]]):
    """Random vectors, their largest group, and their numbers."""

    def __init__(self) -> None:
        self.vectors = torch.randn(NUM_SAMPLES, 256, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        faults.sample(index)
        vector = self.vectors[index]
        return vector, vector.view(8, 32).sum(1).argmax(), index


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8))


def note(*words: object) -> None:
    """Write a line: the time, this process, and what happened; it is there also if the process is killed next."""
    place = f"{os.environ[NOTES]}/rank-{os.environ['RANK']}.txt"
    line = " ".join(map(str, (time.monotonic(), os.getpid(), *words))) + "\n"
    descriptor = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def bits(model: nn.Module) -> str:
    """A hash of all weights."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()[:16]
