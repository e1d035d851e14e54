"""Fixed chunks of parameters: the units in which norms are computed, and in which ranks share out the update.

A chunk never crosses a parameter, and starts at a multiple of `ALIGNMENT` elements from the parameter's start, so
chunks depend only on shapes: not on ranks, shards or buckets. (8 elements suffice for float32 and 32 for bfloat16;
odd chunks change the bits of fused optimizers.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

ALIGNMENT = 1024
"""Every chunk starts at a multiple of this many elements from its parameter's start."""

START_BYTES = 512
"""Every parameter starts at a multiple of this many bytes in flat memory, as each tensor of its own does on a GPU: cuBLAS
chooses kernels by alignments of up to 256 bytes, so a bias at another one could have other bits than in a plain loop."""

CHUNK_ELEMENTS = 256 * ALIGNMENT
"""The size of every chunk except a parameter's last: 1 MiB of float32."""


@dataclass(frozen=True)
class Chunk:
    """Elements [start, end) of parameter number `parameter`."""

    parameter: int
    start: int
    end: int


def chunks_of(sizes: Sequence[int], chunk_elements: int = CHUNK_ELEMENTS) -> Iterator[Chunk]:
    """All chunks of parameters with the given element counts, in order.

    Invariant: disjoint, in order, covering every element; starts are multiples of `ALIGNMENT`. A parameter without
    elements has no chunk.
    """
    if chunk_elements % ALIGNMENT:
        raise ValueError(f"chunk_elements must be a multiple of {ALIGNMENT}, but is {chunk_elements}")
    for parameter, size in enumerate(sizes):
        for start in range(0, size, chunk_elements):
            yield Chunk(parameter, start, min(start + chunk_elements, size))


def aligned_offsets(
    sizes: Sequence[int], alignment: int = ALIGNMENT, element_size: int = 8
) -> tuple[tuple[int, ...], int]:
    """Where each parameter starts in a flat buffer, and the buffer's length; every start is a multiple of `alignment`.

    Small parameters share the alignment of `min(alignment, next power of two)`, so a hundred biases do not cost a
    hundred kilobytes: a start is a multiple of `START_BYTES`, or of `alignment` for parameters of `alignment` or more.
    What lies where is in no file: states and norms go by parameter.
    """
    small = START_BYTES // element_size
    offsets, end = [], 0
    for size in sizes:
        unit = alignment if size >= alignment else min(small, alignment)
        start = -(-end // unit) * unit
        offsets.append(start)
        end = start + size
    return tuple(offsets), -(-end // small) * small


def shares(sizes: Sequence[int], may_cut: Sequence[bool], world_size: int) -> tuple[tuple[Chunk, ...], ...]:
    """For each rank, the chunks that it updates: a run of neighbouring parameters, about as many elements on each rank.

    Args:
        sizes: elements of each parameter, in the order in which they lie in memory.
        may_cut: which of them may be cut; each of the others goes to one rank.
        world_size: the number of ranks.

    Invariant: disjoint, in order, covering every element; a rank has at most one chunk of a parameter, and it starts at
    a multiple of `ALIGNMENT`; a parameter without elements has one empty chunk. When all may be cut, a rank's number of
    elements differs from the mean by at most `ALIGNMENT`. Depends only on the arguments.
    """
    starts = [0, *accumulate(sizes)]
    total = starts[-1]
    borders = [_border(starts, may_cut, total * rank // world_size) for rank in range(1, world_size)]
    ends = [0, *borders, total]
    empty_places = [_rank_of(starts[number], ends) for number in range(len(sizes))]
    found = []
    for rank, (begin, end) in enumerate(pairwise(ends)):
        mine = []
        for number, size in enumerate(sizes):
            low, high = max(begin - starts[number], 0), min(end - starts[number], size)
            if low < high:
                mine.append(Chunk(number, low, high))
            elif not size and empty_places[number] == rank:
                mine.append(Chunk(number, 0, 0))
        found.append(tuple(mine))
    return tuple(found)


def _border(starts: Sequence[int], may_cut: Sequence[bool], target: int) -> int:
    """The allowed place nearest to `target`: the edge of a parameter, or a multiple of `ALIGNMENT` inside one."""
    number = bisect_right(starts, target) - 1
    if number >= len(may_cut):
        return starts[-1]
    low, high = starts[number], starts[number + 1]
    if may_cut[number]:
        low += (target - low) // ALIGNMENT * ALIGNMENT
        high = min(low + ALIGNMENT, high)
    return low if target - low <= high - target else high


def _rank_of(place: int, ends: Sequence[int]) -> int:
    return min(bisect_right(ends, place) - 1, len(ends) - 2)
