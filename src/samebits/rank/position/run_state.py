"""What a run is made of, in three values: what was decided, the parts that do the work, and where the run is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.environment import RankEnvironment
from samebits.protocol.events import Kind, add_event
from samebits.protocol.layout.mesh import Mesh
from samebits.protocol.layout.placement import Placement
from samebits.protocol.run_folder import RunFolder
from samebits.rank.init.numerics import KeptNumerics
from samebits.rank.init.random_streams import Streams
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.metrics import MetricsFile
from samebits.rank.position.observers import Observers
from samebits.rank.position.participants import Checks, States
from samebits.rank.position.step_timer import StepTimer
from samebits.rank.strategy.contract import Strategy
from samebits.rank.strategy.precision import LossScale
from samebits.rank.transport.contract import Transport

T = TypeVar("T")


@dataclass(frozen=True)
class Purpose:
    """What the run is for; by default, for its user. The same on every rank."""

    records: bool = False
    """`verify` records it."""
    measures: bool = False
    """`bench` measures it."""
    replays: bool = False
    """`replay` makes steps of another run again."""
    is_plain: bool = False
    """With `records`: it shows what a plain loop computes."""
    stops_after_saving: bool = False
    """With `records`: it ends, as if it were killed, behind the first state that it saves."""

    @property
    def is_users(self) -> bool:
        """Whether somebody reads its notices and keeps its states."""
        return not self.records and not self.measures and not self.replays


@dataclass(frozen=True)
class Config:
    """What `samebits.init` decided. It does not change."""

    environment: RankEnvironment
    folder: RunFolder | None
    device: torch.device
    threads: int
    arithmetic: Arithmetic
    """Precision and numerics, as decided."""
    lanes_named: bool
    """Whether script, command line or the state that is resumed named the number of lanes; otherwise it is the default."""
    mesh: Mesh
    placement: Placement
    """Lanes on replicas."""
    purpose: Purpose = Purpose()

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
    checks: Checks
    states: States
    observers: Observers
    scaler: LossScale | None
    """Under 16-mixed; it has a state that a resumed run needs."""


@dataclass(frozen=True)
class RunState:
    """One run on one rank."""

    config: Config
    components: Components
    loop_state: LoopState

    def begin(self) -> None:
        """Before the first epoch or step: load what the run resumes from. Collective: call it on every rank."""
        self.loop_state.note_modes()
        self.components.states.begin()

    def grow(self) -> None:
        """Something was prepared in the middle, or a prepared optimizer got another group."""
        self.components.states.forget_step()
        if self.loop_state.resumption.late is not None:
            self.loop_state.resumption.late.look()

    def is_here(self, tensor: Tensor) -> bool:
        """Whether this rank holds a parameter or buffer of a prepared model; other stages may."""
        mesh, holder = self.config.mesh, self.components.strategy.holder_of(tensor)
        return holder is None or mesh.stage(holder) == mesh.stage(self.components.transport.rank)

    def in_loop_order(self, items: Sequence[T]) -> Sequence[T]:
        """`items` of this rank's lanes, in the order in which loops go through them, or back from it into that of the lanes.

        `verify` may go through them backwards.
        """
        position = self.loop_state.position
        if not position.reverses:
            return items
        position.has_reversed = True
        return items[::-1]

    @property
    def is_users_main(self) -> bool:
        """Whether this is rank 0 of a run whose notices somebody reads."""
        return self.components.transport.rank == 0 and self.config.purpose.is_users

    def note(self, kind: Kind, step: int | None = None, **fields: Any) -> None:
        """Add an event to the run folder, on rank 0 where there is one; `step`: None for the newest."""
        if self.components.transport.rank == 0 and self.config.folder is not None:
            newest = self.components.step_timer.step
            add_event(self.config.folder.events, kind, newest if step is None else step, **fields)
