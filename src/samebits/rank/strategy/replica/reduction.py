"""A pass's reduction over the ranks, bucket by bucket, begun during backward where that is safe.

A bucket may begin when all its gradients have arrived in what, judging by the previous step, is the last backward of
the rank's only lane. A later gradient *reopens* its bucket: the step's frame reports it to all ranks, and it is reduced again
from the start. Buckets begin in one fixed order on every rank.

It says when and in which order, and adds nothing:
    a rank's own lanes      lane_gradients.PartialSums, as protocol.layout.lane_tree allows
    over the ranks          rank.transport
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from samebits.protocol.journal.spans import spans
from samebits.protocol.journal.waiting_note import subject
from samebits.protocol.layout.placement import Placement
from samebits.rank.strategy.replica.lane_gradients import WIDE, Bucket, GradientBuffer, PartialSums
from samebits.rank.transport.contract import Pending, SeveralSums, Transport


class Reduction:
    """The reduction of one pass.

    Args:
        buckets: all buckets, in the order in which they begin.
        name_of: the name of a trainable parameter, by its number; called only when a rank waits for long, or in traces.
    """

    def __init__(
        self, transport: Transport, placement: Placement, buckets: Sequence[Bucket], name_of: Callable[[int], str]
    ) -> None:
        self._transport, self._placement, self._buckets, self._name_of = transport, placement, buckets, name_of
        self._under_way: dict[int, Pending] = {}
        self._missing: list[set[int]] = []
        self._result: GradientBuffer | None = None
        self._wide: list[Tensor] = []
        """The flats of the result in the dtype of the sum."""
        self._buffer: GradientBuffer | None = None
        self.reopened: set[int] = set()

    @property
    def num_begun(self) -> int:
        """The number of buckets that this rank has begun, from the first on."""
        return len(self._under_way)

    @property
    def is_quiet(self) -> bool:
        """Whether gradients that arrive change nothing here: no bucket has begun, and none may begin."""
        return self._buffer is None and not self._under_way

    def arm(self, buffer: GradientBuffer) -> None:
        """Begin buckets of `buffer`, the rank's only lane, as soon as they are complete."""
        # Halves are added up in float32 copies, which there are only once the lane is complete.
        if not self._under_way and not any(flat.dtype in WIDE for flat in buffer.flats):
            self._buffer = buffer
            self._missing = [set(bucket.members) for bucket in self._buckets]

    def gradient_arrived(self, bucket: int, parameter: int) -> None:
        """Note that a parameter of a bucket has its gradient."""
        # [Note: why a bucket is reopened]
        # A bucket begins when, judging by the step before, its gradients are complete. Another backward, or a reentrant
        # checkpoint on a reused block, may add to one of them afterwards: what was sent is wrong then, on every rank.
        if self._buffer is None:
            if bucket < self.num_begun:
                self.reopened.add(bucket)
            return
        self._missing[bucket].discard(parameter)
        if bucket < self.num_begun:
            self.reopened.add(bucket)
        while self.num_begun < len(self._buckets) and not self._missing[self.num_begun]:
            number = self.num_begun
            part = _part(self._buffer.flats, self._buckets[number])
            self._under_way[number] = self._begin_sum(number, [part], part)

    def disarm(self) -> None:
        """End the backward: what has begun continues, nothing else begins."""
        self._buffer = None

    def begin(
        self,
        sums: PartialSums,
        needed: set[int],
        begun: int,
        reopened: frozenset[int],
        left_out: frozenset[int] = frozenset(),
    ) -> None:
        """Begin what is not under way yet. Collective: call it on every rank.

        All arguments but the first must be the same on every rank.

        Args:
            sums: this rank's lanes, added up.
            needed: the buckets in which some lane of any rank has a gradient.
            begun: the most buckets that any rank has begun.
            reopened: the buckets that any rank has reopened.
            left_out: parameters that are not reduced here; no rank has begun a bucket with one of them.
        """
        numbers = needed | set(range(begun))
        if self._result is None:
            self._result, self._wide = sums.result()
        for number in sorted(numbers - self._under_way.keys()):
            self._begin(number, sums, left_out)
        for number in sorted(reopened & numbers):
            self._under_way[number].give_up()
            self._begin(number, sums, left_out)

    def _begin(self, number: int, sums: PartialSums, left_out: frozenset[int]) -> None:
        pieces = sums.pool.pieces(self._buckets[number], left_out)
        begun = [self._begin_sum(number, sums.bucket(piece), _part(self._wide, piece)) for piece in pieces]
        self._under_way[number] = begun[0] if len(begun) == 1 else SeveralSums(begun)

    def _begin_sum(self, number: int, partials: Sequence[Tensor], out: Tensor) -> Pending:
        subject.of = self._text_of(number)
        try:
            return self._transport.begin_all_reduce(partials, self._placement, out)
        finally:
            subject.of = None

    def finish(self, scale: float) -> GradientBuffer:
        """Wait for all sums, multiplied by `scale`; return the buffer that holds them."""
        assert self._result is not None
        # All are advanced before the first is finished: its result travels while the others are added up.
        try:
            for number, pending in self._under_way.items():
                subject.of = self._text_of(number)
                pending.advance(scale)
            for number, pending in self._under_way.items():
                subject.of = self._text_of(number)
                with spans.range("lanes and buckets", f"reduce bucket {number}"):
                    pending.finish()
                if self._wide is not self._result.flats:
                    _part(self._result.flats, self._buckets[number]).copy_(_part(self._wide, self._buckets[number]))
        finally:
            subject.of = None
        return self._result

    def _text_of(self, number: int) -> Callable[[], str]:
        """`bucket 2, first layer4.0.conv1.weight`: the parameter whose gradient is complete first."""
        # [Note: why the text knows nothing of the reduction]
        # A sum on its way keeps it. A cycle would keep the buffers of a step until the next garbage collection.
        return partial(_text, self._name_of, number, self._buckets[number].members[0])


def _text(name_of: Callable[[int], str], number: int, member: int) -> str:
    return f"bucket {number}, first {name_of(member)}"


def _part(flats: Sequence[Tensor], bucket: Bucket) -> Tensor:
    return flats[bucket.flat][bucket.start : bucket.end]
