"""How a step's samples are cut into lanes, and what each lane weighs.

Lane `l` owns the positions [start_l, end_l) of a *full* step, cut as by `numpy.array_split`. A short last step fills
the same positions in the same order: early lanes full, one partial, the rest empty. So there are few different lane
sizes, and no lane of one sample, which BatchNorm refuses, unless the batch itself forces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TypeVar

from samebits.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class StepCut:
    """How one step's samples are distributed over the lanes; the same on every rank."""

    step: int
    """Counted from 1."""
    samples: tuple[int, ...]
    """The number of samples of each lane; 0 for a lane that is empty in a short step."""
    weights: tuple[float, ...]
    """Numbers of samples relative to the largest full lane; 1.0 for a full lane of an even cut."""

    @property
    def num_samples(self) -> int:
        return sum(self.samples)


@dataclass(frozen=True)
class Cut:
    """The cut of a step of at most `batch_size` samples into `num_lanes` lanes.

    Invariants: the lanes are disjoint, in order, and cover the step; sizes of a full step differ by at most one.

    Raises:
        UsageError: when `batch_size` or `num_lanes` is below 1.
    """

    batch_size: int
    num_lanes: int

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(
                f"`batch_size` must be at least 1, but is {self.batch_size}.",
                "Give the DataLoader a batch of at least one sample.",
            )
        if self.num_lanes < 1:
            raise UsageError(
                f"`lanes` must be at least 1, but is {self.num_lanes}.", "Leave it out to let samebits choose."
            )

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """The `num_lanes + 1` bounds; lane `l` owns the positions `bounds[l]` up to `bounds[l + 1]` of a full step."""
        size, larger = divmod(self.batch_size, self.num_lanes)
        return tuple(lane * size + min(lane, larger) for lane in range(self.num_lanes + 1))

    def full_sizes(self) -> tuple[int, ...]:
        """The number of samples of each lane in a full step."""
        return tuple(end - start for start, end in pairwise(self.bounds))

    def sizes(self, num_samples: int) -> tuple[int, ...]:
        """The number of samples of each lane in a step of `num_samples` ≤ `batch_size`."""
        clipped = [min(bound, num_samples) for bound in self.bounds]
        return tuple(end - start for start, end in pairwise(clipped))

    def weight(self, num_samples: int) -> float:
        """A lane's weight relative to the largest full lane: exactly 1.0 for every full lane of an even cut.

        A weight of 1.0 needs no multiplication, which saves a pass over the gradients and a rounding.
        """
        return num_samples / -(-self.batch_size // self.num_lanes)

    def of_step(self, step: int, num_samples: int) -> StepCut:
        """The cut of step `step`, counted from 1, with its weights. Full steps share them."""
        return StepCut(step, *_sizes_and_weights(self, num_samples))

    def lanes_of(self, samples: Sequence[T]) -> list[Sequence[T]]:
        """The step's samples, lane by lane; concatenated, they are `samples` again."""
        clipped = [min(bound, len(samples)) for bound in self.bounds]
        return [samples[start:end] for start, end in pairwise(clipped)]


@lru_cache(maxsize=64)
def _sizes_and_weights(cut: Cut, num_samples: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    sizes = cut.sizes(num_samples)
    return sizes, tuple(map(cut.weight, sizes))


def steps_of(order: Sequence[T], batch_size: int, drop_last: bool) -> Iterator[Sequence[T]]:
    """Cut the epoch's order into steps. Only the last may be short; `drop_last` leaves it out."""
    for start in range(0, len(order), batch_size):
        samples = order[start : start + batch_size]
        if drop_last and len(samples) < batch_size:
            return
        yield samples


def num_steps(num_samples: int, batch_size: int, drop_last: bool) -> int:
    """The number of steps that `steps_of` yields."""
    return num_samples // batch_size if drop_last else -(-num_samples // batch_size)
