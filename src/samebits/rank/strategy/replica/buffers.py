"""Module buffers in a pass: every lane starts from the step's values, and they end with one value.

Running statistics of normalisation layers end as the weighted tree mean over the lanes that changed them,
`num_batches_tracked` as the maximum. Any other buffer must have the same bits after every lane, and must not look like a
counter, which may count samples or steps. One that does is named, and needs a rule from the script: "sum" (what the lanes
add is added up), "first" (the first lane's value counts), "mean" (as for running statistics), "min" or "max" (the smallest
or largest value that a lane left, element by element: observers of ranges).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import chain
from operator import attrgetter, is_

import torch
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.machine.torch_private import Norm
from samebits.rank.strategy.agreement import bit_sums
from samebits.rank.strategy.replica.arena import (
    Allocate,
    Flags,
    Segment,
    alias,
    any_in,
    differs,
    lay_out,
    on_host,
    same_bits,
)
from samebits.rank.strategy.replica.buffers_to_come import BuffersToCome
from samebits.rank.strategy.replica.memory import private_zeros
from samebits.rank.strategy.replica.statistics import EntryPlaces, Moving, WriteCounters, unseen
from samebits.rank.transport.channel import is_dense


class Rule(StrEnum):
    """What a buffer's value is after a pass."""

    MEAN = "mean"
    MAXIMUM = "maximum"
    SAME = "same"
    FIRST = "first"
    SUM = "sum"
    SMALLEST = "min"
    LARGEST = "max"


MOVING = (Rule.MEAN, Rule.MAXIMUM)
"""The rules of buffers that change in every lane."""
ADDED = (Rule.MEAN, Rule.SUM)
"""The rules of buffers that are added up over the lanes."""
EXTREME = (Rule.SMALLEST, Rule.LARGEST)
"""The rules of buffers that end, element by element, as the smallest or largest value that a lane left."""
NAMED = (Rule.SUM, Rule.FIRST, Rule.MEAN, *EXTREME)
"""The rules that a script can name."""
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COUNTING = (torch.float64, torch.float32, torch.float16, torch.bfloat16, *_WHOLE)
"""The dtypes of what can be added up."""

# `named_buffers` does not say which module has a buffer, and costs 20 times as much.
_buffers_of = attrgetter("_buffers")


@dataclass
class Entry:
    """One registered buffer."""

    module: nn.Module
    key: str
    name: str
    rule: Rule
    segment: Segment
    view: Tensor


@dataclass(frozen=True)
class Changes:
    """What a lane made of the buffers."""

    entries: list[int]
    """The numbers of the buffers that it changed."""
    flats: dict[int, Tensor]
    """Copies of the flats with changed entries."""

    def part(self, segment: Segment) -> Tensor:
        """The values in a segment of a flat with changed entries, 1-D."""
        return _part(self.flats[segment.flat], segment)


class BufferBank:
    """All buffers of the prepared models, and of modules that are not trained.

    Args:
        models: (label, module) pairs.
        others: the same, of modules that are not trained; names of their buffers begin with the label.
        rules: patterns of buffer names, as in a shell, to one of `NAMED`.
        absent: identities of buffers that other ranks hold; they are left out.
        allocate: where the buffers go.
        stay: identities of buffers that keep their memory.
    """

    def __init__(
        self,
        models: Sequence[tuple[str, nn.Module]],
        rules: Mapping[str, str],
        absent: Container[int] = (),
        allocate: Allocate = private_zeros,
        stay: Container[int] = (),
        *,
        others: Sequence[tuple[str, nn.Module]] = (),
    ) -> None:
        self._absent, self._stay = absent, stay
        models = [*((label if len(models) > 1 else "", model) for label, model in models), *others]
        # [Note: why moving buffers lie together]
        # Nearly every lane changes them. Next to each other, those of a whole model take one copy, one comparison and one
        # message: a ResNet-20 has 57 buffers.
        places = sorted(self._find(models, rules), key=lambda place: place[3] not in MOVING)
        tensors = [module._buffers[key] for module, key, *_ in places]  # noqa: SLF001
        segments, self._flats, self._num_moving = _lay_out(tensors, [rule for *_, rule in places], allocate, stay)
        self.entries = [
            Entry(*place, segment, _rebind(place[0], place[1], self._flats, segment, stay))
            for place, segment in zip(places, segments, strict=True)
        ]
        self.addresses = [entry.view.data_ptr() for entry in self.entries]
        """Where each buffer was put."""
        self._constants = list(self._left_alone(models))
        self._modules = [module for _, model in models for module in model.modules()]
        self._structure = self._current_structure()
        self._tables = list(map(_buffers_of, self._modules))
        self._objects = self._current_objects()
        self._to_come = BuffersToCome(models)
        self._homes, self._keys = [_buffers_of(entry.module) for entry in self.entries], [e.key for e in self.entries]
        self._views = [entry.view for entry in self.entries]
        self._members = [
            [index for index, entry in enumerate(self.entries) if entry.segment.flat == flat]
            for flat in range(len(self._flats))
        ]
        self._start = [flat.clone() for flat in self._flats]
        self.last_changes: dict[int, Tensor] = {}
        """How the first lane changed entries with the rule SAME in the last pass."""
        devices = {flat.device for flat in self._flats}
        self._is_elsewhere = len(devices) == 1 and torch.device("cpu") not in devices
        """Whether all are on one GPU: to read a bit is to wait for it."""
        self.on_device = _moving(self.entries, self._flats, self._start) if self._is_elsewhere else []
        """The flats of moving buffers, if they can be settled where they are."""
        self._num_moved = sum(entry.rule in MOVING for entry in self.entries)
        unmoved = [entry.view for entry in self.entries[self._num_moved :]]
        self._writes = WriteCounters(unmoved if self._is_elsewhere else ())

    def _find(
        self, models: Sequence[tuple[str, nn.Module]], rules: Mapping[str, str]
    ) -> list[tuple[nn.Module, str, str, Rule]]:
        found: dict[int, tuple[nn.Module, str, str, Rule]] = {}
        for label, model in models:
            for path, module in model.named_modules():
                for key, buffer in _buffers_of(module).items():
                    if self._carries(buffer):
                        name = ".".join(filter(None, (label, path, key)))
                        found.setdefault(id(buffer), (module, key, name, _rule(module, key, name, rules)))
        return list(found.values())

    def known_modules(self) -> set[int]:
        """Identities of the modules that it looks after."""
        return set(map(id, self._modules))

    def has_changed(self) -> bool:
        """Whether buffers came, went, or changed shape or dtype: then a new bank is needed."""
        present = self._current_objects()
        if len(present) == len(self._objects) and all(map(is_, present, self._objects)):
            return False
        shapes = ((entry.module._buffers[entry.key], entry.view) for entry in self.entries)  # noqa: SLF001
        return self._structure != self._current_structure() or any(
            now is None or now.shape != view.shape or now.dtype != view.dtype or now.device != view.device
            for now, view in shapes
        )

    def _current_objects(self) -> list[object]:
        """All keys and buffers; as long as they are the same objects, nothing has changed. Few calls for any model."""
        return [*chain.from_iterable(self._tables), *chain.from_iterable(map(dict.values, self._tables))]

    def _current_structure(self) -> list[tuple[int, str]]:
        return [
            (id(module), key)
            for module in self._modules
            for key, buffer in module._buffers.items()  # noqa: SLF001
            if self._carries(buffer)
        ]

    def _carries(self, buffer: Tensor | None) -> bool:
        """Whether the bank carries a buffer; not if it is sparse, or a strided view of memory with other users.

        Those are constants, such as the adjacency matrix of a graph or part of a table.
        """
        if buffer is None or buffer.layout is not torch.strided or not buffer.numel() or id(buffer) in self._absent:
            return False
        return id(buffer) not in self._stay or is_dense(buffer)

    def _left_alone(self, models: Sequence[tuple[str, nn.Module]]) -> Iterator[tuple[str, Tensor, int]]:
        for label, model in models:
            for name, buffer in model.named_buffers():
                if buffer.numel() and id(buffer) not in self._absent and not self._carries(buffer):
                    yield f"{label}.{name}" if label else name, buffer, buffer._version  # noqa: SLF001

    def take_in(self) -> None:
        """Copy buffers that the module replaced (`self.count = self.count + 1`) back into the flat buffers."""
        if all(map(is_, map(dict.__getitem__, self._homes, self._keys), self._views)):
            return
        for entry in self.entries:
            now = entry.module._buffers[entry.key]  # noqa: SLF001
            if now is not entry.view and now is not None:
                if now.shape != entry.view.shape or now.dtype != entry.view.dtype:
                    raise UsageError(
                        f"The buffer {entry.name!r} changed from {tuple(entry.view.shape)} {entry.view.dtype} to "
                        f"{tuple(now.shape)} {now.dtype} inside a step.",
                        "Give it its full size before the loop, or keep it as a plain attribute.",
                    )
                entry.view.copy_(now.detach())
                entry.module._buffers[entry.key] = entry.view  # noqa: SLF001

    def checksums(self, *, only_moving: bool = False) -> list[int]:
        """One number from the bits of each flat buffer; `only_moving`: see `moving`."""
        if only_moving:
            return bit_sums(self._start[: self._num_moving]) if self._num_moving else []
        self.take_in()
        return bit_sums(self._flats)

    def moving(self) -> list[tuple[str, Tensor]]:
        """Those that nearly every lane changes, by name, 1-D and as they were when the last pass began."""
        moving = [entry for entry in self.entries if entry.rule in MOVING]
        return [(entry.name, self.start_of_run(entry.segment)) for entry in moving]

    def remember(self) -> None:
        """Let every lane start from the current values."""
        if not self.entries:
            return
        self.take_in()
        # A comparison waits for a GPU, and moving buffers differ nearly always: these are copied without one.
        for number, (start, flat) in enumerate(zip(self._start, self._flats, strict=True)):
            if self._is_elsewhere or number < self._num_moving or not same_bits(start, flat):
                start.copy_(flat)
        self._writes.note()

    def restore(self) -> None:
        """Give the module back what `remember` found."""
        self.take_in()
        for start, flat in zip(self._start, self._flats, strict=True):
            if self._is_elsewhere or not same_bits(start, flat):
                flat.copy_(start)
        self._writes.note()

    def seems_untouched(self) -> bool:
        """Whether the lane left all buffers but `on_device` alone, as far as the host can see."""
        self.take_in()
        return bool(self.on_device or not self._num_moving) and self._writes.suffice()

    def restore_unseen(self) -> Tensor | None:
        """Give all buffers but `on_device` their old values back; return, on the device, whether any bit had changed."""
        self._refuse_constants()
        found = []
        for flat, start in [*zip(self._flats, self._start, strict=True)][self._num_moving :]:
            found.append(differs(flat, start).any())
            flat.copy_(start)
        self._writes.note()
        return torch.stack(found).any() if found else None

    def refuse_unseen(self, flags: Sequence[float]) -> None:
        """Raise `UsageError` if one of `flags`, which `restore_unseen` returned, is not 0."""
        if any(flags):
            raise unseen([entry.name for entry in self.entries[self._num_moved :]])

    def _refuse_constants(self) -> None:
        self._to_come.refuse()
        for name, buffer, version in self._constants:
            if buffer._version != version:  # noqa: SLF001
                raise UsageError(
                    f"The buffer {name!r} was written to, but it is sparse, or a strided view of memory that something "
                    "else uses too, so lanes on other ranks would not see the change.",
                    "Register a dense tensor with memory of its own.",
                )

    def after_lane(self, *, only_others: bool = False) -> Changes:
        """Return what the lane made of the buffers, and give the module the old values back.

        Args:
            only_others: leave out `on_device`.

        Raises:
            UsageError: when the lane wrote to one that cannot be carried.
        """
        self.take_in()
        self._refuse_constants()
        if self._is_elsewhere:
            return self._after_lane_elsewhere(self._num_moving if only_others else 0)
        changes = Changes([], {})
        for number, (flat, start) in enumerate(zip(self._flats, self._start, strict=True)):
            if number >= self._num_moving and same_bits(flat, start):
                continue
            self._take(changes, number, differs(flat, start).cpu().numpy())
        return changes

    def _take(self, changes: Changes, number: int, flags: Flags) -> None:
        """Take what the lane changed of a flat, whose elements differ as `flags` say."""
        members, flat = self._members[number], self._flats[number]
        found = any_in(flags, flat, [self.entries[index].segment for index in members])
        changed = [index for index, is_changed in zip(members, found, strict=True) if is_changed]
        if changed:
            changes.entries.extend(changed)
            changes.flats[number] = flat.clone()
            flat.copy_(self._start[number])

    def _after_lane_elsewhere(self, first: int) -> Changes:
        """The same from flat `first` on, with one look at the device."""
        numbers = range(first, len(self._flats))
        changes = Changes([], {})
        counted = self._writes.counted()
        rows = on_host([differs(self._flats[number], self._start[number]) for number in numbers])
        for number, row in zip(numbers, rows, strict=True):
            self._take(changes, number, row)
        self._writes.learn(counted, {index - self._num_moved for index in changes.entries if index >= self._num_moved})
        self._writes.note()
        return changes

    def runs(self, indices: Sequence[int]) -> list[tuple[Segment, list[int]]]:
        """The entries `indices` as a few pieces of flats, each with its entries; there may be unused space inside."""
        wanted = set(indices)
        found: list[tuple[Segment, list[int]]] = []
        for flat, members in enumerate(self._members):
            run: list[int] = []
            for index in [*members, None]:
                if index in wanted:
                    run.append(index)
                elif run:
                    first, last = self.entries[run[0]].segment, self.entries[run[-1]].segment
                    found.append((Segment(flat, first.offset, last.offset + last.size - first.offset), run))
                    run = []
        return found

    def start_of_run(self, run: Segment) -> Tensor:
        """A piece of a flat as it was when the pass began, 1-D."""
        return _part(self._start[run.flat], run)

    def maxima(self, changes: Changes) -> dict[int, int]:
        """The largest value of each changed entry that has the rule MAXIMUM."""
        largest: dict[int, int] = {}
        for segment, run in self.runs([i for i in changes.entries if self.entries[i].rule is Rule.MAXIMUM]):
            values = changes.part(segment).cpu().numpy()
            places = [self.entries[index].segment.offset - segment.offset for index in run]
            ends = [place + self.entries[index].segment.size for place, index in zip(places, run, strict=True)]
            largest |= {
                index: int(values[place:end].max()) for index, place, end in zip(run, places, ends, strict=True)
            }
        return largest

    def fill(self, indices: Sequence[int], value: int) -> None:
        for run, _ in self.runs(indices):
            _part(self._flats[run.flat], run).fill_(value)

    def set_run(self, run: Segment, value: Tensor) -> None:
        """Set a piece of a flat to the value of a 1-D tensor."""
        _part(self._flats[run.flat], run).copy_(value)


def _lay_out(
    tensors: Sequence[Tensor | None], rules: Sequence[Rule], allocate: Allocate, stay: Container[int]
) -> tuple[list[Segment], list[Tensor], int]:
    """Lay out the buffers: moving ones first, in their own flats; return how many flats these are, too."""
    present = [tensor for tensor in tensors if tensor is not None]
    num_moving = sum(rule in MOVING for rule in rules)
    segments, flats = lay_out(present[:num_moving], allocate, stay)
    others, more = lay_out(present[num_moving:], allocate, stay)
    moved = [Segment(segment.flat + len(flats), segment.offset, segment.size) for segment in others]
    return [*segments, *moved], [*flats, *more], len(flats)


def _moving(entries: Sequence[Entry], flats: Sequence[Tensor], starts: Sequence[Tensor]) -> list[Moving]:
    """The flats of moving buffers; none if one cannot be settled on the device, because its dtype does not fit its rule."""
    found: list[Moving] = []
    for number, (flat, start) in enumerate(zip(flats, starts, strict=True)):
        members = [entry for entry in entries if entry.segment.flat == number and entry.rule in MOVING]
        fitting = Rule.MEAN if flat.is_floating_point() else Rule.MAXIMUM
        if any(entry.rule is not fitting for entry in members):
            return []
        if members:
            segments, names = [entry.segment for entry in members], [entry.name for entry in members]
            found.append(Moving(flat, start, EntryPlaces(segments, flat), names))
    return found


def _rebind(module: nn.Module, key: str, flats: Sequence[Tensor], segment: Segment, stay: Container[int]) -> Tensor:
    buffer = module._buffers[key]  # noqa: SLF001
    assert buffer is not None
    if id(buffer) not in stay:
        # The object stays: something else may hold it.
        buffer.data = alias(flats[segment.flat], segment.offset, buffer)
    return buffer


def _rule(module: nn.Module, key: str, name: str, rules: Mapping[str, str]) -> Rule:
    buffer = module._buffers[key]  # noqa: SLF001
    assert buffer is not None
    for pattern, rule in rules.items():
        if fnmatchcase(name, pattern):
            if rule == Rule.MEAN and not buffer.is_floating_point():
                raise UsageError(
                    f'buffers={{"{pattern}": "mean"}} cannot average {name!r}, whose dtype is {buffer.dtype}.',
                    'Use "first" or "sum".',
                )
            if rule == Rule.SUM and buffer.dtype not in COUNTING:
                raise UsageError(
                    f'buffers={{"{pattern}": "sum"}} cannot add up {name!r}, whose dtype is {buffer.dtype}.',
                    'Use "first".',
                )
            if rule in EXTREME and buffer.is_complex():
                raise UsageError(
                    f'buffers={{"{pattern}": "{rule}"}} cannot compare {name!r}, whose dtype is {buffer.dtype}.',
                    'Use "first", "mean" or "sum".',
                )
            return Rule(rule)
    if isinstance(module, Norm):
        if key in ("running_mean", "running_var"):
            return Rule.MEAN
        if key == "num_batches_tracked":
            return Rule.MAXIMUM
    return Rule.SAME


def _part(flat: Tensor, segment: Segment) -> Tensor:
    return flat[segment.offset : segment.offset + segment.size]
