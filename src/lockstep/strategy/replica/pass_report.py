"""What ranks tell each other about a pass: one small frame from each, merged to the same conclusions on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.errors import UsageError
from lockstep.layout.tree import tree_sum
from lockstep.strategy.replica.buffer_pass import Header


def mask_of(flags: Sequence[bool]) -> int:
    """Bit n is set when flag n is."""
    return int("".join(map("01".__getitem__, reversed(flags))) or "0", 2)


def flags_of(mask: int, size: int) -> list[bool]:
    """The inverse of `mask_of`."""
    return [bit == "1" for bit in reversed(format(mask, f"0{size}b"))] if size else []


@dataclass
class PassReport:
    """One rank's."""

    lanes: dict[int, tuple[float, bool]] = field(default_factory=dict)
    """Lanes that called backward: weight, and whether it was given with `weight=`."""
    losses: dict[int, float] = field(default_factory=dict)
    used: int = 0
    """Bit n is set when trainable parameter n has a gradient."""
    buffers: Header = field(default_factory=dict)
    notes: Mapping[int, Any] = field(default_factory=dict)
    begun: int = 0
    """Buckets whose reduction has begun during backward."""
    reopened: list[int] = field(default_factory=list)
    """Those of them that got a gradient afterwards."""
    seen: int = 0
    """Equal on all ranks that drew the same random numbers outside lanes."""

    def encode(self) -> list[Any]:
        """As JSON values; lanes become texts."""
        lanes = {lane: [weight, explicit, self.losses[lane]] for lane, (weight, explicit) in self.lanes.items()}
        notes = {str(lane): note for lane, note in self.notes.items()}
        return [_texts(lanes), format(self.used, "x"), self.buffers, notes, self.begun, self.reopened, self.seen]


@dataclass(frozen=True)
class Conclusions:
    """What all ranks' reports say together; the same on every rank."""

    weights: tuple[float, ...]
    """Of each lane; 0.0 for one without backward."""
    loss: float | None
    used: int
    buffers: list[Header]
    notes: dict[int, Any]
    begun: int
    reopened: frozenset[int]
    apart: tuple[int, ...] = ()
    """Ranks that have drawn other random numbers outside lanes than rank 0."""

    @property
    def scale(self) -> float:
        """What the sum of the weighted lanes is multiplied by; exactly 1.0 with one lane."""
        total = tree_sum(self.weights)
        return 1.0 if len(self.weights) == 1 or not total else 1.0 / total


def conclude(reports: Sequence[list[Any]], num_lanes: int, peers: Sequence[int]) -> Conclusions:
    """Merge the encoded reports of all ranks; what is said of parameters and buffers only from `peers`, who hold the same.

    Raises:
        UsageError: on every rank, when lanes weigh in different ways, or all weigh nothing.
    """
    lanes = {int(lane): values for report in reports for lane, values in report[0].items()}
    if len({explicit for _, explicit, _ in lanes.values()}) > 1:
        raise UsageError(
            "Some lanes called run.backward with weight= and some without, so they cannot be averaged.",
            "Pass weight= in every lane or in none.",
        )
    weights = tuple(lanes[lane][0] if lane in lanes else 0.0 for lane in range(num_lanes))
    _check_weights(lanes, weights)
    used = 0
    of_peers = [reports[rank] for rank in peers]
    for report in of_peers:
        used |= int(report[1], 16)
    notes = {int(lane): note for report in reports for lane, note in report[3].items()}
    return Conclusions(
        weights=weights,
        loss=_loss({lane: values[2] for lane, values in lanes.items()}, weights),
        used=used,
        buffers=[report[2] for report in of_peers],
        notes=dict(sorted(notes.items())),
        begun=max(report[4] for report in of_peers),
        reopened=frozenset(number for report in of_peers for number in report[5]),
        apart=tuple(rank for rank, report in enumerate(reports) if report[6] != reports[0][6]),
    )


def conclude_alone(report: PassReport) -> Conclusions:
    """What `conclude` says of the report of one rank with one lane: there is nobody to tell and nothing to average.

    Raises:
        UsageError: when the lane weighs nothing.
    """
    weights = tuple(weight for weight, _ in report.lanes.values()) or (0.0,)
    _check_weights(report.lanes, weights)
    loss = next(iter(report.losses.values()), None)
    return Conclusions(weights, loss, report.used, [report.buffers], dict(report.notes), 0, frozenset())


def _check_weights(lanes: Mapping[int, Any], weights: Sequence[float]) -> None:
    if lanes and not tree_sum(weights) > 0:
        raise UsageError("All lane weights sum to 0.", "Pass weight=<number of items the loss averages over>.")


def _loss(losses: Mapping[int, float], weights: Sequence[float]) -> float | None:
    """The weighted mean in the tree's order; with one lane that lane's loss itself."""
    if not losses:
        return None
    if len(weights) == 1:
        return float(losses[0])
    terms = [losses[lane] * weight if weight else 0.0 for lane, weight in enumerate(weights)]
    return tree_sum(terms) / tree_sum(weights)


def _texts(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in values.items()}
