"""Buffers that end as the smallest or largest value that a lane left, element by element: what observers of ranges keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from samebits.protocol.layout.cut import StepCut
from samebits.protocol.layout.placement import Placement
from samebits.rank.strategy.replica.buffers import BufferBank, Changes, Rule
from samebits.rank.transport.contract import Transport


def settle_extremes(
    bank: BufferBank,
    indices: Sequence[int],
    changed: Mapping[int, Changes],
    cut: StepCut,
    ranks: tuple[Transport, Placement],
) -> None:
    """Set entries of the bank. Collective: call it on every rank, with the same entries.

    A lane that did not change an entry left the value that it began with. One exchange for each dtype and device.

    Args:
        indices: the entries that some lane changed.
        changed: what lanes of this rank made of the buffers.
    """
    transport, placement = ranks
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index in indices:
        view = bank.entries[index].view
        groups.setdefault((view.dtype, view.device), []).append(index)
    for group in groups.values():
        mine = [lane for lane in placement.lanes(transport.rank) if cut.samples[lane]]
        parts = [_of_lanes(bank, index, [changed.get(lane) for lane in mine]) for index in group]
        gathered = transport.all_gather(torch.cat(parts))
        # A rank whose lanes have no samples has nothing to say.
        with_lanes = [rank for rank in range(len(gathered)) if any(cut.samples[i] for i in placement.lanes(rank))]
        pieces = [torch.split(gathered[rank], [len(part) for part in parts]) for rank in with_lanes]
        for index, values in zip(group, zip(*pieces, strict=True), strict=True):
            entry = bank.entries[index]
            bank.set_run(entry.segment, _without_negative_zeros(reduce(_better(entry.rule), values)))


def _better(rule: Rule) -> Callable[[Tensor, Tensor], Tensor]:
    # A function for booleans too, which torch's own do not take.
    if rule is Rule.SMALLEST:
        return lambda left, right: torch.where(right.isnan() | (right < left), right, left)
    return lambda left, right: torch.where(right.isnan() | (right > left), right, left)


def _of_lanes(bank: BufferBank, index: int, lanes: Iterable[Any]) -> Tensor:
    """What this rank's lanes make of an entry; what they began with, where there are none."""
    entry = bank.entries[index]
    start = bank.start_of_run(entry.segment)
    values = [start if one is None or index not in one.entries else one.part(entry.segment) for one in lanes]
    return reduce(_better(entry.rule), values) if values else start


def _without_negative_zeros(value: Tensor) -> Tensor:
    """Zeros of both signs are equal: which of them counts would depend on the order."""
    return value + 0 if value.is_floating_point() else value
