"""The norm of gradients over fixed chunks in a fixed order: the same bits under every strategy.

Each chunk's norm to the power p is one float64; their sum is rounded once, so the order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.layout.chunks import chunks_of


def gradient_norm(gradients: Sequence[Tensor], norm_type: float) -> float:
    """The p-norm of all gradients as one vector; `norm_type` may be infinity."""
    return combine_norms(chunk_norms(gradients, norm_type), norm_type)


def clip(gradients: Sequence[Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients of norm `norm` so that it is at most `max_norm`, as torch does."""
    scale = max_norm / (norm + 1e-6)
    if not scale >= 1.0:  # NaN too
        for gradient in gradients:
            gradient.mul_(scale)


def require_norm_type(norm_type: float) -> None:
    """Raise `UsageError` for an invalid order of a norm."""
    if not norm_type > 0:
        raise UsageError(f"`norm_type` must be above 0 (or infinity), but is {norm_type}.", "Use 2.0.")


def chunk_norms(gradients: Sequence[Tensor], norm_type: float) -> list[float]:
    """The p-norm of each chunk of each gradient."""
    flats = [gradient.detach().reshape(-1) for gradient in gradients]
    norms = [
        torch.linalg.vector_norm(
            flats[chunk.parameter][chunk.start : chunk.end], norm_type, dtype=_dtype(flats[chunk.parameter])
        )
        for chunk in chunks_of([flat.numel() for flat in flats])
    ]
    values: list[float] = []
    for _, group in groupby(norms, key=lambda norm: norm.device):
        values += torch.stack([norm.to(torch.float64) for norm in group]).tolist()
    return values


def combine_norms(values: Sequence[float], norm_type: float) -> float:
    """The norm of everything from the norms of its chunks, in any order: `fsum` rounds once."""
    if any(map(math.isnan, values)):
        return math.nan
    largest = max(values, default=0.0)
    if math.isinf(norm_type) or math.isinf(largest) or not largest:
        return largest
    return largest * float(math.fsum((value / largest) ** norm_type for value in values) ** (1.0 / norm_type))


def _dtype(flat: Tensor) -> torch.dtype:
    return torch.float64 if flat.dtype is torch.float64 else torch.float32
