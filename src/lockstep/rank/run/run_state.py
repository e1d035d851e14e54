"""What a run is made of, in three values by what may be changed: nothing, a part's own state, where the run is."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.protocol.arithmetic import Arithmetic
from lockstep.protocol.environment import RankEnvironment
from lockstep.protocol.events import Kind, add_event
from lockstep.protocol.journal.failure import FailureKind, kind_of
from lockstep.protocol.layout.mesh import Mesh
from lockstep.protocol.layout.placement import Placement
from lockstep.protocol.run_folder import RunFolder
from lockstep.rank.checks.unprepared_optimizers import UnpreparedOptimizers
from lockstep.rank.checks.unreduced_metrics import UnreducedMetrics
from lockstep.rank.checks.variables import Named
from lockstep.rank.checks.written_files import WrittenFiles
from lockstep.rank.data.loader import PreparedLoader
from lockstep.rank.data.planned_steps import PlannedSteps
from lockstep.rank.data.stream import SavedStream, StreamedSteps
from lockstep.rank.init.numerics import KeptNumerics
from lockstep.rank.init.streams import Streams
from lockstep.rank.recording.meter import Meter
from lockstep.rank.recording.recorder import Recorder
from lockstep.rank.run.position.epoch_count import EpochCount, InsideEpoch
from lockstep.rank.run.position.kept_values import KeptValues, Tallies
from lockstep.rank.run.position.metrics import MetricsFile
from lockstep.rank.run.position.moment import LoopPosition
from lockstep.rank.run.position.preparations import Members, Modes, Preparations
from lockstep.rank.run.position.step_timer import StepTimer
from lockstep.rank.strategy.contract import OpenLane, Strategy
from lockstep.rank.strategy.pass_loss import PassLoss
from lockstep.rank.strategy.precision import LossScale
from lockstep.rank.transport.contract import Transport


class NoStates:
    """The run saves no states by itself; `lockstep.rank.checkpoint.trigger.automatic` does. Collective, but for `left_steps` and `leave_loop`."""

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
    """The run keeps no state in memory; `lockstep.rank.checkpoint.trigger.snapshots` does. Collective, but for `is_due` and `end`."""

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

    def after_body(self) -> None:
        """At the end of a body of `run.epochs`: take one if it is due, or could not be taken before."""

    def count_saved(self, step: int, at_s: float, cost_s: float) -> None:
        """A state of `step` is on the disk, which counts as a snapshot. Not collective; see `Pace.took`."""

    def end(self) -> None:
        """The run is over: nothing is kept any more."""


class LateParts(ABC):
    """What a state has of things that came in the middle; `lockstep.rank.checkpoint.load.plan` keeps it."""

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
class Checks:
    """How often ranks compare what all of them hold, and when it last was the same."""

    asked: int | None = None
    """The number of steps that was asked for; 0: never in a pass; None: chosen by size."""
    every: int = 0
    """The number of steps in this epoch."""
    agreed: int = 0
    """The last step after which it was the same on every rank; 0 before the first one."""


class NoLastSnapshot:
    """Nothing is kept when another rank is lost; `lockstep.rank.checkpoint.trigger.last_snapshot` keeps the beginning of the step."""

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


@dataclass(frozen=True)
class Config:
    """What `lockstep.init` decided. It does not change."""

    environment: RankEnvironment
    folder: RunFolder | None
    device: torch.device
    threads: int
    seed: int
    arithmetic: Arithmetic
    """Precision and numerics, as decided."""
    lanes_named: bool
    """Whether script, command line or the state that is resumed named the number of lanes; otherwise it is the default."""
    mesh: Mesh
    placement: Placement
    """Lanes on replicas."""

    @property
    def lanes(self) -> range:
        """The lanes that this rank carries, together with the other stages of its replica."""
        return self.placement.lanes(self.mesh.replica(self.environment.position.rank))

    @property
    def counts(self) -> bool:
        """Whether this rank's work on its lanes counts: of a replica's stages, only the first one's does."""
        return self.mesh.stage(self.environment.position.rank) == 0


@dataclass(frozen=True)
class Components:
    """The parts that do the work. Each has its own state; none is replaced."""

    transport: Transport
    strategy: Strategy
    streams: Streams
    numerics: KeptNumerics
    step_timer: StepTimer
    metrics: MetricsFile
    unprepared: UnpreparedOptimizers
    unreduced: UnreducedMetrics
    scaler: LossScale | None
    """Under 16-mixed; it has a state that a resumed run needs."""
    recorder: Recorder | None
    meter: Meter | None
    written: WrittenFiles | None
    """The files that this rank writes, where there are several ranks."""


@dataclass
class Said:
    """What was said once and is not said again."""

    training_mode: bool = False
    apart: bool = False
    seeded_lane: bool = False
    decisions: bool = False
    script: bool = False


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
    began_infinite: set[tuple[int, str]] = field(default_factory=set)
    """Buffers and frozen parameters that were not finite when `prepare` took their model, by its identity and their name; tracked
    modules with such, by identity and no name."""
    hooks: list[Any] = field(default_factory=list)
    """Handles on the optimizers' steps, removed when the run ends."""
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
    lane_logs: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """What the lanes of the current pass logged: (weighted sum, weight) by name."""
    losses: deque[tuple[int, PassLoss]] = field(default_factory=deque)
    """Those of the last passes that no gauge shows yet, each with its step."""


@dataclass
class Evaluated:
    """The last evaluation."""

    samples: list[Any] = field(default_factory=list)
    """Data-set indices of the samples that it gave this rank."""
    digest: str = ""
    """Of its order; the same on every rank."""


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
    left: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What the script reads behind the last turn of its loops (`lockstep.rank.run.loop.loop_variables`), by loop."""
    epochs_seen: list[int] = field(default_factory=list)
    """Samples of each finished training epoch, over all ranks."""
    accounts: list[dict[str, Any]] = field(default_factory=list)
    """Which samples each training epoch used that is over; see `PlannedSteps.account`."""


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
    later_streams: Mapping[str, Any] | None = None
    """The random streams of the loaded state, until `run.steps` continues."""
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

    @property
    def is_inside(self) -> bool:
        """Whether the run may resume from the middle of an epoch."""
        return self.automatic.is_on or self.snapshots.is_on or self.last.is_on


@dataclass
class LoopState:
    """Where the run is."""

    position: LoopPosition = field(default_factory=LoopPosition)
    prepared: Prepared = field(default_factory=Prepared)
    open_pass: OpenPass = field(default_factory=OpenPass)
    evaluation: Evaluated = field(default_factory=Evaluated)
    epoch: EpochState = field(default_factory=EpochState)
    resumption: Resumption = field(default_factory=Resumption)
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    said: Said = field(default_factory=Said)
    tallies: Tallies = field(default_factory=Tallies)
    epochs: EpochCount = field(default_factory=EpochCount)
    checks: Checks = field(default_factory=Checks)
    values: KeptValues = field(init=False)
    """`run.state`."""
    ended: bool = False
    """Whether the run is over; its loop must not continue."""
    accumulates: bool = False
    """Whether a step may add to gradients of the step before."""
    script: list[Named] | None = None
    """What no state holds of the script; None before the first step."""
    as_at_first: tuple[int, list[bool], list[bool]] | None = None
    """`members.switches` with which `modes` recorded nothing."""
    first_modes: Modes | None = None
    """What the script had switched before the run loaded anything, and before its first epoch or step."""

    def __post_init__(self) -> None:
        self.values = KeptValues(lambda: self.loop_has_begun, self.prepared.preparations.options)

    def begin(self) -> None:
        """Before the first epoch or step: load what the run resumes from. Collective: call it on every rank."""
        self.note_modes()
        self.checkpointing.snapshots.begin(self.checkpointing.automatic)

    def note_modes(self) -> None:
        """Before anything is loaded, and before the first epoch or step."""
        if self.first_modes is None:
            self.first_modes, self.as_at_first = Modes.of(self.prepared.models), None

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

    def grow(self) -> None:
        """Something was prepared in the middle, or a prepared optimizer got another group."""
        self.checkpointing.last.left_steps()  # what it keeps of the last step lacks this
        if self.resumption.late is not None:
            self.resumption.late.look()

    @property
    def known(self) -> list[Any]:
        """The objects besides models that every state of the run holds."""
        return [*self.prepared.taken, *self.prepared.stateful.values(), *self.prepared.tracked.values()]

    def holds(self, thing: Any) -> bool:
        """Whether every state of the run holds what a variable of the script names."""
        known = (*self.prepared.taken, *self.prepared.tracked.values(), self.values)
        return (hasattr(thing, "state_dict") and any(thing is one for one in known)) or type(thing).__name__ == "Run"

    @property
    def lacks(self) -> list[str]:
        """Names of what a state of this run lacks, and of what those lacked from which it comes."""
        return list(dict.fromkeys([*(one.name for one in self.script or []), *self.resumption.resumed_without]))

    @property
    def loop_has_begun(self) -> bool:
        """Whether the script came to its first `run.epochs` or `run.steps`."""
        return self.resumption.has_begun or self.epochs.loop > 0 or self.epochs.calls_outside > 0


@dataclass(frozen=True)
class RunState:
    """One run on one rank."""

    config: Config
    components: Components
    loop_state: LoopState

    def is_here(self, tensor: Tensor) -> bool:
        """Whether this rank holds a parameter or buffer of a prepared model; other stages may."""
        mesh, holder = self.config.mesh, self.components.strategy.holder_of(tensor)
        return holder is None or mesh.stage(holder) == mesh.stage(self.components.transport.rank)

    def note(self, kind: Kind, step: int | None = None, **fields: Any) -> None:
        """Add an event to the run folder, on rank 0 where there is one; `step`: None for the newest."""
        if self.components.transport.rank == 0 and self.config.folder is not None:
            newest = self.components.step_timer.step
            add_event(self.config.folder.events, kind, newest if step is None else step, **fields)
