"""What ranks report to each other about a pass: one small frame each, merged to the same conclusions on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, repeat
from operator import or_
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.layout.lane_tree import tree_sum
from samebits.protocol.layout.placement import Placement
from samebits.rank.strategy.pass_loss import DelayedValues
from samebits.rank.strategy.replica.buffer_pass import Header
from samebits.rank.strategy.replica.sparse_embedding import agreed
from samebits.rank.strategy.replica.statistics import LaneTable
from samebits.rank.transport.contract import Transport


def mask_of(flags: Sequence[bool]) -> int:
    """The number whose bit n is set when flag n is."""
    return int("".join(map("01".__getitem__, reversed(flags))) or "0", 2)


def flags_of(mask: int, size: int) -> list[bool]:
    return [bit == "1" for bit in reversed(format(mask, f"0{size}b"))] if size else []


@dataclass
class PassReport:
    """One rank's report."""

    lanes: dict[int, tuple[float, bool]] = field(default_factory=dict)
    """Lanes that called backward: the weight, and whether it was given with `weight=`."""
    losses: dict[int, float] = field(default_factory=dict)
    """Empty where they are delayed."""
    used: int = 0
    """Bit n is set when trainable parameter n has a gradient."""
    buffers: Header = field(default_factory=dict)
    rows: Mapping[str, Any] = field(default_factory=dict)
    """What others than the strategy report, by name."""
    begun: int = 0
    """The number of buckets whose reduction began during backward."""
    reopened: list[int] = field(default_factory=list)
    """The buckets among them that got a gradient afterwards."""
    seen: int = 0
    """Equal on all ranks that drew the same random numbers outside lanes."""
    num_rows: Mapping[int, int] = field(default_factory=dict)
    """The trainable parameters of which this rank has nothing but some rows, and at most how many."""

    def encode(self) -> list[Any]:
        """Encode as JSON values; lanes become strings."""
        losses = self.losses
        lanes = {str(lane): [weight, explicit, losses.get(lane)] for lane, (weight, explicit) in self.lanes.items()}
        used, num_rows = format(self.used, "x"), [*self.num_rows.items()]
        return [lanes, used, self.buffers, self.rows, self.begun, self.reopened, self.seen, num_rows]


@dataclass(frozen=True)
class Conclusions:
    """The conclusions from all ranks' reports; the same on every rank."""

    weights: tuple[float, ...]
    """The weight of each lane; 0.0 without a backward."""
    losses: dict[int, float]
    """By lane, of those that called backward; None, each of them, where they are delayed."""
    used: int
    buffers: list[Header]
    rows: dict[str, list[Any]]
    """By name, a list by rank; None of those that reported nothing."""
    begun: int
    reopened: frozenset[int]
    apart: tuple[int, ...] = ()
    """Ranks that have drawn different random numbers outside lanes than rank 0."""
    num_rows: Mapping[int, int] = field(default_factory=dict)
    """The parameters that are exchanged by rows, and at most how many of each a rank has."""

    @property
    def scale(self) -> float:
        """The factor on the sum of the weighted lanes; exactly 1.0 with one lane."""
        total = tree_sum(self.weights)
        return 1.0 if len(self.weights) == 1 or not total else 1.0 / total


def conclude(reports: Sequence[list[Any]], num_lanes: int, peers: Sequence[int]) -> Conclusions:
    """Merge all ranks' encoded reports; parameters and buffers only from `peers`, which hold the same ones.

    Raises:
        UsageError: on every rank, when only some lanes give `weight=`, or all weights are 0.
    """
    lanes = {int(lane): values for report in reports for lane, values in report[0].items()}
    given, explicit, losses = zip(*lanes.values(), strict=True) if lanes else ((), (), ())
    if len(set(explicit)) > 1:
        raise UsageError(
            "Some lanes called run.backward with weight= and some without, so they cannot be averaged.",
            "Pass weight= in every lane or in none.",
        )
    weight_of = dict(zip(lanes, given, strict=True))
    weights = tuple(map(weight_of.get, range(num_lanes), repeat(0.0)))
    _check_weights(lanes, weights)
    _, used, buffers, _, begun, reopened, _, num_rows = zip(*[reports[rank] for rank in peers], strict=True)
    rows, seen = [report[3] for report in reports], [report[6] for report in reports]
    return Conclusions(
        weights=weights,
        losses=dict(zip(lanes, losses, strict=True)),
        used=reduce(or_, map(int, used, repeat(16))),
        buffers=[*buffers],
        rows={name: [one.get(name) for one in rows] for name in dict.fromkeys(chain.from_iterable(rows))},
        begun=max(begun),
        reopened=frozenset(chain.from_iterable(reopened)),
        apart=tuple([rank for rank, one in enumerate(seen) if one != seen[0]]) if len(set(seen)) > 1 else (),
        num_rows=agreed([*map(dict, num_rows)]) if all(num_rows) else {},
    )


def conclude_alone(report: PassReport) -> Conclusions:
    """Conclude from the report of one rank with one lane: nothing is exchanged or averaged.

    Raises:
        UsageError: when the lane's weight is 0.
    """
    weights = tuple(weight for weight, _ in report.lanes.values()) or (0.0,)
    _check_weights(report.lanes, weights)
    losses: dict[int, Any] = {lane: report.losses.get(lane) for lane in report.lanes}
    alone = {name: [value] for name, value in report.rows.items()}
    return Conclusions(weights, losses, report.used, [report.buffers], alone, 0, frozenset())


def _check_weights(lanes: Mapping[int, Any], weights: Sequence[float]) -> None:
    if lanes and not tree_sum(weights) > 0:
        raise UsageError("All lane weights sum to 0.", "Pass weight=<number of items the loss averages over>.")


class DelayedLosses:
    """Those of one pass, and whether its lanes did what only a device can know.

    Args:
        device: where the table of all lanes is.
    """

    def __init__(self, device: torch.device, num_lanes: int) -> None:
        self._device, self._num_lanes = device, num_lanes
        self._losses: dict[int, Tensor] = {}
        self._table: LaneTable | None = None

    def add(self, lane: int, loss: Tensor) -> None:
        """Take a lane's loss, a detached scalar."""
        self._losses[lane] = loss

    def begin(self, flags: dict[int, Tensor], transport: Transport, placement: Placement) -> None:
        """Begin to exchange them. Collective: call it on every rank.

        Args:
            flags: by lane, what `finish` returns too; missing ones are 0.
        """
        # Every number has one rank that knows it; the others have zeros, whose bits as integers change no sum.
        rows = torch.zeros((self._num_lanes, 2), dtype=torch.float64, device=self._device)
        for column, values in enumerate((self._losses, flags)):
            for lane, value in values.items():
                rows[lane, column].copy_(value.reshape(()))
        self._table = LaneTable(rows.view(torch.int64), transport, placement)

    def finish(self, more: Sequence[Tensor]) -> DelayedValues:
        """Return the losses by lane, then the flags, then `more` scalars of the same device."""
        # One lane on one rank exchanges nothing. Its script may have computed the loss on the CPU.
        if self._table is None:
            (loss,) = self._losses.values()
            return DelayedValues(loss.to(self._device, torch.float64).reshape(1))
        columns = self._table.finish().view(torch.float64).t().reshape(-1)
        return DelayedValues(torch.cat([columns, *(one.reshape(1).to(columns) for one in more)]) if more else columns)
