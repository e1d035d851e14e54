"""Which samples the steps of an epoch used, counted: was each one used once?

A million indices take about 50 ms and a byte each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from lockstep.rank.data.cut_order import Numbers

MASK = (1 << 64) - 1


class Uses:
    """The samples of steps that are added one after the other.

    Args:
        num_samples: of the data set.
    """

    def __init__(self, num_samples: int) -> None:
        self._seen = np.zeros(num_samples, np.bool_)
        self._others: set[str] = set()
        """Indices that are not whole numbers from 0 up to the number of samples."""
        self.samples = 0
        """How many were used; one that was used twice counts twice."""

    @property
    def distinct(self) -> int:
        """How many different ones."""
        return int(np.count_nonzero(self._seen)) + len(self._others)

    def add(self, steps: Iterable[Sequence[Any]]) -> None:
        """Count the samples of these steps."""
        flat = list(chain.from_iterable(steps))
        self.samples += len(flat)
        numbers = whole_numbers(flat)
        if numbers is not None and (not len(numbers) or (numbers.min() >= 0 and numbers.max() < len(self._seen))):
            self._seen[numbers] = True
        else:
            self._others.update(map(repr, flat))


def whole_numbers(indices: Sequence[Any] | Numbers) -> Numbers | None:
    """The indices as an array; None where some are something else, or no 64-bit number."""
    if isinstance(indices, np.ndarray):
        return indices
    if not set(map(type, indices)) <= {int}:
        return None
    try:
        return np.fromiter(indices, np.int64, len(indices))
    except OverflowError:
        return None


def sum_of_hashes(indices: Sequence[Any] | Numbers) -> int:
    """A 64-bit sum of hashes that does not depend on their order: equal for the same samples, each as often."""
    numbers = whole_numbers(indices)
    if numbers is None:
        found = (hashlib.blake2b(repr(index).encode(), digest_size=8).digest() for index in indices)
        return sum(int.from_bytes(one, "little") for one in found) & MASK
    mixed = numbers.astype(np.uint64)  # the steps of splitmix64
    with np.errstate(over="ignore"):
        mixed += np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
