"""Hashes of a few samples of a data set, so ranks notice when they read different data, and of batches."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


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
    every = -(-len(data) // most_bytes) | 1  # odd, so that it is not always the same byte of each number
    return data[::every].tobytes()
