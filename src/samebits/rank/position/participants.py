"""What takes part in a run's loop and is built above it: the contracts of `rank/checks` and `rank/checkpoint`.

A participant is called on every rank at the same places, in one fixed order, and may raise; an observer may only end a run (`SystemExit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch.optim import Optimizer

from samebits.rank.position.epoch_count import InsideEpoch

Requests = Callable[[Callable[[], None]], None]
"""Called at the end of a step on every rank: exchanges what any of them was asked to save, and adds it to `States.asked`. Its
argument lets the run resume behind the step; not for a rank that was asked, which must be asked again."""


class Checks(Protocol):
    """What every run watches; `rank.checks.checks` has it. Not collective."""

    def take(self, optimizer: Optimizer) -> None:
        """`prepare` has taken an optimizer: its steps are the strategy's."""

    def before_step(self) -> None:
        """A step is next: say what evaluations before it lacked."""

    def begin_pass(self, *, is_first: bool) -> None:
        """A pass over a step's lanes begins, the first of its step or another."""

    def end_pass(self) -> None:
        """The gradients are complete."""

    def before_update(self, optimizer: Optimizer) -> None:
        """A prepared optimizer is about to step."""

    def say_idle(self) -> None:
        """Behind the first epoch, once: say what its loop lacks to train anything. Call it when the losses are there."""

    def enter_lane(self) -> None:
        """A lane begins."""

    def leave_lane(self) -> None:
        """The script's part of it is over; raises `UsageError` for what may not be part of a lane."""

    def close_lane(self) -> None:
        """A lane or an evaluation is over, well or not."""

    def enter_loss_over_batch(self) -> None:
        """A loss over the samples of all lanes begins."""

    def leave_loss_over_batch(self) -> None:
        """It is over; raises as `leave_lane` does."""

    def begin_evaluation(self) -> None:
        """A loop over a prepared loader begins."""

    def end_evaluation(self, line: str, num_seen: int, num_samples: int, *, is_counted: bool) -> None:
        """It came to its end, on `line`, with so many of its samples here; whether it added to a tally."""

    def left_evaluation(self, line: str) -> None:
        """The script left it early."""

    def put_together(self, *, only_counted: bool = False) -> None:
        """Ranks exchange values: gathered rows, a sum; or a tally, which covers loops that used one only."""

    def say_shares(self) -> None:
        """Report evaluations whose numbers stayed one rank's own; before a step, and at the end of the script."""

    def written(self) -> dict[str, str]:
        """The source line of each path that this rank has written since the last call."""

    def say_written(self, everyone: Sequence[dict[str, Any]]) -> None:
        """Say which files several ranks wrote, from what `written` returned on each."""

    def close(self) -> None:
        """The run is over, well or not."""


class States(Protocol):
    """How a run keeps its state: on the disk, in memory, and when a rank is lost; `rank.checkpoint.when.states` has it.

    Collective: `begin`, `enter_steps`, `reach_boundary`, `save_asked` and `after_body`.
    """

    requests: Requests | None
    """Where another library's loop lets one process ask for a state; others save only what all ranks were asked for."""
    asked: list[Callable[[], None]]
    """Write states that were asked for inside a step, of which there is none before the step is over; the same on every rank."""
    place: str
    """The folder of the states that the run saves by itself, and resumes from; empty where it saves none."""
    is_inside: bool
    """Whether the run may resume from the middle of an epoch."""
    follows_streams: bool
    """Whether a data set that can tell its own place in an epoch is asked for it before each step."""
    has_ended: bool
    """Whether the run has ended because it was asked to."""

    def begin(self) -> None:
        """Before the first epoch or step: load the newest state of memory and disk."""

    def enter_steps(self, inside: InsideEpoch, *, is_over: bool) -> None:
        """The first step of an epoch is next, or `is_over`, none."""

    def enter_step(self) -> None:
        """A step has begun."""

    def enter_pass(self, undo: Callable[[], None]) -> None:
        """A pass over a step's lanes begins; `undo` takes back what its lanes have changed."""

    def report(self) -> dict[str, Any]:
        """Rows for the frame of a pass: what this rank wants to be done after the step."""

    def hear(self, rows: Mapping[str, Sequence[Any]]) -> None:
        """What all ranks reported; the same on each."""

    def forget_step(self) -> None:
        """What is kept is no longer what the step began with: a pass has ended, or something was prepared in the middle."""

    def reach_boundary(self, inside: InsideEpoch, *, is_last: bool) -> None:
        """Between two steps, or after the last one of an epoch: save what is due or asked for.

        Raises:
            SystemExit: on every rank, when the run was asked to end.
        """

    def save_asked(self) -> None:
        """Write those that were `asked` for."""

    def left_steps(self) -> None:
        """The script left its loop over steps."""

    def after_body(self, *, is_last: bool) -> None:
        """At the end of a body of `run.epochs`, perhaps the last one: as `reach_boundary`."""

    def leave_loop(self) -> None:
        """The script is out of its loop; no step follows for now."""

    def take_after(self, error: Exception) -> None:
        """A batch did not come: if a loader worker is lost, keep the last place from which the run can continue."""

    def note_end(self) -> None:
        """The run has ended well: note it for a start that resumes from its states."""

    def end(self) -> None:
        """The run is over, well or not: finish what is being written, and keep nothing in memory."""
