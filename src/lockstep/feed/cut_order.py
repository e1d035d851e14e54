"""Steps that are cut when they are asked for: an epoch of a million samples begins as soon as its order is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar, overload

import numpy as np

from lockstep.layout.cut import num_steps

T = TypeVar("T")
KEPT = 256
"""Steps that are kept: workers fetch ahead of the loop that takes them."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class CutOrder(Sequence[list[int]]):
    """The steps of an order of whole numbers.

    Args:
        order: 1-D, the samples of all steps.
        batch_size: samples of a step; only the last may have fewer.
    """

    def __init__(self, order: Numbers, batch_size: int) -> None:
        self.order, self.batch_size = order, batch_size

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
        return (len(self.order) + self.batch_size - 1) // self.batch_size

    @overload
    def __getitem__(self, place: int) -> list[int]: ...
    @overload
    def __getitem__(self, place: slice) -> CutOrder: ...
    def __getitem__(self, place: int | slice) -> list[int] | CutOrder:
        if isinstance(place, slice):
            first, end, _ = place.indices(len(self))
            return CutOrder(self.order[first * self.batch_size : max(first, end) * self.batch_size], self.batch_size)
        first = range(len(self))[place] * self.batch_size
        samples: list[int] = self.order[first : first + self.batch_size].tolist()
        return samples

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Made(Sequence[T]):
    """Items that are made when they are asked for; the last ones are kept.

    Args:
        make: of an item's number.
        length: how many there are.
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


class Chained(Sequence[T]):
    """The items of sequences, one after the other, each made when it is come to.

    Args:
        parts: the sequences.
        length: how many items they have together.
        first: how many are left out at the beginning.
    """

    def __init__(self, parts: Sequence[Sequence[T]], length: int, first: int = 0) -> None:
        self._parts, self._length, self._first = parts, length, first

    def __len__(self) -> int:
        return self._length - self._first

    def __iter__(self) -> Iterator[T]:
        return islice((item for part in self._parts for item in part), self._first, None)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Chained[T]: ...
    def __getitem__(self, place: int | slice) -> T | Chained[T]:
        """One item, or all from `place.start`."""
        if isinstance(place, slice):
            return Chained(self._parts, self._length, self._first + place.indices(len(self))[0])
        return next(islice(iter(self), range(len(self))[place], None))
