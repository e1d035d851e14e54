"""What is trained: models that differ in how much there is to exchange for each second of computing.

The last three are there because stock DDP might be as fast with them: very many small tensors, gradients that are
mostly zeros, and much computing for little to exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.gpu_day.programs.models import Block, Gpt


@dataclass(frozen=True)
class Workload:
    """A model with its data."""

    name: str
    what: str
    batch: int
    """Samples per rank."""
    model: Callable[[], nn.Module]
    data: Callable[[int], TensorDataset]
    """`num_samples` to a data set in memory, of (input, target)."""
    goal: float = 1.0
    """How many times as fast as the best DDP a step must be."""
    rounds_factor: int = 1
    """This many times the rounds, because the effect is small beside the noise."""


class GPT(nn.Module):
    """(batch, 128) tokens to (batch, 256, 128) scores, as `cross_entropy` expects them."""

    def __init__(self, width: int = 384, layers: int = 6, heads: int = 6) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(128, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        for block in self.blocks:
            block.dropout = nn.Identity()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions.weight
        return self.head(self.norm(self.blocks(hidden))).transpose(1, 2)


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = outputs // inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(images)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


def mlp() -> nn.Module:
    """10.5 M parameters in 8 tensors."""
    sizes = [1024, 2048, 2048, 2048]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


def resnet20() -> nn.Module:
    """ResNet-20 for 32 x 32 pictures: 0.27 M parameters in 63 tensors, and BatchNorm's buffers."""
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    blocks = [Residual(a, b) for a, b in pairwise(widths)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class ManyTensors(nn.Module):
    """300 small layers, in residual pairs: 0.3 M parameters in 602 tensors."""

    def __init__(self, width: int = 32, layers: int = 300) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = hidden + 0.1 * torch.tanh(layer(hidden))
        return self.head(hidden)


class Words(nn.Module):
    """The mean of 64 words' vectors: 10.2 M parameters, of whose gradients nearly all are zeros."""

    def __init__(self, words: int = 40_000, width: int = 256) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, 10)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.words(words).mean(1))


def convolutions() -> nn.Module:
    """Three convolutions of 128 channels on 32 x 32: 0.3 M parameters, and 1.2 GFLOP for a picture's forward."""
    sizes = [3, 128, 128, 128]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Conv2d(a, b, 3, 1, 1), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def _small_vectors(num_samples: int) -> TensorDataset:
    return TensorDataset(torch.randn(num_samples, 32), torch.randint(10, (num_samples,)))


def _sentences(num_samples: int) -> TensorDataset:
    return TensorDataset(torch.randint(40_000, (num_samples, 64)), torch.randint(10, (num_samples,)))


def _vectors(num_samples: int) -> TensorDataset:
    return TensorDataset(torch.randn(num_samples, 1024), torch.randint(10, (num_samples,)))


def _texts(num_samples: int) -> TensorDataset:
    return TensorDataset(torch.randint(256, (num_samples, 128)), torch.randint(256, (num_samples, 128)))


def _pictures(num_samples: int) -> TensorDataset:
    return TensorDataset(torch.randn(num_samples, 3, 32, 32), torch.randint(10, (num_samples,)))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("mlp", "MLP, 10.5 M parameters, 16 samples per rank", 16, mlp, _vectors, 2.0),
        Workload("gpt", "GPT, 10.9 M parameters, 2 x 128 tokens per rank", 2, GPT, _texts, 1.2),
        Workload(
            "cnn", "ResNet-20, 0.27 M parameters, 16 pictures per rank", 16, resnet20, _pictures, 1.15, rounds_factor=4
        ),
        Workload("tensors", "300 small layers, 0.3 M parameters in 602 tensors", 16, ManyTensors, _small_vectors),
        Workload("words", "word vectors, 10.2 M parameters, 16 x 64 words per rank", 16, Words, _sentences),
        Workload("conv", "3 wide convolutions, 0.3 M parameters, 4 pictures per rank", 4, convolutions, _pictures),
    )
}

Work = tuple[nn.Module, TensorDataset, int]
"""A model, its data, and the samples of a rank's batch: what is lost, saved and started."""
GPT_WORDS, GPT_LENGTH = 50257, 64


def small() -> Work:
    """A few thousand parameters; 16 samples for each rank."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, _small_vectors(2048), 16


def gpt_124m() -> Work:
    """GPT-2's smallest, with texts of 64 words, one for each rank: its state with AdamW has 1.5 GB."""
    text = torch.randint(0, GPT_WORDS, (64, GPT_LENGTH))
    return Gpt(words=GPT_WORDS, length=GPT_LENGTH), TensorDataset(text, text.roll(-1, 1)), 1


WORKS = {"small": small, "gpt-124m": gpt_124m}
