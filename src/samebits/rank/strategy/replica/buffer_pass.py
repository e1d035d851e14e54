"""The buffers of one pass: each lane's changes on this rank, then one value for all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.layout.cut import StepCut
from samebits.protocol.layout.lane_tree import merged, tree_sum
from samebits.protocol.layout.placement import Placement
from samebits.rank.strategy.replica.arena import Segment
from samebits.rank.strategy.replica.buffers import ADDED, COUNTING, EXTREME, BufferBank, Changes, Rule
from samebits.rank.strategy.replica.extremes import settle_extremes
from samebits.rank.strategy.replica.lane_gradients import WIDE
from samebits.rank.strategy.replica.statistics import Statistics
from samebits.rank.transport.contract import Pending, Transport


def counts(start: Tensor, value: Tensor, before: Tensor | None) -> bool:
    """Whether a change looks like a counter's: in one direction, by whole numbers or by the same amounts as before.

    From 0 to 1 it may be a switch.

    Args:
        start: real numbers, before the lane; on the CPU.
        value: after it; same shape and dtype.
        before: `value - start` of the pass before, float64, if they differed.
    """
    moved = value != start
    if not bool(moved.any()):
        return False
    old, new = start[moved].double(), value[moved].double()
    change = new - old
    if not bool((change > 0).all() or (change < 0).all()):
        return False
    if torch.equal(change, change.round()) and torch.equal(old, old.round()):
        return not bool(((old == 0) & (new == 1)).all())
    if before is None or not torch.equal(before != 0, moved):
        return False
    # [Note: what tells a counter from an average]
    # A counter moves by the same amount in every pass. An average moves by ever smaller ones, and where it has settled, by
    # roundings; so an amount of less than a hundred roundings says nothing.
    rounding = 4 * torch.finfo(value.dtype).eps * new.abs()
    return bool(((change - before[moved]).abs() <= rounding).all() and (change.abs() > 100 * rounding).all())


Header = Mapping[str, tuple[str, Mapping[str, str], Mapping[str, str]]]
"""For each lane, as JSON: the entries it changed that end as a mean or a sum; those that end as a maximum, with their
value; a digest of each other one. Sets of entries are the bits of a hexadecimal number."""
_COUNTED = "+"
"""Appended to the digest of an entry that the first lane changed as a counter."""


class BufferPass:
    """The buffers that this rank's lanes changed, until they are settled with the other ranks.

    In a run with one lane there is nothing to settle: the buffers are what the lane makes of them.

    Args:
        bank: the buffers; every lane starts from their current values.
        delays_losses: whether `unnoticed` will be looked at, on GPUs.
    """

    def __init__(self, bank: BufferBank, cut: StepCut, *, delays_losses: bool = False) -> None:
        self._bank, self._cut, self._delays_losses = bank, cut, delays_losses
        self._changed: dict[int, Changes] = {}
        self._pending: list[tuple[Pending, Callable[[], None]]] = []
        self._statistics = Statistics(bank.on_device, cut) if bank.on_device and len(cut.samples) > 1 else None
        self.unnoticed: dict[int, Tensor] = {}
        """By lane, on GPUs: whether it changed buffers without a counted write; these have their old values again."""
        bank.remember()

    def after_lane(self, lane: int) -> None:
        """Note the changes of this rank's lane `lane`, which is finished."""
        bank = self._bank
        # With one lane there is nothing to settle: the buffers are what the lane made of them.
        if len(self._cut.samples) == 1:
            bank.take_in()
            return
        if self._statistics is not None:
            bank.take_in()
            self._statistics.after_lane(lane)
        if self._delays_losses and bank.seems_untouched():
            if (flag := bank.restore_unseen()) is not None:
                self.unnoticed[lane] = flag
        elif (changes := bank.after_lane(only_others=self._statistics is not None)).entries:
            self._changed[lane] = changes

    def apart(self) -> Tensor | None:
        """Whether ranks began with different statistics, on their device; None where frames report it. After `finish`."""
        return self._statistics.apart() if self._statistics is not None else None

    def sums_of_ranks(self, placement: Placement) -> list[Mapping[str, str]]:
        """For each rank, sums over the bits of the statistics that it began with, by name, where `apart` is not None."""
        return self._statistics.sums_of_ranks(placement) if self._statistics is not None else []

    def header(self) -> Header:
        """Return what the other ranks must know."""
        return {str(lane): self._report_of(lane, changes) for lane, changes in self._changed.items()}

    def _report_of(self, lane: int, changes: Changes) -> tuple[str, Mapping[str, str], Mapping[str, str]]:
        entries = self._bank.entries
        added = 0
        maxima: dict[int, int] = {}
        others: dict[str, str] = {}
        for index, value in self._bank.maxima(changes).items():
            maxima[value] = maxima.get(value, 0) | 1 << index
        for index in changes.entries:
            rule = entries[index].rule
            if rule in ADDED:
                added |= 1 << index
            elif rule is not Rule.MAXIMUM:
                others[str(index)] = self._word(index, changes, is_first=lane == 0) if rule is Rule.SAME else ""
        return format(added, "x"), {str(value): format(mask, "x") for value, mask in maxima.items()}, others

    def _word(self, index: int, changes: Changes, *, is_first: bool) -> str:
        """A digest of the value, to compare over lanes, and a mark if the first lane counted."""
        segment = self._bank.entries[index].segment
        value = changes.part(segment).cpu()
        if is_first and value.dtype in COUNTING:
            start, last = self._bank.start_of_run(segment).cpu(), self._bank.last_changes
            before, last[index] = last.get(index), value.double() - start.double()
            if counts(start, value, before):
                return _digest(value) + _COUNTED
        return _digest(value)

    def begin(self, headers: Sequence[Header], transport: Transport, placement: Placement) -> None:
        """Begin to settle with the other ranks what every buffer is after the pass. `headers` are those of all ranks.

        Raises:
            UsageError: on every rank, when a buffer without a rule has different bits after different lanes, or counts.
        """
        self._pending.clear()
        if any(headers):
            self._settle(headers, transport, placement)
        if self._statistics is not None:
            self._statistics.begin(transport, placement)

    def _settle(self, headers: Sequence[Header], transport: Transport, placement: Placement) -> None:
        added: dict[int, int] = {}
        maxima: dict[int, int] = {}
        others: dict[int, dict[int, str]] = {}
        for lane, report in (item for header in headers for item in header.items()):
            added[int(lane)] = int(report[0], 16)
            for number, mask in report[1].items():
                maxima[int(number)] = maxima.get(int(number), 0) | int(mask, 16)
            for entry, word in report[2].items():
                others.setdefault(int(entry), {})[int(lane)] = word
        # The largest is written last, over the smaller ones of other lanes.
        for value in sorted(maxima):
            self._bank.fill(_members(maxima[value]), value)
        # In one order on every rank: each may broadcast.
        extreme = [index for index in sorted(others) if self._bank.entries[index].rule in EXTREME]
        for index in sorted(others.keys() - {*extreme}):
            self._settle_equal(index, others[index], transport, placement)
        if extreme:
            settle_extremes(self._bank, extreme, self._changed, self._cut, (transport, placement))
        self._begin_sums(added, transport, placement)

    def finish(self) -> None:
        """Wait for the sums that `begin` began."""
        if self._statistics is not None:
            self._statistics.finish()
        for pending, finish in self._pending:
            pending.advance()
            pending.finish()
            finish()
        # Whoever reads the pass's loss later holds this object, and need not hold copies of buffers.
        if self._delays_losses:
            self._changed.clear()
            self._pending.clear()

    def _settle_equal(self, index: int, words: Mapping[int, str], transport: Transport, placement: Placement) -> None:
        entry = self._bank.entries[index]
        lanes = [lane for lane, samples in enumerate(self._cut.samples) if samples]
        values = {word.removesuffix(_COUNTED) for word in words.values()}
        if entry.rule is Rule.SAME and (len(words) < len(lanes) or len(values) > 1):
            raise UsageError(
                f"The lanes left different values in the buffer {entry.name!r}, so it is not clear which one counts.",
                f'Pass buffers={{"{entry.name}": "sum"}} to run.prepare if each lane adds to it, else "first", "mean", "min" or "max"; '
                "or compute it from all samples after the lanes (run.lane_sum).",
            )
        if any(word.endswith(_COUNTED) for word in words.values()):
            raise UsageError(
                f"Every lane counts up the buffer {entry.name!r} by the same amount, so it is not clear whether it counts "
                "samples, to which each lane adds, or steps.",
                f'Pass buffers={{"{entry.name}": "sum"}} to run.prepare if it counts samples (or tokens), "first" if it '
                "counts steps.",
            )
        first = min(words)
        source = placement.rank_of(first)
        mine = source == transport.rank
        start = self._bank.start_of_run(entry.segment)
        value = self._changed[first].part(entry.segment) if mine else start.clone()
        transport.broadcast(value, source)
        self._bank.set_run(entry.segment, value)

    def _begin_sums(self, lanes: Mapping[int, int], transport: Transport, placement: Placement) -> None:
        """Begin the sums of the entries that `lanes` (lane to set of entries) changed; one per dtype and device."""
        everything = 0
        for mask in lanes.values():
            everything |= mask
        by_flat: dict[int, list[tuple[Segment, list[int]]]] = {}
        for run, members in self._bank.runs(_members(everything)):
            by_flat.setdefault(run.flat, []).append((run, members))
        for runs in by_flat.values():
            self._pending.append(self._begin_sum(runs, lanes, transport, placement))

    def _begin_sum(
        self,
        runs: Sequence[tuple[Segment, list[int]]],
        lanes: Mapping[int, int],
        transport: Transport,
        placement: Placement,
    ) -> tuple[Pending, Callable[[], None]]:
        """Begin the sum of pieces of one flat; return what to call when it is there."""
        # A flat has no entries of both rules.
        is_sum = self._bank.entries[runs[0][1][0]].rule is Rule.SUM
        contribution = self._change if is_sum else self._contribution
        values = {lane: contribution(lane, runs) for lane in placement.lanes(transport.rank)}
        total = torch.empty_like(next(iter(values.values()))) if values else self._zeros(runs)
        partials = merged(values, placement.subtrees(transport.rank))
        pending = transport.begin_all_reduce(partials, placement, total)

        def finish() -> None:
            for (run, members), value in zip(runs, torch.split(total, [run.size for run, _ in runs]), strict=True):
                if is_sum:
                    self._bank.set_run(run, value.add_(self._bank.start_of_run(run)))
                    continue
                for lanes_of, piece in self._pieces(run, members, lanes):
                    part = value[piece.offset - run.offset :][: piece.size]
                    scale = self._scale(lanes_of)
                    self._bank.set_run(piece, part if scale == 1.0 else part.mul_(scale))

        return pending, finish

    def _pieces(
        self, run: Segment, members: Sequence[int], lanes: Mapping[int, int]
    ) -> Iterable[tuple[frozenset[int], Segment]]:
        """Cut a run into pieces that the same lanes changed; usually one."""
        changed = sum(1 << index for index in members)
        if len({mask & changed for mask in lanes.values()} - {0}) == 1:
            yield frozenset(lane for lane, mask in lanes.items() if mask & changed), run
            return
        for index in members:
            yield (
                frozenset(lane for lane, mask in lanes.items() if mask >> index & 1),
                self._bank.entries[index].segment,
            )

    def _scale(self, lanes: frozenset[int]) -> float:
        """The factor on the sum over `lanes`."""
        weights = self._cut.weights
        if len(weights) == 1:
            return 1.0
        return 1.0 / tree_sum([weight if lane in lanes else 0.0 for lane, weight in enumerate(weights)])

    def _zeros(self, runs: Sequence[tuple[Segment, Any]]) -> Tensor:
        return _wide(torch.cat([torch.zeros_like(self._bank.start_of_run(run)) for run, _ in runs]))

    def _change(self, lane: int, runs: Sequence[tuple[Segment, list[int]]]) -> Tensor:
        """How much the lane added to entries that end as a sum."""
        changes = self._changed.get(lane)
        if changes is None or runs[0][0].flat not in changes.flats:
            return self._zeros(runs)
        after, before = zip(*((changes.part(run), self._bank.start_of_run(run)) for run, _ in runs), strict=True)
        return _wide(torch.cat(after)).sub_(torch.cat(before))

    def _contribution(self, lane: int, runs: Sequence[tuple[Segment, list[int]]]) -> Tensor:
        """What the lane adds to a mean; zeros where it changed nothing."""
        changes = self._changed.get(lane)
        if changes is None:
            return self._zeros(runs)
        changed = set(changes.entries)
        parts = []
        for run, members in runs:
            if changed.issuperset(members):
                parts.append(changes.part(run))
                continue
            part = torch.zeros_like(self._bank.start_of_run(run))
            for segment in (self._bank.entries[index].segment for index in members if index in changed):
                part[segment.offset - run.offset :][: segment.size] = changes.part(segment)
            parts.append(part)
        # `cat` copies, because a transport may overwrite its partials.
        value = _wide(torch.cat(parts))
        weight = self._cut.weights[lane]
        return value if weight == 1.0 or len(self._cut.weights) == 1 else value.mul_(weight)


def _wide(value: Tensor) -> Tensor:
    """Convert to a dtype whose sums do not depend on how many terms a transport adds before it rounds."""
    return value.to(WIDE.get(value.dtype, value.dtype))


def _members(mask: int) -> list[int]:
    return [index for index in range(mask.bit_length()) if mask >> index & 1]


def _digest(value: Tensor) -> str:
    return hashlib.blake2b(value.view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()
