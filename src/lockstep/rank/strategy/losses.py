"""The losses of lanes: what `run.backward` accepts, and their values in one read from the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.errors import UsageError


def stacked(losses: Sequence[Tensor]) -> Tensor:
    """Stack the losses in one float64 tensor."""
    return torch.stack([loss.double().reshape(()) for loss in losses])


def numbers(losses: Sequence[Tensor]) -> list[float]:
    """Return the values, in one read from the device."""
    return [float(losses[0])] if len(losses) == 1 else stacked(losses).tolist() if losses else []


def check_loss(loss: Tensor, weight: float | None) -> None:
    """Raise `UsageError` for anything but a scalar that needs a gradient, and for a weight below 0."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(
            f"run.backward needs a scalar loss, but got {shape}.", "Take the mean over the lane's samples."
        )
    if not loss.requires_grad:
        raise UsageError(
            "The loss does not require grad: it was detached, computed under torch.no_grad(), or no parameter is "
            "trainable.",
            "Compute it from the model's outputs, with gradients.",
        )
    if weight is not None and not weight >= 0:
        raise UsageError(f"weight= must be 0 or more, but is {weight}.", "Pass the number of items in the loss.")
