"""What takes part in a run's loop and is built above it: the contract of `rank/checks`.

A participant is called on every rank at the same places, in one fixed order, and may raise; an observer may only end a run (`SystemExit`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


class Checks(ABC):
    """What every run watches; `rank.checks.checks` has it. Not collective."""

    @abstractmethod
    def take(self, optimizer: Optimizer) -> None:
        """`prepare` has taken an optimizer: its steps are the strategy's."""

    @abstractmethod
    def before_step(self) -> None:
        """A step is next: say what evaluations before it lacked."""

    @abstractmethod
    def begin_pass(self, *, is_first: bool) -> None:
        """A pass over a step's lanes begins, the first of its step or another."""

    @abstractmethod
    def end_pass(self) -> None:
        """The gradients are complete."""

    @abstractmethod
    def before_update(self, optimizer: Optimizer) -> None:
        """A prepared optimizer is about to step."""

    @abstractmethod
    def say_idle(self) -> None:
        """Behind the first epoch, once: say what its loop lacks to train anything. Call it when the losses are there."""

    @abstractmethod
    def enter_lane(self) -> None:
        """A lane begins."""

    @abstractmethod
    def leave_lane(self) -> None:
        """The script's part of it is over; raises `UsageError` for what may not be part of a lane."""

    @abstractmethod
    def close_lane(self) -> None:
        """A lane or an evaluation is over, well or not."""

    @abstractmethod
    def enter_loss_over_batch(self) -> None:
        """A loss over the samples of all lanes begins."""

    @abstractmethod
    def leave_loss_over_batch(self) -> None:
        """It is over; raises as `leave_lane` does."""

    @abstractmethod
    def begin_evaluation(self) -> None:
        """A loop over a prepared loader begins."""

    @abstractmethod
    def end_evaluation(self, line: str, num_seen: int, num_samples: int, *, is_counted: bool) -> None:
        """It came to its end, on `line`, with so many of its samples here; whether it added to a tally."""

    @abstractmethod
    def left_evaluation(self, line: str) -> None:
        """The script left it early."""

    @abstractmethod
    def put_together(self, *, only_counted: bool = False) -> None:
        """Ranks exchange values: gathered rows, a sum; or a tally, which covers loops that used one only."""

    @abstractmethod
    def say_shares(self) -> None:
        """Report evaluations whose numbers stayed one rank's own; before a step, and at the end of the script."""

    @abstractmethod
    def written(self) -> dict[str, str]:
        """The source line of each path that this rank has written since the last call."""

    @abstractmethod
    def say_written(self, everyone: Sequence[dict[str, Any]]) -> None:
        """Say which files several ranks wrote, from what `written` returned on each."""

    @abstractmethod
    def close(self) -> None:
        """The run is over, well or not."""
