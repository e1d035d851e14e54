"""Which models exchange something by themselves, over torch's default group, while a lane runs."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def has_synchronised_norm(models: Iterable[nn.Module]) -> bool:
    """Whether some layer exchanges its statistics over ranks."""
    return any(isinstance(module, nn.SyncBatchNorm) for model in models for module in model.modules())
