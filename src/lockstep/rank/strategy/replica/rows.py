"""Gradients of tables (embeddings): only the rows that a lane touched, everything else is zeros.

Every sum has the bits of the same sum over whole tables: a row that a lane did not touch is added as zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.protocol.layout.placement import Placement
from lockstep.rank.strategy.replica.arena import Segment
from lockstep.rank.transport.contract import Transport


@dataclass(frozen=True)
class Rows:
    """A table of zeros but for some rows."""

    index: Tensor
    """int64, ascending, each row once."""
    values: Tensor
    """The rows, in the order of `index`."""

    @classmethod
    def none(cls, like: Tensor, dtype: torch.dtype) -> Rows:
        """No row of a table like `like`."""
        return cls(
            torch.empty(0, dtype=torch.int64, device="cpu"),
            torch.empty((0, *like.shape[1:]), dtype=dtype, device="cpu"),
        )

    @classmethod
    def summed(cls, index: Tensor, values: Tensor) -> Rows:
        """Add up `values`, row by row in their order onto zeros, where `index` (int64, 1-D) says; it may repeat rows."""
        rows, places = torch.unique(index, return_inverse=True)
        return cls(rows, values.new_zeros((rows.numel(), *values.shape[1:])).index_add_(0, places, values))

    @classmethod
    def of(cls, gradient: Tensor) -> Rows:
        """Those of a sparse COO tensor with one sparse dimension."""
        gradient = gradient.detach()
        return cls.summed(gradient._indices()[0], gradient._values())  # noqa: SLF001 - coalesce() would sort unstably

    def spread(self, union: Tensor) -> Tensor:
        """The rows `union` of the table; they are ascending, and none of ours is missing."""
        values = self.values.new_zeros((union.numel(), *self.values.shape[1:]))
        return values.index_copy_(0, torch.searchsorted(union, self.index), self.values)

    def plus(self, other: Rows) -> Rows:
        """The sum of both tables."""
        union = torch.unique(torch.cat([self.index, other.index]))
        return Rows(union, self.spread(union).add_(other.spread(union)))

    def times(self, weight: float) -> Rows:
        """The table times `weight`; zeros if that is 0, whatever is in it."""
        return Rows(self.index, self.values * weight if weight else torch.zeros_like(self.values))

    def to(self, dtype: torch.dtype) -> Rows:
        """The same in another dtype."""
        return Rows(self.index, self.values.to(dtype))

    def fill(self, table: Tensor) -> None:
        """Write the whole table."""
        table.zero_()
        table.index_copy_(0, self.index, self.values.to(table.dtype))

    def sparse(self, like: Tensor) -> Tensor:
        """The table as a coalesced sparse tensor of the shape and dtype of `like`."""
        return torch.sparse_coo_tensor(
            self.index[None],
            self.values.to(like.dtype),
            like.shape,
            is_coalesced=True,
            check_invariants=False,
            device=like.device,
        )


def is_rows(gradient: Tensor | None) -> bool:
    """Whether a gradient says itself which rows it has."""
    return gradient is not None and gradient.layout is torch.sparse_coo and gradient.sparse_dim() == 1


def sum_of(before: Tensor, gradient: Tensor) -> Tensor:
    """Add a pass's gradient to what there was before, in place: in `before`, unless only `gradient` is dense."""
    if before.layout is not torch.strided and gradient.layout is torch.strided:
        return gradient.add_(before)
    return before.add_(gradient)


def around(start: int, end: int, holes: Iterable[Segment]) -> list[tuple[int, int]]:
    """What of elements [start, end) is in none of `holes`, which are ascending and do not overlap."""
    found = []
    for hole in holes:
        if hole.offset >= end:
            break
        if hole.offset > start:
            found.append((start, hole.offset))
        start = max(start, hole.offset + hole.size)
    return [*found, (start, end)] if start < end else found


def agreed(told: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Which tables are exchanged by rows, and how many of each any rank has at most; the same on every rank.

    Args:
        told: for each rank, the tables of which it has nothing but rows, unused ones too, with their number.
    """
    first, *others = told
    return {
        number: max(one[number] for one in told) for number in sorted(first) if all(number in other for other in others)
    }


def added_over_ranks(
    parts: Mapping[int, Sequence[Rows]],
    counts: Mapping[int, int],
    parameters: Sequence[nn.Parameter],
    ranks: tuple[Transport, Placement],
    dtypes: tuple[Mapping[torch.dtype, torch.dtype], float],
) -> dict[int, Rows]:
    """Add up tables over the ranks, only the rows that somebody has. Collective: call it on every rank.

    Args:
        parts: for each table, this rank's part of each of its subtrees.
        counts: see `agreed`; of those with 0, nothing travels.
        parameters: by number.
        ranks: the transport, and the lanes on its ranks.
        dtypes: in which dtype a table is added up, if not in its own; what every sum is multiplied by.
    """
    (transport, placement), (wide, scale) = ranks, dtypes
    numbers = [number for number, count in counts.items() if count]
    likes = ((number, parameters[number]) for number, count in counts.items() if not count)
    found = {number: Rows.none(like, wide.get(like.dtype, like.dtype)) for number, like in likes}
    if not numbers:
        return found
    found_unions = _unions([parts[number] for number in numbers], [counts[number] for number in numbers], transport)
    unions = dict(zip(numbers, found_unions, strict=True))
    kinds: dict[torch.dtype, list[int]] = {}
    for number in numbers:
        kinds.setdefault(wide.get(parameters[number].dtype, parameters[number].dtype), []).append(number)
    subtrees = range(len(placement.subtrees(transport.rank)))
    for dtype, members in kinds.items():
        shapes = [(unions[number].numel(), *parameters[number].shape[1:]) for number in members]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        partials = [
            torch.cat([parts[number][place].spread(unions[number]).view(-1) for number in members])
            for place in subtrees
        ]
        out = torch.empty(sum(sizes), dtype=dtype, device="cpu")
        pending = transport.begin_all_reduce(partials, placement, out)
        pending.advance(scale)
        pending.finish()
        for number, shape, values in zip(members, shapes, torch.split(out, sizes), strict=True):
            found[number] = Rows(unions[number], values.view(shape))
    return found


def _unions(parts: Sequence[Sequence[Rows]], counts: Sequence[int], transport: Transport) -> list[Tensor]:
    """For each table, the rows that any rank has; `counts` are the most of any rank. Collective."""
    mine = torch.full((sum(counts),), -1, dtype=torch.int64, device="cpu")
    for here, some in zip(torch.split(mine, list(counts)), parts, strict=True):
        rows = torch.unique(torch.cat([one.index for one in some])) if some else here[:0]
        here[: rows.numel()] = rows
    everyone = torch.stack(transport.all_gather(mine))
    unions = [torch.unique(rows) for rows in torch.split(everyone, list(counts), dim=1)]
    return [rows[1:] if rows[0] < 0 else rows for rows in unions]
