"""Which rank copies what of a state: what only it holds, and of what all hold, as much as the others. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from lockstep.rank.checkpoint.inventory import Found
from lockstep.rank.checkpoint.tensor_file import Described

PIECE_BYTES = 4 << 20
"""Tensors are cut into pieces of about this size, between two rows."""


@dataclass(frozen=True)
class Piece:
    """Rows of a tensor, which one rank copies."""

    file: str
    name: str
    rows: slice | None
    """None: it is copied whole."""
    offset: int
    """The first byte, counted from the tensor's."""

    def of(self, tensor: Tensor) -> Tensor:
        """The rows."""
        return tensor if self.rows is None else tensor[self.rows]


def share_out(found: Found, reach: Collection[int]) -> dict[int, list[Piece]]:
    """What each rank in `reach` copies; together that is once every row of each tensor that a rank in `reach` has.

    Args:
        found: where tensors come from.
        reach: ranks, in ascending order, that can write to the memory.
    """
    loads = dict.fromkeys(reach, 0)
    shares: dict[int, list[Piece]] = {rank: [] for rank in reach}
    entries = [(one.is_everywhere, file, name) for file, tensors in found.items() for name, one in tensors.items()]
    for is_everywhere, file, name in sorted(entries):  # first what one rank holds alone
        source = found[file][name]
        givers = reach if is_everywhere else [rank for rank in reach if rank == source.rank]
        for rows, offset, size in _cuts(source.described) if givers else []:
            rank = min(givers, key=loads.__getitem__)
            loads[rank] += size
            shares[rank].append(Piece(file, name, rows, offset))
    return shares


def _cuts(described: Described) -> list[tuple[slice | None, int, int]]:
    """The pieces of a tensor: rows, first byte and number of bytes of each."""
    size = described.size_bytes
    if size <= PIECE_BYTES or described.shape[0] == 1:
        return [(None, 0, size)]
    row_bytes = size // described.shape[0]
    step = max(1, PIECE_BYTES // row_bytes)
    begins = range(0, described.shape[0], step)
    return [(slice(at, at + step), at * row_bytes, min(step * row_bytes, size - at * row_bytes)) for at in begins]
