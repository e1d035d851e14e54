"""The buffers of one pass: each lane's changes on this rank, then one value for all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.layout.placement import Placement
from lockstep.layout.tree import Node, merges_after, tree_sum
from lockstep.strategy.buffers import BufferBank, Rule
from lockstep.strategy.contract import StepCut
from lockstep.transport.contract import Pending, Transport


class BufferPass:
    """Collects what the lanes of this rank changed, then settles it with the other ranks.

    Args:
        bank: the buffers; their present values are those that every lane starts from.
        cut: the step.
    """

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
                self._bank.fill(index, max(map(_integer, words[index].values())))
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
            scales = {lanes: self._scale(lanes) for lanes in {frozenset(words[index]) for index in members}}
            for index, value in zip(members, torch.split(total, sizes), strict=True):
                scale = scales[frozenset(words[index])]
                self._bank.set(index, value if scale == 1.0 else value.mul_(scale))

        return pending, finish

    def _scale(self, lanes: frozenset[int]) -> float:
        """What the sum over `lanes` is multiplied by."""
        weights = self._cut.weights
        if len(weights) == 1:
            return 1.0
        return 1.0 / tree_sum([weight if lane in lanes else 0.0 for lane, weight in enumerate(weights)])

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
