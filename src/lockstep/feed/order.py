"""The order of an epoch's samples, and its cut into steps.

The order is whatever the user's sampler yields while the process draws from the epoch's random stream. So for every
sampler that uses the global generators it is a pure function of (seed, epoch), the same on every rank. With a
`batch_sampler`, its batches are the steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from lockstep.layout.cut import steps_of


@dataclass(frozen=True)
class EpochPlan:
    """The samples of one epoch, step by step; the same on every rank."""

    steps: list[Sequence[Any]]
    """Data-set indices (whatever the sampler yields) of each step."""
    batch_size: int
    """Samples of a full step, for which the cut into lanes is made."""

    @property
    def num_samples(self) -> int:
        return sum(map(len, self.steps))

    @cached_property
    def digest(self) -> str:
        """Equal on two ranks exactly when they would train on the same samples in the same order."""
        return hashlib.blake2b(repr(self.steps).encode(), digest_size=8).hexdigest()


class _IgnoresEpochs:
    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the order is a function of the run's seed and the epoch anyway."""


class _Shuffled(RandomSampler, _IgnoresEpochs):
    pass


class _Sequential(SequentialSampler, _IgnoresEpochs):
    pass


def undistributed(sampler: Any) -> Any:
    """The sampler over the whole data set: the user's, or what a DistributedSampler, or one of torchdata, replaced."""
    kind = type(sampler)
    if kind.__name__ == "RandomSampler" and kind.__module__.startswith("torchdata."):
        # It makes a generator of its own, which a state does not hold.
        return _Shuffled(sampler.data_source, sampler.replacement, sampler.num_samples)
    if isinstance(sampler, DistributedSampler):
        dataset: Any = sampler.dataset
        return _Shuffled(dataset) if sampler.shuffle else _Sequential(dataset)
    return sampler


def plan_epoch(loader: DataLoader[Any]) -> EpochPlan:
    """Draw the epoch's order. Call it with the epoch's random stream set."""
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is BatchSampler:
        order = list(undistributed(batch_sampler.sampler))
        steps = list(steps_of(order, batch_sampler.batch_size, batch_sampler.drop_last))
        return EpochPlan(steps, batch_sampler.batch_size)
    assert batch_sampler is not None
    steps = [list(batch) for batch in batch_sampler]
    return EpochPlan(steps, max(map(len, steps), default=1))
