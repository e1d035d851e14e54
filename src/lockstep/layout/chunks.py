"""Fixed chunks of parameters: the units in which norms and other reductions over parameters are computed.

A chunk never crosses a parameter, and starts at a multiple of `ALIGNMENT` elements from the parameter's start, so the
chunks depend on shapes only: not on ranks, shards or buckets. (8 elements suffice for float32 and 32 for bfloat16;
odd chunks change the bits of fused optimizers.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ALIGNMENT = 1024
"""Every chunk starts at a multiple of this many elements from its parameter's start."""

CHUNK_ELEMENTS = 256 * ALIGNMENT
"""The size of every chunk but a parameter's last: 1 MiB of float32."""


@dataclass(frozen=True)
class Chunk:
    """Elements [start, end) of the parameter number `parameter`."""

    parameter: int
    start: int
    end: int


def chunks_of(sizes: Sequence[int], chunk_elements: int = CHUNK_ELEMENTS) -> Iterator[Chunk]:
    """All chunks of parameters of the given element counts, in order.

    Invariant: disjoint, in order, covering every element; starts are multiples of `ALIGNMENT`. A parameter without
    elements has no chunk.
    """
    if chunk_elements % ALIGNMENT:
        raise ValueError(f"chunk_elements must be a multiple of {ALIGNMENT}, but is {chunk_elements}")
    for parameter, size in enumerate(sizes):
        for start in range(0, size, chunk_elements):
            yield Chunk(parameter, start, min(start + chunk_elements, size))


def aligned_offsets(sizes: Sequence[int], alignment: int = ALIGNMENT) -> tuple[tuple[int, ...], int]:
    """Where each parameter starts in a flat buffer, and the buffer's length; every start is a multiple of `alignment`.

    Small parameters share the alignment of `min(alignment, next power of two)`, so that a hundred biases do not cost a
    hundred kilobytes: a start is a multiple of 64 elements, or of `alignment` for parameters of `alignment` and more.
    """
    offsets, end = [], 0
    for size in sizes:
        unit = alignment if size >= alignment else min(64, alignment)
        start = -(-end // unit) * unit
        offsets.append(start)
        end = start + size
    return tuple(offsets), -(-end // 64) * 64
