"""What is lost, saved and started: a model of a few thousand parameters, and one of the size that people have."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.gpu_day.programs.models import Gpt

WORDS, LENGTH = 50257, 64

Work = tuple[nn.Module, TensorDataset, int]
"""A model, its data, and the samples of a rank's batch."""


def small() -> Work:
    """A few thousand parameters; 16 samples for each rank."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, TensorDataset(torch.randn(2048, 32), torch.randint(10, (2048,))), 16


def gpt_124m() -> Work:
    """GPT-2's smallest, with texts of 64 words, one for each rank: its state with AdamW has 1.5 GB."""
    text = torch.randint(0, WORDS, (64, LENGTH))
    return Gpt(words=WORDS, length=LENGTH), TensorDataset(text, text.roll(-1, 1)), 1


WORKS = {"small": small, "gpt-124m": gpt_124m}
