"""Where the script is in its training loop, and where a run was at a place from which it can resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from samebits.errors import UsageError
from samebits.rank.position.preparations import Modes


@dataclass
class Moment:
    """A place between two steps, or after the last one of an epoch."""

    counters: Mapping[str, Any]
    """As a state holds them (`rank.checkpoint.parts.position.counters`)."""
    body_streams: Mapping[str, Any] | None
    """Those of when the current body of `run.epochs` began."""
    streams: Mapping[str, Any] | None
    """The random streams, where what comes next draws from them; None where a step begins, which has its own."""
    states: Mapping[str, Any]
    """Those of schedulers and of the run's own objects, by label."""
    values: Mapping[str, Any]
    """`run.state`."""
    tracked: Mapping[str, Any]
    """Those of tracked objects that are no modules, by name."""
    modes: Modes
    """What had been switched another way since the run's beginning."""
    lines: Sequence[Mapping[str, Any]]
    """What `run.log` has written in the step that ended there."""
    recorded: Mapping[str, Any] | None
    """What a record says of that step."""


class Region(StrEnum):
    """The parts of a training script, as samebits sees it."""

    SCRIPT = "script"
    """Outside the steps: the same on every rank."""
    STEP = "step"
    """In the body of a step, outside its lanes: the same on every rank."""
    LANE = "lane"
    """Inside a step's lanes: ranks carry different numbers of them."""
    EVALUATION = "evaluation"
    """Inside plain iteration of a prepared loader: ranks have different numbers of batches."""


@dataclass
class LoopPosition:
    """The current place. The step and the evaluation change it; everything else reads it."""

    region: Region = Region.SCRIPT
    lane: int = -1
    """The lane in LANE and EVALUATION."""
    num_samples: int = 0
    """Samples of the lane's current batch."""
    lane_samples: tuple[int, ...] = ()
    """Samples of each lane of the current step, or the last one."""
    in_loss_over_batch: bool = False
    """Whether a loss is computed from the features of all lanes, on every rank."""
    is_counted: bool = False
    """Whether something was added to a tally since the evaluation began."""
    reverses: bool = False
    """Whether loops go through a step's lanes from the last to the first. Others than `Step` that rely on the order switch it off."""
    has_reversed: bool = False

    @property
    def in_lane(self) -> bool:
        return self.region in (Region.LANE, Region.EVALUATION)

    @contextmanager
    def loss_over_batch(self) -> Iterator[None]:
        """While a script computes a loss from the features of all lanes."""
        self.in_loss_over_batch = True
        try:
            yield
        finally:
            self.in_loss_over_batch = False

    def require_same_on_every_rank(self, call: str) -> None:
        """Raise `UsageError` where ranks do not pass equally often."""
        if self.region is Region.LANE:
            raise UsageError(
                f"{call} was called inside the lane loop. Ranks carry different numbers of lanes, so some would wait "
                "forever.",
                "Call it after the inner loop; for a metric use run.tally().",
            )
        if self.region is Region.EVALUATION:
            raise UsageError(
                f"{call} was called while iterating a prepared loader. Ranks get different numbers of batches from it, "
                "so some would wait forever.",
                "Call it after the loop; for a metric use run.tally().",
            )
