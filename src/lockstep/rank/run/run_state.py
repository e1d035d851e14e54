"""What a run is made of, in three values: what was decided, the parts that do the work, and where the run is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.protocol.arithmetic import Arithmetic
from lockstep.protocol.environment import RankEnvironment
from lockstep.protocol.events import Kind, add_event
from lockstep.protocol.layout.mesh import Mesh
from lockstep.protocol.layout.placement import Placement
from lockstep.protocol.run_folder import RunFolder
from lockstep.rank.caller import where
from lockstep.rank.checks.unprepared_optimizers import UnpreparedOptimizers
from lockstep.rank.checks.unreduced_metrics import UnreducedMetrics
from lockstep.rank.checks.written_files import WrittenFiles
from lockstep.rank.init.numerics import KeptNumerics
from lockstep.rank.init.streams import Streams
from lockstep.rank.recording.meter import Meter
from lockstep.rank.recording.recorder import Recorder
from lockstep.rank.run.loop_state import LoopState
from lockstep.rank.run.position.metrics import MetricsFile
from lockstep.rank.run.position.step_timer import StepTimer
from lockstep.rank.strategy.contract import Strategy
from lockstep.rank.strategy.precision import LossScale
from lockstep.rank.transport.contract import Transport


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

    def adopt_seed(self, seed: int) -> None:
        """A script of Accelerate names it after init; before anything is prepared, nothing has used it."""
        object.__setattr__(self, "seed", seed)

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

    def skips_states(self) -> bool:
        """Whether this start of the ranks loads nothing, because states lack something and the run must be exact. Collective."""
        settings, folder = self.config.environment.settings, self.config.folder
        if settings is None or folder is None or settings.recover != "exact" or not settings.restart.number:
            return False
        return self.components.transport.any(folder.unsaved.exists(), "what states lack", where())

    def note(self, kind: Kind, step: int | None = None, **fields: Any) -> None:
        """Add an event to the run folder, on rank 0 where there is one; `step`: None for the newest."""
        if self.components.transport.rank == 0 and self.config.folder is not None:
            newest = self.components.step_timer.step
            add_event(self.config.folder.events, kind, newest if step is None else step, **fields)
