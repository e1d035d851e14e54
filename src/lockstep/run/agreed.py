"""A number that is known to be the same on every rank."""

from __future__ import annotations

from torch import Tensor


def number(value: float | Tensor) -> float:
    """A Python float of a number or a one-element tensor, with or without a graph behind it."""
    return float(value.detach() if isinstance(value, Tensor) else value)


class Agreed(float):
    """A float that came out of an exchange, so that `run.log` need not exchange it again."""
