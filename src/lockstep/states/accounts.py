"""Which samples the epochs of a state have used: was each one used once? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_SHOWN = 8
"""Epochs that a table has; --json has all."""


@dataclass(frozen=True)
class Account:
    """The samples that one epoch of one loader has used."""

    loader: int
    """Which of the prepared ones, from 1."""
    epoch: int
    """Of this loader, from 1."""
    is_over: bool
    """Whether the script has left the epoch, at its end or before."""
    steps: int
    of_steps: int | None
    """None where the data set does not tell before its end."""
    samples: int
    """Those of the steps, one after the other in the order with this hash."""
    different: int
    """How many different ones these were."""
    of_samples: int | None
    """How many the data set has; None where it does not tell."""
    order: str
    """The hash of the epoch's order; of an IterableDataset, of what it gave so far."""
    each_once: bool

    @property
    def verdict(self) -> str:
        """Whether each sample was used once, in words."""
        if not self.each_once:
            return f"no: {self.different:,} different ones, as the sampler drew them"
        if not self.is_over:
            return "yes, so far"
        if self.of_steps is not None and self.steps < self.of_steps:
            return "yes; the script left the epoch"
        left = (self.of_samples or self.samples) - self.samples
        return f"yes; {left:,} left out" if left else "yes"


def accounts_of(counters: Mapping[str, Any]) -> tuple[Account, ...]:
    """The accounts of the epochs that are over, and of the one that the state is in; older states have none."""
    told = [(one, True) for one in counters.get("accounts", [])]
    if counters.get("account") is not None:
        told.append((counters["account"], False))
    found: list[Account] = []
    left = {number: loader["epochs_begun"] for number, loader in enumerate(counters["loaders"])}
    if counters.get("account") is not None:
        left[counters["account"]["loader"]] += 1  # the epoch that the state is in begins anew in a run that goes on
    for one, is_over in reversed(told):
        epoch, left[one["loader"]] = left[one["loader"]], left[one["loader"]] - 1
        fields = {**one, "loader": one["loader"] + 1}
        found.insert(0, Account(epoch=epoch, is_over=is_over, each_once=one["different"] == one["samples"], **fields))
    return tuple(found)
