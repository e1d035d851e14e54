"""The sizes, how long a slice of one is, and how many buffers take turns in it. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

from benchmarks.cases import KIB, MIB, size_text

SIZES = (4, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB)
FEW_SIZES = (4, 4 * KIB, 256 * KIB, 4 * MIB, 64 * MIB)
LEAST_ROTATED = 64 * KIB
BEYOND = 2
"""Rotated buffers of all ranks together are this many times the last cache."""
BLOCK_NS, SLICE_NS = 150e3, 12e6
"""How long the operations between two looks at the clock take, and all of a slice that counts."""
LONG_NS = 100e6
"""Of an operation that is timed once in a slice."""
MOST_OFTEN, LEAST_BLOCKS, MOST_BLOCKS = 100, 3, 15


@dataclass(frozen=True)
class PeerCase:
    """One size, in float32: in one buffer again and again, or in buffers that have left the caches."""

    num_bytes: int
    is_rotated: bool = False

    @property
    def what(self) -> str:
        """As the table's first column says it."""
        kind = "" if self.num_bytes < LEAST_ROTATED else " rotated" if self.is_rotated else " hot"
        return size_text(self.num_bytes) + kind


def cases(sizes: Sequence[int], num_ranks: int, cache_bytes: int) -> list[PeerCase]:
    """Hot and rotated; what does not fit the last cache anyway is measured once."""
    small = [PeerCase(size) for size in sizes if size < LEAST_ROTATED]
    large = [(size, rotated) for size in sizes if size >= LEAST_ROTATED for rotated in (False, True)]
    kept = [(size, rotated) for size, rotated in large if rotated or size * num_ranks < BEYOND * cache_bytes]
    return [*small, *starmap(PeerCase, kept)]


def num_buffers(case: PeerCase, num_ranks: int, cache_bytes: int) -> int:
    """How many buffers of a rank take turns."""
    return max(1, -(-BEYOND * cache_bytes // (num_ranks * case.num_bytes))) if case.is_rotated else 1


@dataclass(frozen=True)
class Amount:
    """How often an operation runs between two looks at the clock, and how many such blocks a slice has."""

    often: int
    num_blocks: int


FIRST = Amount(2, 1)
"""Of the slice that tells how long an operation takes; it does not count."""


def amount(one_ns: float) -> Amount:
    """Of the slices that count, from the time of one operation: the quicker it is, the more often it runs."""
    often = round(min(MOST_OFTEN, max(1.0, BLOCK_NS / max(one_ns, 1.0))))
    least = LEAST_BLOCKS if one_ns < LONG_NS else 1
    blocks = round(min(MOST_BLOCKS, max(least, SLICE_NS / max(one_ns * often, 1.0))))
    return Amount(often, blocks)
