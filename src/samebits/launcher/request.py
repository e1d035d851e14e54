"""What is requested of a launch, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from samebits.launcher.choices import Recovery, Verbosity
from samebits.launcher.nodes.key import KeySettings
from samebits.launcher.nodes.place import NodePlace
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.branch import Course
from samebits.protocol.claims import Proved
from samebits.protocol.journal.failure import Failure
from samebits.protocol.layout.mesh import Form
from samebits.protocol.meeting_place import Restart, Seat
from samebits.protocol.saving import Saving, SnapshotPlace

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class FunctionCall:
    """A function of another process that the ranks call, as `samebits.spawn` packed it."""

    parcel: str
    """A path that ranks can read while the caller lives."""
    name: str
    """For people."""
    calls_init: bool = False
    """Whether its file calls `samebits.init`."""
    is_portable: bool = False
    """Whether that call has numerics="portable"."""


@dataclass(frozen=True)
class EntryPoint:
    """What the ranks run. One of `script`, `module` and `call` is set."""

    script: Path | None = None
    module: str | None = None
    call: FunctionCall | None = None
    args: tuple[str, ...] = ()
    local_rank_option: str = ""
    """`--local_rank` or `--local-rank`, given to each rank with its number in front of `args`; empty: not given."""
    folder: Path | None = None
    """The ranks' working directory; None: that of this process."""
    calls_init: bool = False
    """Whether the source calls `samebits.init`; the launcher looks."""


@dataclass(frozen=True)
class Placement:
    """Where the ranks of this node compute."""

    ranks: int
    """On this node."""
    threads: int
    """Per rank."""
    device: Device
    cores: int = 0
    """Of a node, where nobody named the threads; 0 where somebody did."""
    threads_given: bool = False
    """Whether the threads were given on the command line; otherwise the script may choose others."""
    device_given: bool = False
    """Whether the device was named on the command line; otherwise the script may choose another one."""
    devices: tuple[str, ...] = ()
    """The names of the GPUs in the order of their indices, as far as they are known; for the first line."""
    shared_gpus: int = 0
    """How many GPUs the ranks share; 0 where each has its own, or none."""
    why: str = ""
    """Where the numbers of ranks and threads come from, for the first line."""
    crowded: str = ""
    """The warning where far more threads than cores would compute at once; else empty."""
    spawns: bool = False
    """Start each rank as a new interpreter instead of a fork of the nursery."""


@dataclass(frozen=True)
class Computation:
    """What the command line fixes about the training; the script decides the rest."""

    lanes: int | None = None
    form: Form = field(default_factory=Form)
    """Strategy, mesh and schedule."""
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    """Precision and numerics."""
    backend: str = ""
    """The backend of torch.distributed; empty for the script's."""
    check_every: str = ""
    """After how many steps ranks compare what all of them hold; empty: the script decides."""
    course: Course = field(default_factory=Course)
    """With which state the run begins, and which steps it passes over."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What `verify` or `bench` wants recorded by the ranks; empty for a normal run."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What the record of the run is to say of its command; empty where none is wanted."""
    proved: Proved | None = None
    """What was proved of the script before this run."""
    to_prove: str = ""
    """What to write behind `samebits verify`, so that a later run says it; empty where no proof is remembered."""


@dataclass(frozen=True)
class Output:
    """What is displayed of the run."""

    run_folder: Path
    """Must not exist yet, or must be an empty folder; its name is that of the run."""
    verbosity: Verbosity = Verbosity.NORMAL
    started_ns: int | None = None
    """time.monotonic_ns() when the command began; None: when `launch` was called."""
    trackers: tuple[str, ...] = ()
    """Who gets the values of `run.log`: "tensorboard", "wandb"."""
    trace_steps: int = 0
    """How many steps the ranks record for `trace.json`."""
    full_traceback: bool = False
    """Whether the failure block has the frames of libraries too."""

    @classmethod
    def of(cls, run_folder: Path, *, quiet: bool) -> Output:
        return cls(run_folder, Verbosity.QUIET if quiet else Verbosity.NORMAL)

    @property
    def is_quiet(self) -> bool:
        return self.verbosity is Verbosity.QUIET


@dataclass(frozen=True)
class NodeOptions:
    """What this node was given for a run over several nodes."""

    place: NodePlace = field(default_factory=NodePlace)
    key: KeySettings = field(default_factory=KeySettings)
    words: tuple[str, ...] = ()
    """The command's own words, before the script, as the person wrote them."""


@dataclass(frozen=True)
class LaunchRequest:
    """What one node does of a run. The last three fields are the launcher's own: it changes them between attempts."""

    entry: EntryPoint
    placement: Placement
    output: Output
    computation: Computation = field(default_factory=Computation)
    recovery: Recovery = field(default_factory=Recovery)
    saving: Saving | None = None
    """Where and when the run saves its state by itself."""
    nodes: NodeOptions = field(default_factory=NodeOptions)
    snapshots: SnapshotPlace | None = None
    restart: Restart = field(default_factory=Restart)
    seat: Seat | None = None
    """This node among several, learned when the nodes meet; None on one node."""

    @property
    def title(self) -> str:
        """The script, module or function as the user knows it."""
        if self.entry.call is not None:
            return self.entry.call.name
        return self.entry.module if self.entry.module is not None else str(self.entry.script)

    @property
    def numbers(self) -> range:
        """The ranks that this launcher starts."""
        first = self.seat.first_rank if self.seat is not None else 0
        return range(first, first + self.placement.ranks)

    @property
    def world_size(self) -> int:
        """The ranks of the run, on all nodes."""
        return self.seat.world_size if self.seat is not None else self.placement.ranks

    def args_of(self, local_rank: int) -> tuple[str, ...]:
        """The arguments of one rank's script."""
        option = self.entry.local_rank_option
        return (*((f"{option}={local_rank}",) if option else ()), *self.entry.args)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    exit_code: int
    """0; the script's own; 1 for an exception; 2 for misuse; 128 + n for signal n."""
    run_folder: Path
    failure: Failure | None
    """The failure of the rank at fault; None when there was none or a signal killed it."""
    block: str
    """The failure block as text; empty when the run ended well."""
    joined: bool
    """Whether the ranks ever met each other; True for one rank."""
    duration_s: float
    rank: int | None = None
    """The rank at fault; None when there was none."""
    interrupted_by: int = 0
    """The user signal that stopped the run, or 0."""
