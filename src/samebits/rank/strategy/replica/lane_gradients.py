"""What a lane's backward writes into, and what the ranks reduce.

Every lane gets a gradient buffer: flat memory per (dtype, device), with a view per trainable parameter that serves as
`p.grad` while the lane runs. A run with one lane has one lane on any number of ranks, and needs none (`OnlyLane`). Finished
lanes are merged as the lane tree allows, so a rank with k lanes holds at most log2(k) + 1 buffers.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import torch
from torch import Tensor, nn

from samebits.machine.torch_private import zero_each
from samebits.protocol.layout.lane_tree import Node, merges_after
from samebits.rank.strategy.replica.arena import Allocate, Holders, Segment, lay_out, view_in
from samebits.rank.strategy.replica.memory import private_zeros
from samebits.rank.strategy.replica.sparse_embedding import Rows, around
from samebits.rank.transport.contract import Transport

BUCKET_BYTES = 4 * 1024 * 1024
"""Parameters are reduced in runs of about this size; a run that no lane used is not reduced.

Over shared memory, all sizes from 256 KiB to the whole model take equally long, within 12 % (measured on four kinds of machine).
"""

GPU_BUCKET_BYTES = 64 * 1024 * 1024
"""The same on GPUs, but for the first bucket, so that its exchange begins early: NCCL takes messages between all pairs of
ranks, which cost 0.3 ms of Python in each bucket of 8 ranks. Counted with torch's fake back end; no GPU has timed it."""

COPIED_BYTES = 128 * 1024
"""From this size on, a gradient is copied into its view (reads one, writes one) instead of added to zeros there (writes
one, reads two, writes one). Below it, the extra call costs more than the traffic."""

WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""The dtype in which gradients of a dtype are added up, where it is not the dtype itself."""


_version, _is_shared = attrgetter("_version"), attrgetter("is_shared")


@dataclass
class GradientBuffer:
    """Gradients of all trainable parameters: one lane's, or the sum of a node of the lane tree."""

    flats: list[Tensor]
    """1-D, one for each (dtype, device) of parameters."""
    views: list[Tensor]
    """For each trainable parameter, its part of a flat, with the parameter's shape and strides."""
    zeroed: list[Tensor]
    """Parts of the flats that hold views that are not copied, and nothing else: zeroed before a lane. The first gradient
    overwrites the others."""
    is_shared: bool
    """Whether it is in the memory that is cheapest to reduce."""
    unheld: Holders = field(init=False)
    """The references to gradients while nothing else holds one."""

    def __post_init__(self) -> None:
        self.unheld = Holders(self.views, self.flats)

    def versions(self) -> list[int]:
        """Counters that increase with every in-place write to a gradient."""
        return list(map(_version, self.flats))


@dataclass(frozen=True)
class Bucket:
    """A run of neighbouring parameters in one flat: elements [start, end)."""

    flat: int
    start: int
    end: int
    members: tuple[int, ...]
    """Numbers of the trainable parameters inside."""


class GradientBufferPool:
    """Buffers for one list of trainable parameters, reused from step to step.

    Args:
        parameters: the trainable parameters, in order.
        transport: the ranks; each of them must make the pool when `num_shared` is not 0.
        num_shared: this many buffers are made at once, in the memory that is cheapest to reduce. More are this rank's
            own, made when they are taken.
        bucket_bytes: the approximate size of buckets; None: what fits the device.
        tables: the numbers of the parameters whose gradients may come as rows; see `rows`.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        transport: Transport,
        num_shared: int,
        bucket_bytes: int | None = None,
        tables: frozenset[int] = frozenset(),
    ) -> None:
        self.parameters, self.tables = list(parameters), tables
        self.segments, self._kinds = lay_out([parameter.detach() for parameter in parameters], _without_memory)
        self.has_halves = any(kind.dtype in WIDE for kind in self._kinds)
        self.buckets = _buckets(self.segments, self._kinds, bucket_bytes)
        sizes = [segment.size * self._kinds[segment.flat].element_size() for segment in self.segments]
        self.is_copied = [size >= COPIED_BYTES or number in tables for number, size in enumerate(sizes)]
        """For each trainable parameter, whether its first gradient is copied into its view: large ones, and tables."""
        self.copied = [number for number, is_copied in enumerate(self.is_copied) if is_copied]
        self.flat_of = [segment.flat for segment in self.segments]
        self._zeroed = _runs(self.segments, self.is_copied)
        self._transport = transport
        self._made: list[weakref.ref[GradientBuffer]] = []
        self._shared = [self._buffer(transport.allocate, is_shared=True) for _ in range(num_shared)]
        self._idle = list(self._shared)

    @property
    def nbytes(self) -> int:
        """The memory of all buffers that there are."""
        return sum(flat.nbytes for one in self._made if (buffer := one()) is not None for flat in buffer.flats)

    def close(self) -> None:
        """Close the pool: its buffers are reduced no more. Collective: call it on every rank.

        The order among other calls of the transport must be the same.
        """
        for buffer in self._shared:
            for flat in buffer.flats:
                self._transport.free(flat)

    def take(self) -> GradientBuffer:
        """Take a buffer full of zeros that nothing else can see."""
        buffer = self.take_unfilled()
        for flat in buffer.flats:
            flat.zero_()
        return buffer

    def take_unfilled(self, *, zeroed: bool = True) -> GradientBuffer:
        """Take a buffer that nothing else can see; only `GradientBuffer.zeroed` is sure to be zero, with `zeroed`."""
        # Gradients start from zeros in every strategy: a stolen gradient and an accumulated one differ in the sign of some zeros.
        buffer = self._unheld()
        if buffer is None:
            return self._buffer(private_zeros, is_shared=False)
        if buffer.zeroed and zeroed:
            zero_each(buffer.zeroed)
        return buffer

    def _unheld(self) -> GradientBuffer | None:
        """An idle buffer none of whose gradients is held elsewhere."""
        held: list[GradientBuffer] = []
        found = None
        # [Note: why held buffers stay until the next pass]
        # Shared ones are the cheapest to reduce, so they are tried before others. A lane's buffer is given back while `p.grad`
        # still is that lane's: dropped at once, it would be made anew in every step, with a view for each parameter.
        self._idle.sort(key=_is_shared)
        while self._idle and found is None:
            buffer = self._idle.pop()
            if buffer.unheld.same():
                found = buffer
            else:
                held.append(buffer)
        self._idle[:0] = held
        return found

    def drop_held(self) -> None:
        """Keep no buffer of this rank's own that the script holds: it is freed with the script's reference."""
        self._idle = [one for one in self._idle if one.is_shared or one.unheld.same()]

    def _buffer(self, allocate: Allocate, *, is_shared: bool) -> GradientBuffer:
        flats = [allocate(kind.numel(), kind.dtype, kind.device) for kind in self._kinds]
        views = [view_in(flats[s.flat], s, p) for s, p in zip(self.segments, self.parameters, strict=True)]
        zeroed = [flats[flat][start:end] for flat, start, end in self._zeroed]
        buffer = GradientBuffer(flats, views, zeroed, is_shared)
        self._made = [one for one in self._made if one() is not None] + [weakref.ref(buffer)]
        return buffer

    def pieces(self, bucket: Bucket, left_out: frozenset[int]) -> list[Bucket]:
        """What is left of a bucket without some parameters."""
        if left_out.isdisjoint(bucket.members):
            return [bucket]
        holes = [self.segments[number] for number in left_out.intersection(bucket.members)]
        holes.sort(key=attrgetter("offset"))
        return [
            Bucket(bucket.flat, start, end, bucket.members) for start, end in around(bucket.start, bucket.end, holes)
        ]

    def parts(self, flats: Sequence[Tensor], left_out: frozenset[int]) -> list[Tensor]:
        """All memory of `flats` but that of some parameters."""
        if not left_out:
            return list(flats)
        every = [piece for bucket in self.buckets for piece in self.pieces(bucket, left_out)]
        return [flats[one.flat][one.start : one.end] for one in every]

    def give_back(self, buffer: GradientBuffer) -> None:
        """Give back a buffer; it may be taken again once nothing holds its gradients any more."""
        self._idle.append(buffer)


def _runs(segments: Sequence[Segment], is_copied: Sequence[bool]) -> list[tuple[int, int, int]]:
    """The longest (flat, start, end) in which no parameter is copied, from one's start to another's end."""
    runs: list[tuple[int, int, int]] = []
    ordered = sorted(
        (one.flat, one.offset, one.offset + one.size, copied) for one, copied in zip(segments, is_copied, strict=True)
    )
    goes_on = False
    for flat, start, end, copied in ordered:
        if not copied and end > start:
            if goes_on and runs[-1][0] == flat:
                runs[-1] = flat, runs[-1][1], end
            else:
                runs.append((flat, start, end))
        goes_on = (goes_on or end > start) and not copied
    return runs


def _without_memory(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a flat that only has a size."""
    return torch.zeros((), dtype=dtype, device=device).expand(size)


def _buckets(segments: Sequence[Segment], kinds: Sequence[Tensor], bucket_bytes: int | None) -> list[Bucket]:
    """Divide into runs of neighbouring parameters, the last ones first."""
    # The last layers' gradients are complete first. A small first bucket begins early; see GPU_BUCKET_BYTES.
    buckets = []
    for flat, kind in enumerate(kinds):
        members = [number for number, segment in enumerate(segments) if segment.flat == flat and segment.size]
        end, run = kind.numel(), []
        full = bucket_bytes or BUCKET_BYTES
        for number in reversed(members):
            run.append(number)
            start = segments[number].offset
            if (end - start) * kind.element_size() >= full or number == members[0]:
                buckets.append(Bucket(flat, start, end, tuple(run)))
                end, run = start, []
                full = bucket_bytes or (BUCKET_BYTES if kind.device.type == "cpu" else GPU_BUCKET_BYTES)
    return buckets


class PartialSums:
    """The lanes of one rank, added up along the lane tree as they are finished."""

    def __init__(self, pool: GradientBufferPool, subtrees: Sequence[Node], scaled: bool) -> None:
        self.pool, self._subtrees, self._scaled = pool, subtrees, scaled
        self._buffers: dict[Node, GradientBuffer] = {}
        self._wide: dict[Node, list[Tensor]] = {}
        self._rows: dict[Node, dict[int, Rows]] = {}
        """By node, the tables of which it has rows; their places in the buffer mean nothing."""
        self._base: GradientBuffer | None = None

    def add(
        self, lane: int, buffer: GradientBuffer | None, weight: float, rows: Mapping[int, Rows] | None = None
    ) -> None:
        """Add finished lane `lane` with its gradients. Lanes may come in any order.

        Args:
            buffer: the lane's, but for `rows`; None: zeros, of an empty lane.
            weight: what the lane counts.
            rows: by number, the tables of which the lane has rows.
        """
        self._keep((lane, lane + 1), buffer, weight, rows or {})
        for left, right in merges_after(lane, self._subtrees, self._buffers):
            self._merge(left, right)

    def _keep(self, node: Node, buffer: GradientBuffer | None, weight: float, rows: Mapping[int, Rows]) -> None:
        pool = self.pool
        if buffer is None:
            buffer = pool.take_unfilled()
            for part in pool.parts(buffer.flats, pool.tables):
                part.zero_()
            rows = {number: Rows.none(pool.parameters[number], buffer.views[number].dtype) for number in pool.tables}
        wide = buffer.flats
        # Halves are added up in float32: a transport may round after each addition or once.
        if pool.has_halves:
            wide = [flat.to(WIDE.get(flat.dtype, flat.dtype)) for flat in wide]
            rows = {number: one.to(wide[pool.flat_of[number]].dtype) for number, one in rows.items()}
        self._buffers[node], self._wide[node], self._rows[node] = buffer, wide, {**rows}
        if self._scaled and weight != 1.0:
            self._weigh(node, weight)

    def _weigh(self, node: Node, weight: float) -> None:
        rows = self._rows[node]
        # Such a weight makes -0.0 or NaN of the rows that are not there: the table must be whole.
        if not (weight >= 0 and math.isfinite(weight)):
            self._fill(node, set(rows))
        for part in self.pool.parts(self._wide[node], frozenset(rows)):
            # A lane without items has weight 0 and a loss of 0 / 0: times 0 its gradient would stay NaN.
            part.mul_(weight) if weight else part.zero_()
        self._rows[node] = {number: one.times(weight) for number, one in rows.items()}

    def _merge(self, left: Node, right: Node) -> None:
        larger, both = (left[0], right[1]), frozenset(self._rows[left].keys() & self._rows[right].keys())
        if self.pool.tables:
            self._fill(left, self._rows[left].keys() - both)
            self._fill(right, self._rows[right].keys() - both)
        totals, others = self._wide.pop(left), self._wide.pop(right)
        for total, other in zip(self.pool.parts(totals, both), self.pool.parts(others, both), strict=True):
            total.add_(other)
        self.pool.give_back(self._buffers.pop(right))
        self._wide[larger], self._buffers[larger] = totals, self._buffers.pop(left)
        rows, more = self._rows.pop(left), self._rows.pop(right)
        self._rows[larger] = {number: one.plus(more[number]) for number, one in rows.items()} if both else rows

    def _fill(self, node: Node, numbers: Iterable[int]) -> None:
        """Put tables into their places in the buffer, whole."""
        for number in numbers:
            segment = self.pool.segments[number]
            self._rows[node].pop(number).fill(
                view_in(self._wide[node][segment.flat], segment, self.pool.parameters[number])
            )

    def num_rows(self) -> dict[int, int]:
        """For each table of which this rank has nothing but rows, at most how many; none of any, where it has no lanes."""
        if not self.pool.tables:
            return {}
        if not self._subtrees:
            return dict.fromkeys(self.pool.tables, 0)
        first, *others = (self._rows[node] for node in self._subtrees)
        return {
            number: one.index.numel() + sum(rows[number].index.numel() for rows in others)
            for number, one in first.items()
            if all(number in rows for rows in others)
        }

    def rows(self, numbers: Collection[int]) -> dict[int, list[Rows]]:
        """This rank's parts of the tables `numbers`, which are exchanged by rows; all others are in their buffers now."""
        if not self.pool.tables:
            return {}
        for node in self._subtrees:
            self._fill(node, self._rows[node].keys() - numbers)
        return {number: [self._rows[node][number] for node in self._subtrees] for number in numbers}

    def bucket(self, bucket: Bucket) -> list[Tensor]:
        """The partial of each subtree for `bucket`, in order."""
        return [self._wide[node][bucket.flat][bucket.start : bucket.end] for node in self._subtrees]

    def give_up(self) -> None:
        """Give up the sum and return the buffers to the pool."""
        self.finish(None)

    def result(self) -> tuple[GradientBuffer, list[Tensor]]:
        """Return the buffer for the result, and its flats in the dtype of the sum: the first partial's, if there is one."""
        if self._subtrees:
            return self._buffers[self._subtrees[0]], self._wide[self._subtrees[0]]
        buffer = self._base = self.pool.take_unfilled(zeroed=False)
        if not self.pool.has_halves:
            return buffer, buffer.flats
        return buffer, [torch.empty_like(f, dtype=WIDE[f.dtype]) if f.dtype in WIDE else f for f in buffer.flats]

    def finish(self, result: GradientBuffer | None) -> None:
        """Give back all buffers but the result."""
        own = [self._base] if self._base is not None else []
        for buffer in [*self._buffers.values(), *own]:
            if buffer is not result:
                self.pool.give_back(buffer)
        self._buffers.clear()
        self._base = None


MOST_POOLS = 4
"""Each pool takes the memory of at least one gradient, so those of patterns not used recently are dropped."""


class GradientBufferPools:
    """The pools of one list of parameters. Collective: call its methods on every rank, in the same order.

    Args:
        transport: see `GradientBufferPool`.
        num_shared: see `GradientBufferPool`.
    """

    def __init__(self, transport: Transport, num_shared: int) -> None:
        self._transport, self._num_shared = transport, num_shared
        self._pools: dict[tuple[tuple[bool, ...], frozenset[int]], GradientBufferPool] = {}
        """The most recently used one comes last."""

    def of(self, parameters: Sequence[nn.Parameter], tables: frozenset[int] = frozenset()) -> GradientBufferPool:
        """Return the pool for those of `parameters`, always the same list, that are trainable now.

        Args:
            tables: see `GradientBufferPool`.
        """
        pattern = tuple(parameter.requires_grad for parameter in parameters), tables
        pool = self._pools.pop(pattern, None)
        if pool is None:
            trainable = [parameter for parameter in parameters if parameter.requires_grad]
            pool = GradientBufferPool(trainable, self._transport, self._num_shared, tables=tables)
        self._pools[pattern] = pool
        if len(self._pools) > MOST_POOLS:
            self._pools.pop(next(iter(self._pools))).close()
        return pool

    def close(self) -> None:
        """Close all pools: nothing is reduced from their buffers any more."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
