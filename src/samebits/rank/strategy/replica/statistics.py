"""Statistics of normalisation layers in a pass on a GPU: which of them a lane changed, and their mean, is found out there.

On the host the same needs a look at bits after every lane, for which the device would have to end all its work. The bits
are those of `buffer_pass`: sums in the tree's order over the lanes that changed an entry, scaled once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.layout.cut import StepCut
from samebits.protocol.layout.lane_tree import fold, merged
from samebits.protocol.layout.placement import Placement
from samebits.rank.strategy.agreement import INTEGERS
from samebits.rank.strategy.replica.arena import Segment
from samebits.rank.strategy.replica.lane_gradients import WIDE
from samebits.rank.transport.contract import Pending, Transport

COMPARED_LANES = 4
"""The number of lanes after which bits are compared, as `CHECKED_LANES` of parameters."""


class WriteCounters:
    """The counters of some buffers.

    Args:
        buffers: as the module holds them.
    """

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._buffers = buffers
        # [Note: when the counters of writes are trusted]
        # Tensors of inference mode count nothing, and `.data` writes are not counted. So bits are compared after the first
        # lanes; a change that no counter showed ends the trust for good.
        self._is_right = not any(buffer.is_inference() for buffer in buffers)
        self._num_compared = 0
        self._noted: list[int] = []

    def note(self) -> None:
        """What is written from here on is the lane's."""
        if self._is_right:
            self._noted = self._now()

    def _now(self) -> list[int]:
        return [buffer._version for buffer in self._buffers]  # noqa: SLF001 - torch's own name for a documented idea

    def counted(self) -> set[int]:
        """Which buffers were written to since `note`, by their place."""
        if not self._is_right:
            return set()
        return {place for place, (now, noted) in enumerate(zip(self._now(), self._noted, strict=True)) if now != noted}

    def suffice(self) -> bool:
        """Whether bits need not be compared: the lane wrote to no buffer, and the counters can be trusted."""
        return self._is_right and self._num_compared >= COMPARED_LANES and not self.counted()

    def learn(self, counted: set[int], changed: set[int]) -> None:
        """Bits were compared: those that `changed` since `note`, and what was `counted` before any other write."""
        self._is_right = self._is_right and changed <= counted
        self._num_compared += 1


def unseen(names: Sequence[str]) -> UsageError:
    """The error when the device found a change that the counters did not show, in one of the buffers `names`."""
    shown = ", ".join(map(repr, names[:3])) + ", ..." * (len(names) > 3)
    return UsageError(
        f"A buffer (of {shown}) was changed in a lane of an earlier step in a way that torch does not count, as through "
        ".data; it was not in the first steps, so the change was not carried on.",
        "Write to the buffer itself, under torch.no_grad(): buffer.copy_(value), buffer.lerp_(value, weight).",
    )


class LaneTable:
    """One exchange.

    Args:
        rows: int64, (lanes, numbers); zeros in the rows of other ranks' lanes.

    Construct it on every rank; that begins it.
    """

    def __init__(self, rows: Tensor, transport: Transport, placement: Placement) -> None:
        self._all = rows
        self._pending: Pending | None = None
        if transport.world_size == 1:
            return
        num_partials = len(placement.subtrees(transport.rank))
        # This rank's rows are complete, so its first partial has all of them, and the others are zeros.
        partials = [rows.view(-1), *(torch.zeros_like(rows).view(-1) for _ in range(1, num_partials))]
        self._all = torch.empty_like(rows)
        self._pending = transport.begin_all_reduce(partials[:num_partials], placement, self._all.view(-1))

    def finish(self) -> Tensor:
        """Return the rows of all lanes. Work that is queued from here on comes after the exchange."""
        if self._pending is not None:
            self._pending.advance()
            self._pending.finish()
            self._pending = None
        return self._all


class EntryPlaces:
    """Where the entries of a flat are, as its device knows it.

    Args:
        segments: of the entries, in order.
    """

    def __init__(self, segments: Sequence[Segment], flat: Tensor) -> None:
        starts = np.array([segment.offset for segment in segments], dtype=np.int64)
        sizes = np.array([segment.size for segment in segments], dtype=np.int64)
        owner = np.searchsorted(starts, np.arange(flat.numel()), side="right") - 1
        self.starts, self._last = (torch.from_numpy(one).to(flat.device) for one in (starts, starts + sizes - 1))
        self._nothing = torch.zeros((1, 1), dtype=torch.int64, device=flat.device)
        self._owner = torch.from_numpy(owner).to(flat.device)
        """For each element, its entry; of what is between two, the first one."""
        self._odd = 2 * torch.arange(flat.numel(), device=flat.device) + 1

    def changed(self, left: Tensor, right: Tensor) -> Tensor:
        """For each row of `left` and each entry, whether any bit differs from `right`, a flat: 1 or 0, int64."""
        integers = INTEGERS[left.element_size()]
        return self._added_up(left.view(integers) != right.view(integers)).clamp_(max=1)

    def sums(self, flat: Tensor) -> Tensor:
        """For each entry, one number from its bits, in which each has a place: int64, which wraps around."""
        return self._added_up(flat.view(1, -1).view(INTEGERS[flat.element_size()]) * self._odd)

    def _added_up(self, rows: Tensor) -> Tensor:
        """The sum of each entry's elements, for each row: int64. What is between two entries must be 0."""
        # The sum up to an entry's end, less that up to the end of the one before: no loop over entries.
        so_far = rows.cumsum(1, dtype=torch.int64)[:, self._last]
        return torch.diff(so_far, prepend=self._nothing.expand(len(rows), 1))

    def spread(self, values: Tensor) -> Tensor:
        """For each element, the value of its entry, which is in the last dimension."""
        return values[..., self._owner]


@dataclass
class Moving:
    """One flat of entries that change in every lane."""

    flat: Tensor
    start: Tensor
    """As it was when the pass began."""
    places: EntryPlaces
    names: Sequence[str]
    """Of its entries."""

    @property
    def is_mean(self) -> bool:
        """Whether its entries end as a mean; otherwise as the maximum."""
        return self.flat.is_floating_point()


class Statistics:
    """Those that this rank's lanes changed in one pass, until they are settled with the other ranks.

    Args:
        moving: the flats, the same ones on every rank, all on one device.
    """

    def __init__(self, moving: Sequence[Moving], cut: StepCut) -> None:
        self._moving, self._cut = moving, cut
        self._left: dict[int, list[Tensor]] = {}
        """By lane, what it made of each flat."""
        self._table: LaneTable | None = None
        """By lane, for each entry, flat by flat: a sum over its bits when the pass began, on the lane's rank; then whether the lane
        changed it; then the values of those that end as a maximum."""
        self._sums: list[tuple[Moving, Pending, Tensor]] = []

    def after_lane(self, lane: int) -> None:
        """Note what the lane made of the flats, and give the module the old values back."""
        self._left[lane] = [one.flat.clone() for one in self._moving]
        for one in self._moving:
            one.flat.copy_(one.start)

    def begin(self, transport: Transport, placement: Placement) -> None:
        """Begin to settle with the other ranks. Collective: call it on every rank."""
        width = sum(one.places.starts.numel() * (2 if one.is_mean else 3) for one in self._moving)
        table = self._moving[0].flat.new_zeros((placement.num_lanes, width), dtype=torch.int64)
        # All lanes at once: what a step starts on a GPU does not grow with their number. Those with samples are neighbours.
        lanes = sorted(self._left)
        left = [
            torch.stack([self._left[lane][number] for lane in lanes]) for number in range(len(self._moving)) if lanes
        ]
        pairs = [*zip(self._moving, left, strict=False)]
        changed = [one.places.changed(values, one.start) for one, values in pairs]
        if lanes:
            held = [one.places.sums(one.start).expand(len(lanes), -1) for one in self._moving]
            largest = [values[:, one.places.starts].to(torch.int64) for one, values in pairs if not one.is_mean]
            table[lanes[0] : lanes[-1] + 1].copy_(torch.cat([*held, *changed, *largest], dim=1))
        self._table = LaneTable(table, transport, placement)
        self._sums = []
        for number, one in enumerate(self._moving):
            if one.is_mean:
                terms = self._terms(one, lanes, left[number], changed[number]) if lanes else {}
                dtype = WIDE.get(one.flat.dtype, one.flat.dtype)
                for lane in placement.lanes(transport.rank):
                    if lane not in terms:
                        terms[lane] = torch.zeros_like(one.flat, dtype=dtype)
                partials = merged(dict(sorted(terms.items())), placement.subtrees(transport.rank))
                total = torch.empty_like(one.flat, dtype=dtype)
                self._sums.append((one, transport.begin_all_reduce(partials, placement, total), total))

    def finish(self) -> None:
        """Give every flat its values after the pass."""
        assert self._table is not None
        table = self._table.finish()
        totals = {id(one): (pending, total) for one, pending, total in self._sums}
        changed_at, largest_at = self._num_entries, 2 * self._num_entries
        for one in self._moving:
            size = one.places.starts.numel()
            changed = table[:, changed_at : changed_at + size]
            changed_at += size
            if id(one) in totals:
                pending, total = totals[id(one)]
                pending.advance()
                pending.finish()
                value = total.mul_(one.places.spread(self._scales(changed).to(total.dtype)))
            else:
                found = table[:, largest_at : largest_at + size]
                largest_at += size
                smallest = torch.iinfo(torch.int64).min
                value = one.places.spread(found.masked_fill(changed == 0, smallest).amax(0))
            touched = one.places.spread(changed.amax(0)) != 0
            one.flat.copy_(torch.where(touched, value.to(one.flat.dtype), one.start))
        # Whoever reads the pass's loss later holds this object, and need not hold what the lanes left.
        self._left.clear()
        self._sums.clear()

    @property
    def _num_entries(self) -> int:
        return sum(one.places.starts.numel() for one in self._moving)

    def apart(self) -> Tensor:
        """Whether ranks began the pass with different values, on the device. After `finish`."""
        rows = self._rows_of_sums()
        return torch.stack([(row != rows[0]).any() for row in rows[1:]]).any() if rows[1:] else rows[0].new_zeros(())

    def _rows_of_sums(self) -> list[Tensor]:
        assert self._table is not None
        table = self._table.finish()
        return [table[lane, : self._num_entries] for lane, samples in enumerate(self._cut.samples) if samples]

    def sums_of_ranks(self, placement: Placement) -> list[Mapping[str, str]]:
        """For each rank, the sums that it reported, by name; none of a rank without lanes. Waits for the device."""
        names = [name for one in self._moving for name in one.names]
        rows = [row.tolist() for row in self._rows_of_sums()]
        first = [next(iter(placement.lanes(rank)), len(rows)) for rank in range(placement.num_ranks)]
        return [dict(zip(names, map(str, rows[lane]), strict=True)) if lane < len(rows) else {} for lane in first]

    def _terms(self, one: Moving, lanes: Sequence[int], left: Tensor, changed: Tensor) -> dict[int, Tensor]:
        """What each of `lanes` adds to the sum of a flat; zeros where it changed nothing. Overwrites `left`, their rows."""
        rows = left.to(WIDE.get(left.dtype, left.dtype)).masked_fill_(one.places.spread(changed) == 0, 0)
        for lane, row in zip(lanes, rows, strict=True):
            if (weight := self._cut.weights[lane]) != 1.0:
                row.mul_(weight)
        return dict(zip(lanes, rows, strict=True))

    def _scales(self, changed: Tensor) -> Tensor:
        """For each entry, the factor on its sum over the lanes that changed it, float64."""
        weights = {
            (lane, lane + 1): row if weight == 1.0 else row * weight
            for lane, (row, weight) in enumerate(zip(changed.to(torch.float64), self._cut.weights, strict=True))
        }
        total: Tensor = fold((0, len(weights)), weights, lambda left, right: left + right)
        return total.reciprocal()
