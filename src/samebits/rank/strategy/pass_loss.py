"""The loss of a pass over a step's lanes. On a GPU it may be delayed: reading it waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.layout.lane_tree import tree_sum


def stacked(losses: Sequence[Tensor]) -> Tensor:
    """Stack the losses in one float64 tensor."""
    return torch.stack([loss.double().reshape(()) for loss in losses])


def numbers(losses: Sequence[Tensor]) -> list[float]:
    """Return the values, in one read from the device."""
    return [float(losses[0])] if len(losses) == 1 else stacked(losses).tolist() if losses else []


def check_loss(loss: Tensor, weight: float | None) -> None:
    """Raise `UsageError` for anything but a scalar that needs a gradient, and for a weight below 0."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        number = "Pass the loss itself: item() and float() leave a number, which has no backward."
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        fix = "Take the mean over the lane's samples." if isinstance(loss, Tensor) else number
        raise UsageError(f"run.backward needs a scalar loss, but got {shape}.", fix)
    if not loss.requires_grad:
        raise UsageError(
            "The loss does not require grad: it was detached, computed under torch.no_grad(), or no parameter is "
            "trainable.",
            "Compute it from the model's outputs, with gradients.",
        )
    if weight is not None and not weight >= 0:
        raise UsageError(f"weight= must be 0 or more, but is {weight}.", "Pass the number of items in the loss.")


class DelayedValues:
    """Some float64 values of a device.

    Args:
        values: 1-D, on a GPU; whatever its current stream does to them later is not seen.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = torch.empty(values.shape, dtype=torch.float64, device="cpu", pin_memory=True)
        self._values.copy_(values, non_blocking=True)
        self._copied: torch.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record(torch.cuda.current_stream(values.device))

    def is_there(self) -> bool:
        """Whether `read` need not wait."""
        return self._copied.query()

    def read(self) -> list[float]:
        """Wait for the values, and return them."""
        if not self._copied.query():
            self._copied.synchronize()
        numbers: list[float] = self._values.tolist()
        return numbers


@dataclass(frozen=True)
class DelayedResults:
    """What the lanes of a pass exchanged on GPUs."""

    values: DelayedValues
    """The loss of each lane; for each, whether it changed a buffer unnoticed; whether ranks are `apart`."""
    refuse_unseen: Callable[[Sequence[float]], None]
    """Gets the second part, and raises if any of it is not 0."""
    check: Callable[[], None]
    """Raises where a rank was lost: an exchange that was given up leaves arbitrary numbers in `values`."""
    sums_of_ranks: Callable[[], list[Mapping[str, str]]]
    """For each rank that had lanes, sums over the bits of its statistics as they were when the pass began, by name."""


class PassLoss:
    """The losses of a pass's lanes, and their mean: the same bits on every rank.

    Args:
        weights: of all lanes.
        results: by lane, for lanes that called backward; or of all lanes, where they are delayed.
        lanes: those that called backward.
        names_lanes: whether they have the numbers that the run gave them.
    """

    def __init__(
        self,
        weights: Sequence[float],
        results: Mapping[int, float] | DelayedResults,
        lanes: Collection[int],
        *,
        names_lanes: bool = True,
    ) -> None:
        self._weights, self._results, self._present, self._names_lanes = weights, results, lanes, names_lanes

    @classmethod
    def known(cls, mean: float | None) -> PassLoss:
        """One number, of whatever lanes."""
        results = {} if mean is None else {0: mean}
        return cls((1.0,), results, results, names_lanes=False)

    def is_there(self) -> bool:
        """Whether nothing here need wait."""
        return not isinstance(self._results, DelayedResults) or self._results.values.is_there()

    @property
    def lanes(self) -> Mapping[int, float]:
        """The loss of each lane that called backward."""
        if isinstance(self._results, DelayedResults):
            return {lane: self._values[lane] for lane in self._present}
        return self._results

    @cached_property
    def _values(self) -> list[float]:
        assert isinstance(self._results, DelayedResults)
        values, size = self._results.values.read(), len(self._weights)
        self._results.check()
        self._results.refuse_unseen(values[size : 2 * size])
        return values

    def apart(self) -> list[Mapping[str, str]]:
        """For each rank, sums over the bits of its statistics when the pass began, if ranks hold different ones.

        Only where GPUs exchange them; a rank without lanes in the pass has none.
        """
        if isinstance(self._results, DelayedResults) and any(self._values[2 * len(self._weights) :]):
            return self._results.sums_of_ranks()
        return []

    @property
    def mean(self) -> float | None:
        """The weighted mean in the tree's order; with one lane, that lane's loss itself. None without a backward."""
        losses, weights = self.lanes, self._weights
        if not losses:
            return None
        # Times its weight and divided by it, the only lane's loss could have other bits than on the plain loop.
        if len(weights) == 1:
            return float(losses[0])
        # An empty lane has no loss, and one of weight 0 may have NaN (0 / 0); both count as zeros.
        terms = [losses[lane] * weight if weight else 0.0 for lane, weight in enumerate(weights)]
        return tree_sum(terms) / tree_sum(weights)

    @property
    def unfinite(self) -> tuple[int, ...]:
        """The lanes whose own loss is not finite, if the mean is not and they are known."""
        mean = self.mean
        if mean is None or isfinite(mean) or not self._names_lanes:
            return ()
        return tuple(lane for lane in sorted(self.lanes) if not isfinite(self.lanes[lane]))
