"""Sequences whose items are made when they are come to, so that a long epoch begins at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import TypeVar, overload

T = TypeVar("T")
KEPT = 256
"""Items that are kept: workers fetch ahead of the loop that takes them."""


class LazyList(Sequence[T]):
    """Items that are made one by one; the last ones are kept.

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
