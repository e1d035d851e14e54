"""The order of an epoch's samples, and its cut into steps.

The order is whatever the user's sampler yields while the process draws from the epoch's random stream. So for every
sampler that uses the global generators it is a pure function of (seed, epoch), the same on every rank. With a
`batch_sampler`, its batches are the steps.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from samebits.errors import UsageError
from samebits.protocol.layout.cut import num_steps, steps_of
from samebits.rank.data.drawn_order import DrawnOrder, Numbers, is_drawn

T = TypeVar("T")
KEPT = 256
"""The number of items that are cached: workers fetch ahead of the loop that takes them."""


class LazyList(Sequence[T]):
    """Items that are made one by one; the last ones are cached.

    Args:
        make: of an item's number.
    """

    def __init__(self, make: Callable[[int], T], length: int) -> None:
        self._make, self._length = lru_cache(KEPT)(make), length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        numbers = range(self._length)[place]
        return self._make(numbers) if isinstance(numbers, int) else [self._make(number) for number in numbers]


class LazyIterable(Sequence[T]):
    """What an iterator yields, which is begun anew for each loop.

    Args:
        begin: makes the iterator.
        length: how many items it yields.
        first: how many of them are left out at the beginning.
    """

    def __init__(self, begin: Callable[[], Iterator[T]], length: int, first: int = 0) -> None:
        self._begin, self._length, self._first = begin, length, first

    def __len__(self) -> int:
        return self._length - self._first

    def __iter__(self) -> Iterator[T]:
        return islice(self._begin(), self._first, None)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> LazyIterable[T]: ...
    def __getitem__(self, place: int | slice) -> T | LazyIterable[T]:
        """One item, or all from `place.start`."""
        if isinstance(place, slice):
            return LazyIterable(self._begin, self._length, self._first + place.indices(len(self))[0])
        return next(islice(iter(self), range(len(self))[place], None))


class CutOrder(Sequence[list[int]]):
    """The steps of an order of whole numbers.

    Args:
        order: 1-D, the samples of all steps.
        batch_size: samples of a step; only the last may have fewer.
    """

    def __init__(self, order: Numbers, batch_size: int) -> None:
        self.order, self.batch_size = order, batch_size
        self._length = -(-len(order) // batch_size)

    @classmethod
    def of(cls, order: Numbers, batch_size: int, drop_last: bool) -> CutOrder:
        """Cut an epoch's order; `drop_last` leaves a short last step out."""
        return cls(order[: num_steps(len(order), batch_size, drop_last) * batch_size], batch_size)

    @property
    def sizes(self) -> list[int]:
        """The number of samples of each step."""
        full, left = divmod(len(self.order), self.batch_size)
        return [self.batch_size] * full + [left] * bool(left)

    def between(self, low: int, high: int) -> Numbers:
        """What lies between these positions of each step."""
        full = len(self.order) // self.batch_size * self.batch_size
        whole = self.order[:full].reshape(-1, self.batch_size)[:, low:high].reshape(-1)
        return np.concatenate([whole, self.order[full:][low:high]])

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> list[int]: ...
    @overload
    def __getitem__(self, place: slice) -> CutOrder: ...
    def __getitem__(self, place: int | slice) -> list[int] | CutOrder:
        if isinstance(place, slice):
            first, end, _ = place.indices(len(self))
            return CutOrder(self.order[first * self.batch_size : max(first, end) * self.batch_size], self.batch_size)
        first = range(self._length)[place] * self.batch_size
        samples: list[int] = self.order[first : first + self.batch_size].tolist()
        return samples

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class EpochPlan:
    """The samples of one epoch, step by step; the same on every rank."""

    steps: Sequence[Sequence[Any]]
    """Data-set indices (whatever the sampler yields) of each step."""
    batch_size: int
    """Samples of a full step, for which the cut into lanes is made."""
    is_own: bool = False
    """Whether it comes from a sampler of the script, which may draw another one when it is asked again."""

    @cached_property
    def sizes(self) -> list[int]:
        """The number of samples of each step."""
        return self.steps.sizes if isinstance(self.steps, (CutOrder, DrawnOrder)) else [*map(len, self.steps)]

    @cached_property
    def counts(self) -> Mapping[int, int]:
        """How many steps have each number of samples."""
        return self.steps.counts if isinstance(self.steps, DrawnOrder) else Counter(self.sizes)

    @property
    def num_samples(self) -> int:
        return sum(size * number for size, number in self.counts.items())

    @cached_property
    def packed(self) -> dict[str, Any] | None:
        """What a state keeps of a sampler's own order; None of any other, and where samples are no whole numbers."""
        flat = [sample for step in self.steps for sample in step] if self.is_own else []
        if not flat or not {int}.issuperset(map(type, flat)):
            return None
        with suppress(RuntimeError, OverflowError):
            samples, sizes = (torch.tensor(one, device="cpu") for one in (flat, self.sizes))
            return {"samples": samples, "sizes": sizes, "batch_size": self.batch_size}
        return None

    @classmethod
    def unpacked(cls, record: Mapping[str, Any]) -> EpochPlan:
        """The inverse of `packed`."""
        samples = iter(record["samples"].tolist())
        steps = [[*islice(samples, size)] for size in record["sizes"].tolist()]
        return cls(steps, record["batch_size"], is_own=True)

    @cached_property
    def digest(self) -> str:
        """Equal on two ranks exactly when they would train on the same samples in the same order."""
        if isinstance(self.steps, CutOrder):
            text = b"%d:" % self.steps.batch_size + self.steps.order.tobytes()
        elif isinstance(self.steps, DrawnOrder):
            text = self.steps.text
        else:
            text = repr(self.steps).encode()
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def between(self, low: int, high: int, end: int) -> Sequence[Any] | Numbers:
        """What lies between two positions of each of the first `end` steps, as one row."""
        steps = self.steps[:end]
        if isinstance(steps, (CutOrder, DrawnOrder)):
            return steps.between(low, high)
        return [index for samples in steps for index in samples[low:high]]


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
    # A subclass may make batches in its own way, so it is iterated.
    if type(batch_sampler) is BatchSampler:
        sampler = undistributed(batch_sampler.sampler)
        size, drop_last = batch_sampler.batch_size, batch_sampler.drop_last
        if (numbers := drawn_at_once(sampler)) is not None:
            return EpochPlan(CutOrder.of(numbers, size, drop_last), size)
        if is_drawn(sampler):
            return EpochPlan(DrawnOrder.of(sampler, size, drop_last), size)
        is_own = type(sampler).__iter__ is not RandomSampler.__iter__
        return EpochPlan(list(steps_of(_listed(sampler), size, drop_last)), size, is_own=is_own)
    assert batch_sampler is not None
    steps = [list(batch) for batch in _listed(batch_sampler)]
    return EpochPlan(steps, max(map(len, steps), default=1), is_own=True)


MOST = 1 << 27
"""So many samples of Python's fill 5 GB."""


def _listed(sampler: Any) -> list[Any]:
    """All that a sampler yields. Raises `UsageError` for one without end."""
    named = len(sampler) if isinstance(sampler, Sized) else 0
    found = list(islice(sampler, MOST + 1)) if named <= MOST else []
    if max(named, len(found)) > MOST:
        how_many = f"{named:,}" if named else f"more than {MOST:,}"
        raise UsageError(
            f"{type(sampler).__name__} names {how_many} samples, and samebits draws an epoch's order before its first step.",
            "Give it fewer, and train several epochs: `for epoch in run.epochs(100):`. RandomSampler may have any "
            "num_samples.",
        )
    return found


def drawn_at_once(sampler: Any) -> Numbers | None:
    """What torch's own samplers yield, without a million steps of Python; None for others.

    RandomSampler seeds a generator from the global one, and yields one permutation.
    """
    if isinstance(sampler, SequentialSampler) and type(sampler).__iter__ is SequentialSampler.__iter__:
        return np.arange(len(sampler.data_source))
    if not isinstance(sampler, RandomSampler) or type(sampler).__iter__ is not RandomSampler.__iter__:
        return None
    size = len(sampler.data_source)
    if sampler.replacement or sampler.generator is not None or sampler.num_samples != size:
        return None
    # As RandomSampler does: one number from the global generator seeds the one that draws the permutation.
    generator = torch.Generator()
    generator.manual_seed(int(torch.empty((), dtype=torch.int64, device="cpu").random_().item()))
    return torch.randperm(size, generator=generator, device="cpu").numpy()
