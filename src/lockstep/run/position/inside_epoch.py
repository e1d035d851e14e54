"""Where a run is inside an epoch's steps, as a state keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InsideEpoch:
    """A place between two steps of an epoch."""

    loader: int
    """Which of the prepared loaders, from 0."""
    order: str
    """The digest of the epoch's order (`EpochPlan.digest`)."""
    done: int
    """How many of the epoch's steps are finished."""
    call: int
    """Which call of `run.steps` it is in the body of `run.epochs`, or in the script where that has none; from 1."""
