"""How far apart two tensors are, element by element, of which ranks have written the values."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from samebits.protocol.run_folder import RunFolder

T = TypeVar("T", int, float)
CONSTANT = 1e-4
"""If the ratios of all elements differ by less than this, relatively, they are one ratio."""


@dataclass(frozen=True)
class Captured:
    """The values of one tensor on one rank, float64 or int64, row by row."""

    values: Sequence[float]
    bits: Sequence[int]
    """The same values as 64-bit integers: -0.0 and 0.0 differ here, and a NaN equals itself."""
    dtype: str
    shape: tuple[int, ...]
    stride: int
    """Every `stride`-th element was written."""


@dataclass(frozen=True)
class Deviation:
    """How two tensors of the same shape differ, from the first to the second."""

    num_differing: int
    num_elements: int
    max_absolute: float
    max_relative: float
    """Relative to the largest magnitude in either tensor."""
    ratio: float | None
    """Second divided by first, if it is the same for all elements; None otherwise."""
    sampled: bool = False
    """Whether only every k-th element was compared."""
    only_nan: bool = False
    """Whether every element that differs is a NaN on both sides; the bits of a NaN mean nothing."""


def read_values(folder: RunFolder, rank: int) -> Captured | None:
    """What `rank` captured in that run, or None if it never came to the item."""
    stem = folder.evidence(rank).parent / f"values-{rank:05d}"
    description, data = stem.with_suffix(".json"), stem.with_suffix(".bin")
    if not description.exists() or not data.exists():
        return None
    record = json.loads(description.read_text())
    return Captured(
        values=_read(array(record["code"]), data),
        bits=_read(array("q"), data),
        dtype=record["dtype"],
        shape=tuple(record["shape"]),
        stride=record["stride"],
    )


def _read(values: array[T], path: Path) -> array[T]:
    values.frombytes(path.read_bytes())
    return values


def deviation(left: Captured, right: Captured) -> Deviation | None:
    """Compare element by element; None if the shapes or dtypes differ, so there is nothing to compare."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return None
    differing = [number for number, (a, b) in enumerate(zip(left.bits, right.bits, strict=True)) if a != b]
    gaps = [abs(left.values[number] - right.values[number]) for number in differing]
    largest = max(gaps, default=0.0)
    # max() passes over a NaN that is not the first.
    if any(math.isnan(gap) for gap in gaps):
        largest = math.nan
    scale = max((abs(value) for value in (*left.values, *right.values) if math.isfinite(value)), default=0.0)
    return Deviation(
        num_differing=len(differing),
        num_elements=len(left.bits),
        max_absolute=largest,
        max_relative=largest / scale if scale else 0.0,
        ratio=constant_ratio(left.values, right.values),
        sampled=left.stride > 1,
        only_nan=bool(differing) and all(math.isnan(left.values[n]) and math.isnan(right.values[n]) for n in differing),
    )


def constant_ratio(left: Sequence[float], right: Sequence[float]) -> float | None:
    """The ratio right / left if it is the same finite number, not 1, for all elements (up to `CONSTANT`); else None."""
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if a != 0.0 or b != 0.0]
    if not pairs or not all(math.isfinite(a) and math.isfinite(b) and a != 0.0 for a, b in pairs):
        return None
    # The largest element: its ratio is rounded least.
    first, second = max(pairs, key=lambda pair: abs(pair[0]))
    ratio = second / first
    tolerance = CONSTANT * abs(second)
    if abs(ratio - 1.0) < CONSTANT or ratio == 0.0:
        return None
    return ratio if all(abs(b - ratio * a) <= tolerance for a, b in pairs) else None
