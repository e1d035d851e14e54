"""Metrics over samples whose bits do not depend on the number of ranks.

Each lane adds up its own values in order, in float64; `mean` and `sum` add the lanes along the lane tree.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.layout.lane_tree import tree_sum
from samebits.rank.position.moment import LoopPosition, Region
from samebits.rank.transport.contract import Transport

FIRST = "Iterate `loader.first(k)` in its place: the first k batches, the same on any number of ranks."
Sums = dict[str, dict[int, tuple[float, float]]]
"""By name and lane: the weighted sum, and the sum of the weights."""


def left_early(where: str, call: str) -> UsageError:
    """Where a call would put together numbers of an evaluation that the script left early, at that line."""
    return UsageError(
        f"{call}: the loop over a prepared loader at {where} was left early, after the first batches of each rank, so the result "
        "would depend on the number of ranks.",
        FIRST,
    )


def gather_rows(
    rows: Tensor, indices: Sequence[Any], transport: Transport, device: torch.device, where: str, *, left_at: str = ""
) -> Tensor:
    """All ranks' rows, one per sample, in data-set order: exactly `len(dataset)` of them, on every rank.

    Args:
        rows: this rank's rows: dimension 0 has one row for each sample that the last evaluation gave this rank, in
            the order in which they came. Any dtype and device; ranks may have different numbers of rows, and one without
            any does not know of which form the others' are.
        indices: the data-set indices of those samples.
        transport: the ranks.
        device: this rank's.
        where: the line of the script.
        left_at: that of the evaluation, if this rank left it early.

    Raises:
        UsageError: on every rank, when a rank left the evaluation early, when a rank has more or fewer rows than samples, or rows have different forms.
    """
    gathered = transport.all_gather_object(
        {
            "rows": len(rows),
            "indices": list(map(_number, indices)),
            "form": [list(rows.shape[1:]), str(rows.dtype), rows.device.type],
            "left": left_at,
        },
        "gather",
        where,
    )
    if line := next((other["left"] for other in gathered if other["left"]), ""):
        raise left_early(line, "run.gather")
    for rank, other in enumerate(gathered):
        if other["rows"] != len(other["indices"]):
            raise UsageError(
                f"run.gather got {other['rows']} rows on rank {rank}, but the last evaluation gave it "
                f"{len(other['indices'])} samples.",
                "Collect one row per sample in `for batch in loader`, concatenate them, and gather after the loop. To evaluate "
                "only the first batches, loop over `loader.first(k)`.",
            )
    form = next((other["form"] for other in gathered if other["rows"]), gathered[0]["form"])
    if any(other["rows"] and other["form"] != form for other in gathered):
        raise UsageError(
            "run.gather got rows of different shapes, dtypes or devices on different ranks.",
            "Give every row the same shape, dtype and kind of device: pad them, or gather numbers.",
        )
    shape, dtype, kind = form
    # Ranks may have different numbers of rows, and all_gather wants equal shapes.
    longest = max(other["rows"] for other in gathered)
    padded = torch.zeros(
        (longest, *shape), dtype=getattr(torch, dtype.removeprefix("torch.")), device=_here(kind, rows, device)
    )
    if len(rows):
        padded[: len(rows)] = rows.detach()
    run = [part[: other["rows"]] for part, other in zip(transport.all_gather(padded), gathered, strict=True)]
    # Each rank has its rows in its own order; sorted by index they are in the data set's.
    order = [index for other in gathered for index in other["indices"]]
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


def _rows(value: Tensor, num_samples: int, weight: float | None) -> list[float]:
    """The values of a batch's samples as floats."""
    if value.numel() != num_samples or len(value) != num_samples:
        raise UsageError(
            f"A value to tally must be one number, or one for each of the batch's {num_samples} samples, but is {tuple(value.shape)}.",
            "Take a mean, or reduce all dimensions but the first.",
        )
    if weight is not None:
        raise UsageError(
            "tally.add got weight= beside a value for each sample.", "Leave weight= out, or add the weighted mean."
        )
    found: list[float] = value.detach().to(torch.float64).reshape(-1).tolist()
    return found


class Agreed(float):
    """A float that came out of an exchange, so `run.log` need not exchange it again."""


class Tally:
    """A set of named, weighted sums. Made by `run.tally()`.

    `exchange` hands a value to all ranks and returns everybody's; `changed` is called when the tally is reset, or has received
    what evaluations added; `returned` gets what the script gets, by names that say which call made them.
    """

    def __init__(
        self,
        position: LoopPosition,
        num_lanes: int,
        lanes: range,
        exchange: Callable[[Any, str], list[Any]],
        changed: Callable[[], None],
        *,
        returned: Callable[[Mapping[str, float]], None],
    ) -> None:
        self._position, self._num_lanes, self._own, self._returned = position, num_lanes, lanes, returned
        self._exchange, self._changed = exchange, changed
        self._lanes: Sums = {}
        self._known: Sums = {}
        """What was added in the lanes of steps, on every rank: it travels with the gradients."""
        self._new: set[tuple[str, int]] = set()
        self.is_unshared = False
        """Whether this rank added something in an evaluation that the others have not received."""

    def add(self, *, weight: float | None = None, **values: float | Tensor) -> None:
        """Add values of the current batch, inside a step's lanes or while iterating a prepared loader.

        Args:
            weight: what the values are means over; by default the number of samples in the batch.
            values: numbers or one-element tensors; or tensors with a value for each sample of the batch, each of which counts 1.

        Raises:
            UsageError: outside both loops, where every rank would count the same thing again; for other tensors, and for
                `weight` beside values of samples.
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
            if isinstance(value, Tensor) and value.numel() != 1:
                rows = _rows(value, self._position.num_samples, weight)
                # One by one: torch's own sum has other bits on other CPUs, and Python's in other versions.
                for row in rows:
                    total += row
                lanes[self._position.lane] = (total, weights + len(rows))
            else:
                lanes[self._position.lane] = (total + number(value) * amount, weights + amount)
            if self._position.region is Region.LANE:
                self._new.add((name, self._position.lane))
            else:
                self.is_unshared = True

    def mean(self) -> dict[str, Agreed]:
        """Return the weighted mean of each value over all ranks. Collective: call it on every rank, outside lanes."""
        sums = self._summed("tally.mean")
        found = {name: Agreed(total / weight) if weight else Agreed("nan") for name, (total, weight) in sums.items()}
        self._returned({f"tally.mean {name}": value for name, value in found.items()})
        return found

    def sum(self) -> dict[str, Agreed]:
        """Return the weighted sum of each value over all ranks. Collective: call it on every rank, outside lanes."""
        found = {name: Agreed(total) for name, (total, _) in self._summed("tally.sum").items()}
        self._returned({f"tally.sum {name}": value for name, value in found.items()})
        return found

    def reset(self) -> None:
        """Forget everything."""
        self._lanes.clear()
        self._known.clear()
        self._new.clear()
        self.is_unshared = False
        self._changed()

    def known(self) -> Sums:
        """What every rank knows: what was added in lanes of steps that have ended."""
        return {name: dict(lanes) for name, lanes in self._known.items()}

    def take_new(self) -> Sums:
        """What this rank added in lanes since the last call."""
        new, self._new = self._new, set()
        found: Sums = {}
        for name, lane in sorted(new):
            found.setdefault(name, {})[lane] = self._lanes[name][lane]
        return found

    def receive(self, sums: Sums) -> None:
        """Take what some rank has added in lanes."""
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
        self.receive(merged)
        self.is_unshared = False
        self._changed()
        # [Note: why lanes are added along the tree]
        # The same doubles summed rank by rank gave three different sums on 1, 2 and 4 ranks.
        return {
            name: (
                tree_sum([lanes.get(lane, (0.0, 0.0))[0] for lane in range(self._num_lanes)]),
                tree_sum([lanes.get(lane, (0.0, 0.0))[1] for lane in range(self._num_lanes)]),
            )
            for name, lanes in sorted(merged.items())
        }


@dataclass
class _Made:
    """Tallies made in one place."""

    count: int = 0
    before_steps: int = 0
    """How many were made when the steps began."""
    alive: WeakValueDictionary[int, Tally] = field(default_factory=WeakValueDictionary)
    saved: Sequence[Mapping[str, Mapping[str, Sequence[float]]]] = ()
    """Of a loaded state, by number."""

    def add(self, tally: Tally) -> None:
        self.alive[self.count] = tally
        self._restore(self.count)
        self.count += 1

    def restore(self, saved: Sequence[Any]) -> None:
        self.saved = saved
        for number in list(self.alive):
            self._restore(number)

    def _restore(self, number: int) -> None:
        if number < len(self.saved):
            self.alive[number].receive(_decoded(self.saved[number]))

    def is_unshared(self) -> bool:
        known = self.alive.items() if self.before_steps else ()
        return any(tally.is_unshared for number, tally in known if number < self.before_steps)

    def encode(self) -> list[dict[str, Any]]:
        found = [self.alive.get(number) for number in range(self.before_steps)]
        return [_encoded(tally.known()) if tally is not None else {} for tally in found]


class Tallies:
    """All tallies of one run."""

    def __init__(self) -> None:
        self._outside, self._body = _Made(), _Made()
        self.changes = 0
        """Grows when something that every rank knows changes outside of a step's lanes."""

    def add(self, tally: Tally, *, in_body: bool) -> None:
        """Note a new one; it begins with what a loaded state has for it."""
        (self._body if in_body else self._outside).add(tally)

    def enter_body(self) -> None:
        """A body of `run.epochs` begins."""
        self._body = _Made(saved=self._body.saved)
        self._outside.before_steps = self._outside.count

    def begin_steps(self) -> None:
        """`run.steps` begins: what is made later belongs to a step."""
        for made in (self._outside, self._body):
            made.before_steps, made.saved = made.count, ()

    def encode(self, *, inside: bool) -> dict[str, Any]:
        """What a state holds; the same on every rank. Between epochs, not `inside` one, a body's are over."""
        return {"outside": self._outside.encode(), "body": self._body.encode() if inside else []}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue with what `encode` returned."""
        self._outside.restore(saved["outside"])
        self._body.restore(saved["body"])

    def changed(self) -> None:
        """A tally was reset, or has received what evaluations added."""
        self.changes += 1

    @property
    def are_unshared(self) -> bool:
        """Whether this rank added something outside of steps that only it knows, and that a state would hold."""
        return any(made.is_unshared() for made in (self._outside, self._body))

    def take_new(self) -> dict[int, list[Any]]:
        """What this rank added in the lanes of the last pass: by lane, a list of place, number, name and sums."""
        found: dict[int, list[Any]] = {}
        for place, made in enumerate((self._outside, self._body)):
            for number, tally in sorted(made.alive.items() if made.count else ()):
                for name, lane, pair in _items(tally.take_new()):
                    found.setdefault(lane, []).append([place, number, name, *pair])
        return found

    def receive(self, lanes: Mapping[int, Any]) -> None:
        """Take what all ranks added in the lanes of a pass: by lane, what it logged, and what `take_new` returned."""
        for lane, (_, sums) in lanes.items():
            for place, number, name, total, weight in sums:
                tally = (self._outside, self._body)[place].alive.get(number)
                if tally is not None:
                    tally.receive({name: {lane: (total, weight)}})


def _items(sums: Sums) -> Iterator[tuple[str, int, tuple[float, float]]]:
    for name, lanes in sums.items():
        for lane, pair in lanes.items():
            yield name, lane, pair


def _encoded(sums: Sums) -> dict[str, Any]:
    return {name: {str(lane): list(pair) for lane, pair in lanes.items()} for name, lanes in sums.items()}


def _decoded(saved: Mapping[str, Mapping[str, Sequence[float]]]) -> Sums:
    return {
        name: {int(lane): (float(pair[0]), float(pair[1])) for lane, pair in lanes.items()}
        for name, lanes in saved.items()
    }
