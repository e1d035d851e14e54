"""A number that is known to be the same on every rank."""

from __future__ import annotations

from torch import Tensor

from lockstep.errors import UsageError


def number(value: float | Tensor) -> float:
    """Return a number or a one-element tensor, with or without a graph, as a Python float."""
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):
        shown = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
        raise UsageError(
            f"A value to log or tally must be one number, but is {shown}.", "Take a mean, or .item()."
        ) from None


class Agreed(float):
    """A float that came out of an exchange, so `run.log` need not exchange it again."""
