"""The norm of gradients over fixed chunks in a fixed order: the same bits under every strategy.

Each chunk's norm to the power p is one float64; their sum is rounded once, so the order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.machine.torch_private import multiply_each, norm_each
from samebits.protocol.layout.chunks import chunks_of


def gradient_norm(gradients: Sequence[Tensor], norm_type: float) -> float:
    """The p-norm of all gradients as one vector; `norm_type` may be infinity."""
    return combine_norms(chunk_norms(gradients, norm_type), norm_type)


def clip(gradients: Sequence[Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients of norm `norm` so that it is at most `max_norm`, as torch does."""
    scale = max_norm / (norm + 1e-6)
    # Not `not scale < 1.0`: a norm that is NaN must reach the gradients, as in torch.
    if scale >= 1.0:
        return
    on_gpus = [gradient for gradient in gradients if gradient.device.type != "cpu"]
    if on_gpus:
        multiply_each(on_gpus, scale)
    for gradient in gradients:
        if gradient.device.type == "cpu":
            gradient.mul_(scale)


def require_norm_type(norm_type: float) -> None:
    """Raise `UsageError` for an invalid order of a norm."""
    if not norm_type > 0:
        raise UsageError(f"`norm_type` must be above 0 (or infinity), but is {norm_type}.", "Use 2.0.")


def chunk_norms(gradients: Sequence[Tensor], norm_type: float) -> list[float]:
    """The p-norm of each chunk of each gradient."""
    # [Note: why norms are of fixed chunks]
    # Stages and shares hold parts of the gradients, and a kernel's sum depends on where its input ends. Chunks end at the
    # same elements everywhere, and `fsum` adds their norms with one rounding in any order.
    flats = [gradient.detach().to_dense().reshape(-1) for gradient in gradients]
    chunks = [flats[chunk.parameter][chunk.start : chunk.end] for chunk in chunks_of([flat.numel() for flat in flats])]
    values: list[float] = []
    for device, group in groupby(chunks, key=lambda chunk: chunk.device):
        if device.type == "cpu":
            norms = [torch.linalg.vector_norm(chunk, norm_type, dtype=_dtype(chunk)).double() for chunk in group]
            values += torch.stack(norms).tolist()
        else:
            values += torch.cat([_norms_on_gpu(some, norm_type) for some in _by_dtype(group)]).tolist()
    return values


def _norms_on_gpu(chunks: Sequence[Tensor], norm_type: float) -> Tensor:
    """Those of chunks of one dtype, in few kernels; each depends on its chunk only."""
    return torch.stack(norm_each(chunks, norm_type, dtype=_dtype(chunks[0]))).double()


def _by_dtype(chunks: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for chunk in chunks:
        kinds.setdefault(chunk.dtype, []).append(chunk)
    return kinds.values()


def combine_norms(values: Sequence[float], norm_type: float) -> float:
    """The norm of everything from the norms of its chunks, in any order: `fsum` rounds once."""
    # `max` may lose a NaN, depending on where it stands.
    if any(map(math.isnan, values)):
        return math.nan
    largest = max(values, default=0.0)
    if math.isinf(norm_type) or math.isinf(largest) or not largest:
        return largest
    # Divided by the largest, no power overflows.
    return largest * float(math.fsum((value / largest) ** norm_type for value in values) ** (1.0 / norm_type))


def _dtype(flat: Tensor) -> torch.dtype:
    return torch.float64 if flat.dtype is torch.float64 else torch.float32


def has_synchronised_norm(models: Iterable[nn.Module]) -> bool:
    """Whether some layer exchanges its statistics over ranks."""
    return any(isinstance(module, nn.SyncBatchNorm) for model in models for module in model.modules())
