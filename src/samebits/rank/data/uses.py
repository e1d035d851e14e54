"""Which samples the steps of an epoch used, counted: was each one used once?

A million indices take about 50 ms and a byte each.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.rank.data.drawn_order import Numbers

MASK = (1 << 64) - 1


class Uses:
    """The samples of steps that are added one after the other."""

    def __init__(self, num_samples: int) -> None:
        self._seen = np.zeros(num_samples, np.bool_)
        self._others: set[str] = set()
        """Indices that are not whole numbers from 0 up to the number of samples."""
        self.samples = 0
        """How many were used; one that was used twice counts twice."""

    @property
    def distinct(self) -> int:
        return int(np.count_nonzero(self._seen)) + len(self._others)

    def add(self, steps: Iterable[Sequence[Any]]) -> None:
        flat = list(chain.from_iterable(steps))
        self.samples += len(flat)
        # A byte for each sample of the data set, as long as indices are such numbers.
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
    # The steps of splitmix64.
    mixed = numbers.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed += np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))


def dataset_digest(dataset: Any) -> str:
    """A hash of the data set's first, middle and last sample. Values of unknown classes count by their class only.

    A data set that does not take these indices counts by its class.
    """
    last = len(dataset) - 1
    digest = hashlib.blake2b(digest_size=8)
    try:
        for index in sorted({0, last // 2, last}):
            update_digest(digest, dataset[index])
    except Exception:  # noqa: BLE001 - a data set whose indices are not whole numbers; its sampler knows them
        return type(dataset).__name__
    return digest.hexdigest()


def batch_digest(batch: Any) -> str:
    """32 hexadecimal digits of everything in a batch. Values of unknown classes count by their class only."""
    digest = hashlib.blake2b(digest_size=16)
    update_digest(digest, batch)
    return digest.hexdigest()


def update_digest(digest: Any, value: Any, most_bytes: int = sys.maxsize) -> None:
    """Add a value to a hash; of a larger array at most `most_bytes`, taken evenly from all of it."""
    if isinstance(value, Tensor) and value.layout == torch.strided:
        dense = value.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
        digest.update(_evenly(dense.view(torch.uint8).numpy(), most_bytes))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.shape}{value.dtype}".encode())
        digest.update(_evenly(np.ascontiguousarray(value).reshape(-1).view(np.uint8), most_bytes))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            digest.update(repr(key).encode())
            update_digest(digest, item, most_bytes)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            update_digest(digest, item, most_bytes)
    elif isinstance(value, (str, bytes, int, float, complex, bool, type(None), np.generic)):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__name__.encode())


def _evenly(data: np.ndarray[Any, Any], most_bytes: int) -> bytes:
    # Odd, so that it is not always the same byte of each number.
    every = -(-len(data) // most_bytes) | 1
    return data[::every].tobytes()
