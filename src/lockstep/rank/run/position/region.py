"""Where in the training loop the script is, which decides what it may do there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lockstep.errors import UsageError


class Region(StrEnum):
    """The parts of a training script, as lockstep sees it."""

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
    is_counted: bool = False
    """Whether something was added to a tally since the evaluation began."""

    @property
    def in_lane(self) -> bool:
        return self.region in (Region.LANE, Region.EVALUATION)

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
