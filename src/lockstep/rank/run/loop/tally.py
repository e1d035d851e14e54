"""Metrics over samples whose bits do not depend on the number of ranks.

Each lane adds up its own values in order, in float64; `mean` and `sum` add the lanes along the lane tree. (The same
doubles summed rank by rank gave three different sums on 1, 2 and 4 ranks.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.protocol.layout.tree import tree_sum
from lockstep.rank.run.position.kept_values import Sums
from lockstep.rank.run.position.moment import LoopPosition, Region
from lockstep.rank.transport.contract import Transport


def gather_rows(rows: Tensor, indices: Sequence[Any], transport: Transport, device: torch.device, where: str) -> Tensor:
    """All ranks' rows, one per sample, in data-set order: exactly `len(dataset)` of them, on every rank.

    Args:
        rows: this rank's rows: dimension 0 has one row for each sample that the last evaluation gave this rank, in
            the order in which they came. Any dtype and device; ranks may have different numbers of rows, and one without
            any does not know of which form the others' are.
        indices: the data-set indices of those samples.
        transport: the ranks.
        device: this rank's.
        where: the line of the script.

    Raises:
        UsageError: on every rank, when a rank has more or fewer rows than samples, or rows have different forms.
    """
    told = transport.all_gather_object(
        {
            "rows": len(rows),
            "indices": list(map(_number, indices)),
            "form": [list(rows.shape[1:]), str(rows.dtype), rows.device.type],
        },
        "gather",
        where,
    )
    for rank, other in enumerate(told):
        if other["rows"] != len(other["indices"]):
            raise UsageError(
                f"run.gather got {other['rows']} rows on rank {rank}, but the last evaluation gave it "
                f"{len(other['indices'])} samples.",
                "Collect one row per sample in `for batch in loader`, concatenate them, and gather after the loop.",
            )
    form = next((other["form"] for other in told if other["rows"]), told[0]["form"])
    if any(other["rows"] and other["form"] != form for other in told):
        raise UsageError(
            "run.gather got rows of different shapes, dtypes or devices on different ranks.",
            "Give every row the same shape, dtype and kind of device: pad them, or gather numbers.",
        )
    shape, dtype, kind = form
    longest = max(other["rows"] for other in told)
    padded = torch.zeros(
        (longest, *shape), dtype=getattr(torch, dtype.removeprefix("torch.")), device=_here(kind, rows, device)
    )
    if len(rows):
        padded[: len(rows)] = rows.detach()
    run = [part[: other["rows"]] for part, other in zip(transport.all_gather(padded), told, strict=True)]
    order = [index for other in told for index in other["indices"]]
    return torch.cat(run)[
        torch.tensor(sorted(range(len(order)), key=order.__getitem__), dtype=torch.long, device="cpu")
    ]


def _here(kind: str, rows: Tensor, device: torch.device) -> torch.device:
    """This rank's device of a kind that other ranks' rows are on."""
    return next((one for one in (rows.device, device) if one.type == kind), torch.device(kind))


def _number(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:
        problem = f"run.gather needs whole numbers as indices, but the sampler gives {index!r}."
        raise UsageError(problem, "Give the data set indices from 0 to its length.") from None


def number(value: float | Tensor) -> float:
    """Return a number or a one-element tensor, with or without a graph, as a Python float."""
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):
        shown = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
        raise UsageError(
            f"A value to log or tally must be one number, but is {shown}.", "Take a mean, or .item()."
        ) from None


class Agreed(float):
    """A float that came out of an exchange, so `run.log` need not exchange it again."""


class Tally:
    """A set of named, weighted sums. Made by `run.tally()`.

    Args:
        position: where the script is.
        num_lanes: of the run.
        lanes: this rank's.
        exchange: hands a value to all ranks and returns everybody's.
        changed: called when it is reset, or has received what evaluations added.
    """

    def __init__(
        self,
        position: LoopPosition,
        num_lanes: int,
        lanes: range,
        exchange: Callable[[Any, str], list[Any]],
        changed: Callable[[], None],
    ) -> None:
        self._position, self._num_lanes, self._own = position, num_lanes, lanes
        self._exchange, self._changed = exchange, changed
        self._lanes: Sums = {}
        self._known: Sums = {}
        """What was added in the lanes of steps, on every rank: it travels with the gradients."""
        self._new: set[tuple[str, int]] = set()
        self.is_unheard = False
        """Whether this rank added something in an evaluation that the others have not received."""

    def add(self, *, weight: float | None = None, **values: float | Tensor) -> None:
        """Add values of the current batch, inside a step's lanes or while iterating a prepared loader.

        Args:
            weight: what the values are means over; by default the number of samples in the batch.
            values: numbers or one-element tensors.

        Raises:
            UsageError: outside both loops, where every rank would count the same thing again.
        """
        if not self._position.in_lane:
            raise UsageError(
                "tally.add was called outside a batch loop, where every rank would add the same thing.",
                "Call it inside `for batch in step` or `for batch in loader`.",
            )
        self._position.is_counted = True
        amount = float(self._position.num_samples if weight is None else weight)
        for name, value in values.items():
            lanes = self._lanes.setdefault(name, {})
            total, weights = lanes.get(self._position.lane, (0.0, 0.0))
            lanes[self._position.lane] = (total + number(value) * amount, weights + amount)
            if self._position.region is Region.LANE:
                self._new.add((name, self._position.lane))
            else:
                self.is_unheard = True

    def mean(self) -> dict[str, Agreed]:
        """Return the weighted mean of each value over all ranks. Collective: call it on every rank, outside lanes."""
        sums = self._summed("tally.mean")
        return {name: Agreed(total / weight) if weight else Agreed("nan") for name, (total, weight) in sums.items()}

    def sum(self) -> dict[str, Agreed]:
        """Return the weighted sum of each value over all ranks. Collective: call it on every rank, outside lanes."""
        return {name: Agreed(total) for name, (total, _) in self._summed("tally.sum").items()}

    def reset(self) -> None:
        """Forget everything."""
        self._lanes.clear()
        self._known.clear()
        self._new.clear()
        self.is_unheard = False
        self._changed()

    def known(self) -> Sums:
        return {name: dict(lanes) for name, lanes in self._known.items()}

    def take_new(self) -> Sums:
        new, self._new = self._new, set()
        found: Sums = {}
        for name, lane in sorted(new):
            found.setdefault(name, {})[lane] = self._lanes[name][lane]
        return found

    def hear(self, sums: Sums) -> None:
        for name, lanes in sums.items():
            self._known.setdefault(name, {}).update(lanes)
            self._lanes.setdefault(name, {}).update(lanes)

    def _summed(self, call: str) -> dict[str, tuple[float, float]]:
        self._position.require_same_on_every_rank(call)
        merged: Sums = {}
        mine = {name: {lane: lanes[lane] for lane in lanes if lane in self._own} for name, lanes in self._lanes.items()}
        for lanes_of_rank in self._exchange(mine, call):
            for name, lanes in lanes_of_rank.items():
                merged.setdefault(name, {}).update({int(lane): tuple(pair) for lane, pair in lanes.items()})
        self.hear(merged)
        self.is_unheard = False
        self._changed()
        return {
            name: (
                tree_sum([lanes.get(lane, (0.0, 0.0))[0] for lane in range(self._num_lanes)]),
                tree_sum([lanes.get(lane, (0.0, 0.0))[1] for lane in range(self._num_lanes)]),
            )
            for name, lanes in sorted(merged.items())
        }
