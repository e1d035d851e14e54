"""Module buffers in a pass: every lane starts from the step's values, and one value stands at the end.

Running statistics of normalisation layers end as the weighted tree mean over the lanes that changed them,
`num_batches_tracked` as the maximum. Any other buffer must come out of every lane with the same bits; one that does not
is named, and may be given a rule: "first" (the first lane's value counts) or "mean" (as a running statistic).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from lockstep.errors import UsageError
from lockstep.layout.placement import Placement
from lockstep.layout.tree import Node, merges_after, tree_sum
from lockstep.strategy.arena import Segment, alias, lay_out
from lockstep.strategy.contract import StepCut
from lockstep.transport.contract import Pending, Transport


class Rule(StrEnum):
    """What a buffer's value is after a pass."""

    MEAN = "mean"
    MAXIMUM = "maximum"
    SAME = "same"
    FIRST = "first"


@dataclass
class Entry:
    """One registered buffer."""

    module: nn.Module
    key: str
    name: str
    rule: Rule
    segment: Segment
    view: Tensor


class BufferBank:
    """All buffers of the prepared models.

    Args:
        models: (label, module) pairs.
        rules: patterns of buffer names, as in a shell, to "first" or "mean".
    """

    def __init__(self, models: Sequence[tuple[str, nn.Module]], rules: Mapping[str, str]) -> None:
        found: dict[int, tuple[nn.Module, str, str]] = {}
        for label, model in models:
            for path, module in model.named_modules():
                for key, buffer in module._buffers.items():  # noqa: SLF001 - named_buffers does not say which module
                    if buffer is not None and buffer.numel():
                        name = ".".join(filter(None, (label if len(models) > 1 else "", path, key)))
                        found.setdefault(id(buffer), (module, key, name))
        places = list(found.values())
        tensors = [module._buffers[key] for module, key, _ in places]  # noqa: SLF001
        segments, self._flats = lay_out([tensor for tensor in tensors if tensor is not None])
        self.entries = [
            Entry(
                module, key, name, _rule(module, key, name, rules), segment, _rebind(module, key, self._flats, segment)
            )
            for (module, key, name), segment in zip(places, segments, strict=True)
        ]
        self._structure = [(module, key) for module, key, _ in places]
        self._models = models
        self._start = [flat.clone() for flat in self._flats]

    def has_changed(self) -> bool:
        """Whether buffers came or went, or changed shape or dtype: then a new bank is needed."""
        present = [
            (module, key)
            for _, model in self._models
            for module in model.modules()
            for key, buffer in module._buffers.items()  # noqa: SLF001
            if buffer is not None and buffer.numel()
        ]
        known = {(id(module), key) for module, key in self._structure}
        shapes = ((entry.module._buffers[entry.key], entry.view) for entry in self.entries)  # noqa: SLF001
        return not known <= {(id(module), key) for module, key in present} or any(
            now is None or now.shape != view.shape or now.dtype != view.dtype or now.device != view.device
            for now, view in shapes
        )

    def take_in(self) -> None:
        """Bring buffers that the module replaced (`self.count = self.count + 1`) back into the flat buffers."""
        for entry in self.entries:
            now = entry.module._buffers[entry.key]  # noqa: SLF001
            if now is not entry.view and now is not None:
                entry.view.copy_(now.detach())
                entry.module._buffers[entry.key] = entry.view  # noqa: SLF001

    def remember(self) -> None:
        """The present values are those that every lane starts from."""
        self.take_in()
        for start, flat in zip(self._start, self._flats, strict=True):
            if not _same_bits(start, flat):
                start.copy_(flat)

    def after_lane(self) -> dict[int, Tensor]:
        """The new values of the buffers that the lane changed, by number of entry; the module gets the old ones back."""
        self.take_in()
        changed: dict[int, Tensor] = {}
        for number, (flat, start) in enumerate(zip(self._flats, self._start, strict=True)):
            if _same_bits(flat, start):
                continue
            for index, entry in enumerate(self.entries):
                if entry.segment.flat == number:
                    now = _part(flat, entry.segment)
                    if not _same_bits(now, _part(start, entry.segment)):
                        changed[index] = now.clone()
            flat.copy_(start)
        return changed

    def start_of(self, index: int) -> Tensor:
        """What entry `index` was when the pass began, 1-D."""
        return _part(self._start[self.entries[index].segment.flat], self.entries[index].segment)

    def set(self, index: int, value: Tensor) -> None:
        """Give entry `index` the value of a 1-D tensor."""
        segment = self.entries[index].segment
        _part(self._flats[segment.flat], segment).copy_(value)


def _rebind(module: nn.Module, key: str, flats: Sequence[Tensor], segment: Segment) -> Tensor:
    buffer = module._buffers[key]  # noqa: SLF001
    assert buffer is not None
    view = alias(flats[segment.flat], segment.offset, buffer)
    module._buffers[key] = view  # noqa: SLF001
    return view


def _rule(module: nn.Module, key: str, name: str, rules: Mapping[str, str]) -> Rule:
    for pattern, rule in rules.items():
        if fnmatchcase(name, pattern):
            return Rule(rule)
    if isinstance(module, _NormBase):
        if key in ("running_mean", "running_var"):
            return Rule.MEAN
        if key == "num_batches_tracked":
            return Rule.MAXIMUM
    return Rule.SAME


def _part(flat: Tensor, segment: Segment) -> Tensor:
    return flat[segment.offset : segment.offset + segment.size]


def _same_bits(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


class BufferPass:
    """The buffers of one pass: collects each lane's changes on this rank, then settles them with the other ranks."""

    def __init__(self, bank: BufferBank, cut: StepCut) -> None:
        self._bank, self._cut = bank, cut
        self._changed: dict[int, dict[int, Tensor]] = {}
        self._pending: list[tuple[Pending, Callable[[], None]]] = []
        bank.remember()

    def after_lane(self, lane: int) -> None:
        """Lane `lane` of this rank is finished."""
        if changed := self._bank.after_lane():
            self._changed[lane] = changed

    def header(self) -> dict[str, dict[str, object]]:
        """What the other ranks must know, as JSON: for each lane the entries that it changed, with digest or maximum."""
        return {
            str(lane): {str(index): self._word(index, value) for index, value in changed.items()}
            for lane, changed in self._changed.items()
        }

    def _word(self, index: int, value: Tensor) -> object:
        rule = self._bank.entries[index].rule
        if rule is Rule.MAXIMUM:
            return int(value.max())
        if rule is Rule.SAME:
            return hashlib.blake2b(value.cpu().view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()
        return 0

    def begin(
        self, headers: Sequence[Mapping[str, Mapping[str, object]]], transport: Transport, placement: Placement
    ) -> None:
        """Begin to settle with the other ranks what every buffer is after the pass. `headers` are all ranks' headers.

        Raises:
            UsageError: on every rank, when a buffer without a rule came out of the lanes with different bits.
        """
        words: dict[int, dict[int, object]] = {}
        for header in headers:
            for lane, entries in header.items():
                for number, word in entries.items():
                    words.setdefault(int(number), {})[int(lane)] = word
        means = []
        for index in sorted(words):
            entry = self._bank.entries[index]
            if entry.rule is Rule.MEAN:
                means.append(index)
            elif entry.rule is Rule.MAXIMUM:
                self._bank.set(
                    index, self._bank.start_of(index).new_tensor([max(map(_integer, words[index].values()))])
                )
            else:
                self._settle_equal(index, words[index], transport, placement)
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for index in means:
            start = self._bank.start_of(index)
            kinds.setdefault((start.dtype, start.device), []).append(index)
        self._pending = [self._begin_means(members, words, transport, placement) for members in kinds.values()]

    def finish(self) -> None:
        """Wait for the means that `begin` began."""
        for pending, finish in self._pending:
            pending.advance()
            pending.finish()
            finish()

    def _settle_equal(
        self, index: int, words: Mapping[int, object], transport: Transport, placement: Placement
    ) -> None:
        entry = self._bank.entries[index]
        lanes = [lane for lane, samples in enumerate(self._cut.samples) if samples]
        if entry.rule is Rule.SAME and (len(words) < len(lanes) or len(set(words.values())) > 1):
            raise UsageError(
                f"The buffer {entry.name!r} came out of the lanes with different values, so it is not clear which one "
                f'counts. Pass buffers={{"{entry.name}": "first"}} (or "mean") to run.prepare, or compute it from all '
                f"samples after the lanes."
            )
        first = min(words)
        source = placement.rank_of(first)
        value = self._changed[first][index] if source == transport.rank else self._bank.start_of(index).clone()
        transport.broadcast(value, source)
        self._bank.set(index, value)

    def _begin_means(
        self,
        members: Sequence[int],
        words: Mapping[int, Mapping[int, object]],
        transport: Transport,
        placement: Placement,
    ) -> tuple[Pending, Callable[[], None]]:
        """Begin the sum of entries of one dtype and device; what to call when it is there."""
        lanes = {
            lane: torch.cat([self._contribution(lane, index) for index in members])
            for lane in placement.lanes(transport.rank)
        }
        sizes = [self._bank.entries[index].segment.size for index in members]
        total = self._bank.start_of(members[0]).new_empty(sum(sizes))
        pending = transport.begin_all_reduce(_merge(lanes, placement.subtrees(transport.rank)), placement, total)

        def finish() -> None:
            for index, value in zip(members, torch.split(total, sizes), strict=True):
                weights = [
                    self._cut.weights[lane] if lane in words[index] else 0.0 for lane in range(placement.num_lanes)
                ]
                self._bank.set(index, value if placement.num_lanes == 1 else value.mul_(1.0 / tree_sum(weights)))

        return pending, finish

    def _contribution(self, lane: int, index: int) -> Tensor:
        value = self._changed.get(lane, {}).get(index)
        if value is None:
            return torch.zeros_like(self._bank.start_of(index))
        weight = self._cut.weights[lane]
        return value if weight == 1.0 or len(self._cut.weights) == 1 else value * weight


def _merge(lanes: Mapping[int, Tensor], subtrees: Sequence[Node]) -> list[Tensor]:
    values: dict[Node, Tensor] = {}
    for lane, value in lanes.items():
        values[lane, lane + 1] = value
        for left, right in merges_after(lane, subtrees):
            values[left[0], right[1]] = values.pop(left) + values.pop(right)
    return [values[node] for node in subtrees]


def _integer(word: object) -> int:
    assert isinstance(word, int)
    return word
