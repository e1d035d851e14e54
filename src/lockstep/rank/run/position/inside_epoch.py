"""Where a run is inside an epoch's steps, as a state keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InsideEpoch:
    """A place between two steps of the first `run.steps` of an epoch's body, or of a script without `run.epochs`."""

    loader: int
    """Which of the prepared loaders, from 0."""
    order: str
    """The digest of the epoch's order (`EpochPlan.digest`)."""
    done: int
    """How many of the epoch's steps are finished."""
    loop: int
    """Which `run.epochs` of the script, from 1; 0 outside of one."""
