"""A number that is known to be the same on every rank."""

from __future__ import annotations


class Agreed(float):
    """A float that came out of an exchange, so that `run.log` need not exchange it again."""
