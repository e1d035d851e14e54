"""Where a run is: what its loop, its checks and its checkpoints read and change, by subject."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from samebits.protocol.skipped_steps import NONE, SkippedSteps
from samebits.rank.data.loader import PreparedLoader
from samebits.rank.data.planned_steps import PlannedSteps
from samebits.rank.data.stream import SavedStream, StreamedSteps
from samebits.rank.look.looks import NOT_YET, Looks
from samebits.rank.position.epoch_count import EpochCount, InsideEpoch
from samebits.rank.position.kept_values import KeptValues
from samebits.rank.position.made_schedulers import MadeSchedulers
from samebits.rank.position.moment import LoopPosition, Region
from samebits.rank.position.preparations import SCHEDULER, Members, Modes, Preparations
from samebits.rank.position.rates import Rates
from samebits.rank.position.tally import Tallies
from samebits.rank.strategy.contract import OpenLane
from samebits.rank.strategy.pass_loss import PassLoss


@dataclass
class Comparison:
    """How often ranks compare what all of them hold, and when it last was the same."""

    requested: int | None = None
    """The number of steps that was requested; 0: never in a pass; None: chosen by size."""
    every: int = 0
    """The number of steps in this epoch."""
    agreed: int = 0
    """The last step after which it was the same on every rank; 0 before the first one."""


@dataclass
class Notices:
    """Notices that were given, each once."""

    training_mode: bool = False
    apart: bool = False
    seeded_lane: bool = False
    decisions: bool = False


@dataclass
class Prepared:
    """What `prepare` and `run.track` took, and what follows from it."""

    models: list[nn.Module] = field(default_factory=list)
    loaders: list[PreparedLoader] = field(default_factory=list)
    preparations: Preparations = field(default_factory=Preparations)
    taken: list[Any] = field(default_factory=list)
    """Every object that `prepare` took, in order."""
    stateful: dict[str, Any] = field(default_factory=dict)
    """Objects of the run itself with a `state_dict` that belongs in `run.save_state`, by name: a gradient scaler."""
    tracked: dict[str, Any] = field(default_factory=dict)
    """What `run.track` named, by name."""
    per_lane: list[Any] = field(default_factory=list)
    """What `run.per_lane` made: tracked, and written by lanes."""
    began_infinite: set[tuple[int, str]] = field(default_factory=set)
    """Buffers and frozen parameters that were not finite when `prepare` took their model, by its identity and their name; tracked
    modules with such, by identity and no name."""
    hooks: list[Any] = field(default_factory=list)
    """Handles on the optimizers' steps, removed when the run ends."""
    even_lanes: bool = False
    """Whether each rank must have as many lanes as the others: the script has the loop of another library."""
    of_library: Callable[[], list[tuple[Any, frozenset[str]]]] = list
    """What the loop of another library calls of the script, each with names of its attributes that every state holds."""
    members: Members = field(init=False)
    """Those of `models`."""

    def __post_init__(self) -> None:
        self.members = Members(self.models)


@dataclass
class OpenPass:
    """The pass over a step's lanes that is open."""

    lane: OpenLane | None = None
    """The lane that `run.backward` belongs to."""
    broken: str | None = None
    """Why the current step has no gradient, said at `optimizer.step()`."""
    counted: dict[int, Any] = field(default_factory=dict)
    """By lane: losses, with graphs, that wait for the counts of all lanes."""
    is_counted: bool = False
    """Whether lanes of the last pass, on any rank, have kept their losses so."""
    lane_logs: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """What the lanes of the current pass logged: (weighted sum, weight) by name."""
    losses: deque[tuple[int, PassLoss]] = field(default_factory=deque)
    """Those of the last passes that no gauge shows yet, each with its step."""
    fetched: list[tuple[int, int, str]] = field(default_factory=list)
    """With a record, what this rank's lanes were given since the last pass: step, lane, digests."""
    all_fetched: list[tuple[int, int, str]] = field(default_factory=list)
    """The same of all ranks, until the record takes it."""

    def forget(self) -> None:
        """Forget what lanes left in a pass that is given up."""
        self.lane_logs.clear()
        self.counted.clear()


@dataclass
class Evaluated:
    """The last evaluation."""

    samples: list[Any] = field(default_factory=list)
    """Data-set indices of the samples that it gave this rank."""
    digest: str = ""
    """Of its order; the same on every rank."""
    tallied_until: str = ""
    """The line of an evaluation that the script left early and whose values are in a tally that nobody has asked since."""
    loader: PreparedLoader | None = None
    """Whose it was."""


@dataclass
class EpochState:
    """The epoch that is under way, and those that are over."""

    steps: weakref.ref[Iterator[Any]] | None = None
    """The iterator that the last `run.steps` made."""
    inside: InsideEpoch | None = None
    """Between the steps of an epoch: how far it is."""
    reading: weakref.ref[PlannedSteps | StreamedSteps] | None = None
    """The steps of the last epoch."""
    body_streams: Mapping[str, Any] | None = None
    """With states inside an epoch: the random streams as they were when the current body of `run.epochs` began."""
    epochs_seen: list[int] = field(default_factory=list)
    """Samples of each finished training epoch, over all ranks."""
    skipped: SkippedSteps = NONE
    """Steps of the run whose samples are passed over: those to come, and those that earlier starts have passed over."""
    accounts: list[dict[str, Any]] = field(default_factory=list)
    """Which samples each training epoch used that is over; see `PlannedSteps.account`."""


class LateParts(Protocol):
    """What a state has of things that came in the middle; `samebits.rank.checkpoint.parts.whole` keeps it."""

    def rewind(self) -> None:
        """Something was prepared: draw what comes next as if this start had not made anew what the run had made before."""

    def look(self) -> None:
        """Load them if this start has made all of them."""

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
class LoopState:
    """Where the run is."""

    position: LoopPosition = field(default_factory=LoopPosition)
    prepared: Prepared = field(default_factory=Prepared)
    open_pass: OpenPass = field(default_factory=OpenPass)
    evaluation: Evaluated = field(default_factory=Evaluated)
    epoch: EpochState = field(default_factory=EpochState)
    resumption: Resumption = field(default_factory=Resumption)
    notices: Notices = field(default_factory=Notices)
    tallies: Tallies = field(default_factory=Tallies)
    epochs: EpochCount = field(default_factory=EpochCount)
    comparison: Comparison = field(default_factory=Comparison)
    values: KeptValues = field(init=False)
    """`run.state`."""
    rates: Rates = field(default_factory=Rates)
    schedulers: MadeSchedulers = field(init=False)
    """Those that nobody prepared."""
    ended: bool = False
    """Whether the run is over; its loop must not continue."""
    recorded: Mapping[str, Any] | None = None
    """What a record says of the last step, the same on every rank: the one that writes it may be lost before it came to that."""
    is_recorded: bool = False
    """Whether `verify` has all that it wants: loops end as if the data were over."""
    looks: Looks = field(default_factory=Looks)
    """At what the script keeps itself."""
    as_at_first: tuple[int, list[bool], list[bool]] | None = None
    """`members.switches` with which `modes` recorded nothing."""
    first_modes: Modes | None = None
    """What the script had switched before the run's first epoch or step, without what a loaded state has switched."""
    modes_as_loaded: Modes | None = None
    """Of all modules and parameters, when a state had been loaded before the first epoch or step."""

    def __post_init__(self) -> None:
        preparations, tracked = self.prepared.preparations, self.prepared.tracked
        is_lane = lambda: self.position.region is Region.LANE and self.looks.counts_lanes  # noqa: E731
        self.values = KeptValues(lambda: self.loop_has_begun, preparations.options, is_lane)
        self.schedulers = MadeSchedulers(
            self.epochs, lambda: [*preparations.things[SCHEDULER].values(), *tracked.values()], preparations.holds
        )

    def follow_a_library(self) -> None:
        """Each batch of the script is a lane: ranks divide the lanes, and counters change in a lane by design."""
        self.prepared.even_lanes, self.looks.counts_lanes = True, False

    def note_modes(self) -> None:
        """Before anything is loaded, and before the first epoch or step."""
        if self.first_modes is None:
            self.first_modes, self.as_at_first = Modes.of(self.prepared.models), None
        # What the script switches behind `run.load_state` and before the first step, it had switched before the first step.
        if self.modes_as_loaded is not None:
            self.first_modes = self.first_modes.overridden_by(
                Modes.of(self.prepared.models).since(self.modes_as_loaded)
            )
            self.as_at_first = None
        self.modes_as_loaded = None

    def modes(self) -> Modes:
        """What has been switched another way since then."""
        switches = self.prepared.members.switches()
        if switches == self.as_at_first:
            return Modes()
        found = Modes.of(self.prepared.models).since(self.first_modes or Modes())
        self.as_at_first = None if found.told() else switches
        return found

    def switch(self, modes: Modes) -> None:
        """Let modules train and parameters be trained as at first, but for what was switched another way."""
        self.note_modes()
        (self.first_modes or modes).switch(self.prepared.models)
        modes.switch(self.prepared.models)
        self.modes_as_loaded = None if self.loop_has_begun else Modes.of(self.prepared.models)

    @property
    def known(self) -> list[Any]:
        """The objects besides models that every state of the run holds."""
        made = [one.here for one in self.schedulers.here()]
        taken = self.prepared.taken
        return [*taken, *self.prepared.stateful.values(), *self.prepared.tracked.values(), *made]

    @property
    def lacks(self) -> list[str]:
        """Names of what a state of this run lacks, and of what those lacked from which it comes."""
        earlier, looks = self.resumption.resumed_without, self.looks
        if looks.has_compared:
            unread = [f"{one.name} (not looked at)" for one in looks.unread]
            names = [*(one.name for one in looks.carried), *unread, *(name for name in earlier if name != NOT_YET)]
        else:
            # A state whose run had looked says what it lacks: the same script lacks it here.
            is_known = self.resumption.has_resumed and NOT_YET not in earlier
            names = [*(one.name for one in looks.carried), *(() if is_known else (NOT_YET,)), *earlier]
        return list(dict.fromkeys([*names, *(one.name for one in looks.behind)]))

    @property
    def loop_has_begun(self) -> bool:
        """Whether the script came to its first `run.epochs` or `run.steps`."""
        return self.resumption.has_begun or self.epochs.loop > 0 or self.epochs.calls_outside > 0
