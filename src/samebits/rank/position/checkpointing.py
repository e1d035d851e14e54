"""How a run keeps its state, as its loop sees it: states on the disk, snapshots in memory, the last one after a loss.

Each class here does nothing; `rank.checkpoint` has those that do. The loop calls them at the same places on every rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from samebits.protocol.journal.failure import FailureKind, kind_of
from samebits.rank.data.stream import SavedStream
from samebits.rank.position.epoch_count import InsideEpoch


class NoStates:
    """The run saves no states by itself; `samebits.rank.checkpoint.trigger.automatic` does. Collective, but for `left_steps` and `leave_loop`."""

    is_on = False
    place = ""
    """The folder of the states."""
    has_ended = False
    """Whether the run has ended because it was asked to."""

    @property
    def asked(self) -> int:
        """The signal because of which this rank was asked to save and end; 0 when it was not."""
        return 0

    def hear(self, asked: int) -> None:
        """What the ranks exchanged in a pass about `asked`; the same on every rank."""

    def begin(self, beyond: int = -1) -> bool:  # noqa: ARG002 - there is none to load
        """Before the first epoch or step: load the newest state, if it is of a later step than `beyond`; whether it was."""
        return False

    def after_step(self, *, ends_epoch: bool) -> None:
        """Between two steps, or after the last one of an epoch: save when it is time."""

    def left_steps(self) -> None:
        """The script left its loop over steps."""

    def after_body(self) -> None:
        """At the end of a body of `run.epochs`: save when it is time."""

    def comes_within(self, num_steps: int) -> bool:  # noqa: ARG002 - none comes
        """Whether the first state comes after so many steps at most."""
        return False

    def note_end(self) -> None:
        """The run has ended well: note it for a start that resumes from its states. Not collective."""

    def end(self) -> None:
        """The run is over, well or not: finish what is being written. Not collective."""

    def leave_loop(self) -> None:
        """The script is out of its loop; no step follows for now."""


class NoSnapshots:
    """The run keeps no state in memory; `samebits.rank.checkpoint.trigger.snapshots` does. Collective, but for `is_due` and `end`."""

    is_on = False

    @property
    def is_due(self) -> bool:
        """Whether this rank wants all to take a snapshot after this step; rank 0 decides."""
        return False

    def hear(self) -> None:
        """Some rank said in a pass that a snapshot is due; the same on every rank."""

    def begin(self, automatic: NoStates) -> None:
        """Before the first epoch or step: load the newest state of memory and disk."""
        automatic.begin()

    def enter_steps(self) -> None:
        """The first step of an epoch is next. Not collective."""

    def after_step(self, *, ends_epoch: bool) -> None:
        """Between two steps, or after the last one of an epoch: take a snapshot if it is due."""

    def after_boundary(self) -> None:
        """The last snapshot is that of this step's end. Collective: ranks may compare what snapshots would hold."""

    def after_body(self) -> None:
        """At the end of a body of `run.epochs`: take one if it is due, or could not be taken before."""

    def count_saved(self, step: int, at_s: float, cost_s: float) -> None:
        """A state of `step` is on the disk, which counts as a snapshot. Not collective; see `Pace.took`."""

    def end(self) -> None:
        """The run is over: nothing is kept any more."""


class NoLastSnapshot:
    """Nothing is kept when another rank is lost; `samebits.rank.checkpoint.trigger.last_snapshot` keeps the beginning of the step."""

    is_on = False

    def enter_boundary(self, inside: InsideEpoch, *, is_last: bool) -> None:
        """The first step of an epoch is next, or one has ended; after the last one, `is_last`."""

    def enter_step(self) -> None:
        """A step has begun."""

    def enter_pass(self, undo: Callable[[], None]) -> None:
        """A pass over a step's lanes begins; `undo` takes back what its lanes have changed."""

    def leave_pass(self) -> None:
        """It has ended: all ranks have the gradient."""

    def left_steps(self) -> None:
        """The script left its loop over steps."""

    def take(self) -> None:
        """Another rank is lost, or a worker of this one's loader: leave the last place from which the run can continue."""

    def take_after(self, error: Exception) -> None:
        """Do so, if a batch did not come because a loader worker is lost."""
        if kind_of(error) is FailureKind.WORKER:
            self.take()


class NoRequests:
    """Only what all ranks were asked for is saved; `samebits.integrations.asked_states` finds out what one was asked for."""

    def agree(self, enter_boundary: Callable[[], None] = lambda: None) -> None:
        """The end of a step: add what any rank was asked for to `Checkpointing.asked`. Collective.

        `enter_boundary` lets the run resume behind the step; not for a rank that was asked, which must be asked again.
        """


class LateParts(ABC):
    """What a state has of things that came in the middle; `samebits.rank.checkpoint.load.plan` keeps it."""

    @abstractmethod
    def rewind(self) -> None:
        """Something was prepared: draw what comes next as if this start had not made anew what the run had made before."""

    @abstractmethod
    def look(self) -> None:
        """Load them if this start has made all of them."""

    @abstractmethod
    def require(self) -> None:
        """Load them. Raise `UsageError` while one is missing: it trained in the run that was saved."""


@dataclass
class Resumption:
    """What a start that resumes has loaded, and what it still has to do with it."""

    late: LateParts | None = None
    """What a loaded state has of things that came in the middle of its run, until this start has made them."""
    resumed: tuple[int, int] = (0, 0)
    """Epochs and steps that earlier starts made."""
    goes_on: InsideEpoch | None = None
    """Where the loaded state was saved inside an epoch, until `run.steps` continues there."""
    goes_on_stream: SavedStream | None = None
    """With `goes_on`: how the data set can continue by itself."""
    goes_on_order: Mapping[str, Any] | None = None
    """With `goes_on`: the order of the epoch, where a sampler of the script has drawn it."""
    later_streams: Mapping[str, Any] | None = None
    """The random streams of the loaded state, until `run.steps` continues."""
    schedulers: Callable[[bool], None] | None = None
    """Load those that nobody prepared and that are made behind the state, until all are there; True: they must be now."""
    load_again: Callable[[], None] | None = None
    """Where `run.steps` continues: load a state from inside an epoch once more, after what the epoch's body did before it."""
    has_begun: bool = False
    """Whether `automatic` has looked for a state."""
    has_looked: bool = False
    """Whether the script called `run.load_state`, or `automatic` loaded."""
    has_resumed: bool = False
    """Whether the run has loaded a state."""
    resumed_without: list[str] = field(default_factory=list)
    """What the run that saved that state kept itself."""


@dataclass
class Checkpointing:
    """The three ways in which a run keeps its state."""

    automatic: NoStates = field(default_factory=NoStates)
    snapshots: NoSnapshots = field(default_factory=NoSnapshots)
    last: NoLastSnapshot = field(default_factory=NoLastSnapshot)
    asked: list[Callable[[], None]] = field(default_factory=list)
    """States that were asked for inside a step, of which there is none before the step is over; the same on every rank."""
    requests: NoRequests = field(default_factory=NoRequests)
    """Finds out what to add to them."""

    def do_asked(self) -> None:
        """Between two steps, or behind the last one: save them. Collective."""
        while self.asked:
            self.asked.pop(0)()

    @property
    def is_inside(self) -> bool:
        """Whether the run may resume from the middle of an epoch."""
        return self.automatic.is_on or self.snapshots.is_on or self.last.is_on
