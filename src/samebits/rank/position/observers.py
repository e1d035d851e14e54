"""Who looks at a run: what `verify`, `replay` and `bench` record, and whoever comes later.

The loop announces, the others listen; `rank.recording.wanted` makes them, so a new one is named there. An observer answers nothing,
and may stand in any order among the others; that everything wanted is recorded it writes where the loop looks
(`LoopState.is_over`). What nobody listens to costs nothing. On which ranks there are observers follows from `Config.purpose`, the
same on all, so those of `verify` may exchange where it says "collective".

Runs in: the main thread of each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from samebits.rank.data.loader import LanePart, PreparedLoader
from samebits.rank.data.order import EpochPlan
from samebits.rank.strategy.contract import PassResult


class Observer:
    """Looks. Override what it wants to hear."""

    def attach(self, run: Any) -> None:
        """The run is there, as a `RunState`; nothing has happened in it."""

    def begin_epoch(self, loader: PreparedLoader, plan: EpochPlan | None) -> None:
        """An epoch is planned; a stream has no plan. Collective."""

    def begin_loop(self) -> None:
        """The script comes to a loop over steps, or to its end. Collective."""

    def before_step(self) -> None:
        """A step is next; `step_timer.step` is the one before. Collective."""

    def begin_step(self, step: int, num_samples: int, is_first: bool) -> None:
        """A step begins; whether it is the first of its epoch, or of this start in it."""

    def fetched(self, part: LanePart, batch: Any) -> None:
        """A lane's batch is there."""

    def begin_pass(self) -> None:
        """A pass over a step's lanes begins, or a look at what they compute."""

    def end_pass(self, step: int, number: int, result: PassResult) -> None:
        """The gradients of a pass of a step, counted from 1, are complete. Collective."""

    def logged(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """The script logged or averaged something, the same on every rank."""

    def end_step(self) -> None:
        """The body of a step is finished. Collective."""

    def left_loop(self) -> None:
        """The script left its loop in the middle of a step."""

    def saved_state(self) -> None:
        """A state that the run saves by itself is on the disk. Collective."""

    def end_run(self) -> None:
        """The script is over, well. Collective."""

    def has_bits(self, digest: str) -> None:
        """The run is over, and so are the bits of its model, as SHA-256; on rank 0."""


class Observers:
    """Those of a run: for each event, what is to be called."""

    def __init__(self, *observers: Observer) -> None:
        self.begin_epoch = _who(observers, Observer.begin_epoch)
        self.begin_loop = _who(observers, Observer.begin_loop)
        self.before_step = _who(observers, Observer.before_step)
        self.begin_step = _who(observers, Observer.begin_step)
        self.fetched = _who(observers, Observer.fetched)
        self.begin_pass = _who(observers, Observer.begin_pass)
        self.end_pass = _who(observers, Observer.end_pass)
        self.logged = _who(observers, Observer.logged)
        self.end_step = _who(observers, Observer.end_step)
        self.left_loop = _who(observers, Observer.left_loop)
        self.saved_state = _who(observers, Observer.saved_state)
        self.end_run = _who(observers, Observer.end_run)
        self.has_bits = _who(observers, Observer.has_bits)


def _who(observers: tuple[Observer, ...], event: Callable[..., None]) -> tuple[Callable[..., None], ...]:
    name = event.__name__
    return tuple(getattr(one, name) for one in observers if getattr(type(one), name) is not event)
