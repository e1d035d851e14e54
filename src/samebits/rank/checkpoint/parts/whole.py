"""All parts of a state together: collected for `run.save_state`, checked and loaded for `run.load_state`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.protocol.layout.stream_key import Domain
from samebits.protocol.state_files.manifest import Manifest
from samebits.rank.checkpoint.format.state import State
from samebits.rank.checkpoint.parts.changes import Small, bits_of
from samebits.rank.checkpoint.parts.fresh import FreshOptions
from samebits.rank.checkpoint.parts.gradients import Gradients
from samebits.rank.checkpoint.parts.models import PREPARE_IT, Models, Modes
from samebits.rank.checkpoint.parts.objects import Objects
from samebits.rank.checkpoint.parts.optimizers import Optimizers
from samebits.rank.checkpoint.parts.part import UNCHANGED, CommandMistake, Into, Saved, kind_of, unfit
from samebits.rank.checkpoint.parts.position import Counters, counters
from samebits.rank.checkpoint.parts.random_streams import Streams
from samebits.rank.checkpoint.parts.schedulers import Schedulers, schedulers_of
from samebits.rank.init.numerics import fingerprint
from samebits.rank.position.moment import Moment, Region
from samebits.rank.position.preparations import KINDS
from samebits.rank.position.run_state import RunState

PARTS = (Models, Gradients, Optimizers, Schedulers, Objects, Counters, Modes, Streams)
"""In the order in which they are in a state."""


def collect(
    run: RunState, extra: Mapping[str, Any], states: Mapping[str, Mapping[Any, Any]], at: Moment | None = None
) -> State:
    """Collect this rank's part of the state; `states` are the optimizers' by label.

    Raises:
        UsageError: for what cannot be written, with its name.
    """
    record = dict(at.counters) if at is not None else counters(run, run.loop_state.epoch.inside)
    into = Into(run, at, record, extra, states)
    for part in PARTS:
        part(run).save(into)
    return into.contents


def facts_of(run: RunState) -> dict[str, Any]:
    """What the bits depend on, and what a person wants to see in the manifest."""
    from_run = {
        "step": run.components.step_timer.step,
        "epochs": len(run.loop_state.epoch.epochs_seen),
        "ranks": run.components.transport.world_size,
    }
    bits = {"lanes": run.config.placement.num_lanes, "threads": run.config.threads, "seed": run.components.streams.seed}
    return {
        **from_run,
        **bits,
        "strategy": run.components.strategy.name,
        **({"without": names} if (names := run.loop_state.lacks) else {}),
        "fingerprint": fingerprint(run.config.device, run.config.threads, run.config.arithmetic.numerics),
    }


class LoadPlan:
    """What goes where; made without changing anything.

    Where things came in the middle of the run that was saved, models take what fits them at first, and all of it once this
    start has made the same things; the optimizers and schedulers that are new, or have grown, are loaded then.

    Raises:
        UsageError: when the state does not fit what the run prepared. A state that samebits did not write may raise
            anything else that a decoder raises; see `made`.
    """

    def __init__(self, run: RunState, place: Path, manifest: Manifest, objects: Mapping[str, Any]) -> None:
        self._run, self.place = run, place
        self.saved = saved = Saved(run, place, manifest, objects)
        self.new, self.loaders = saved.new, saved.counters["loaders"]
        self.lines = saved.counters.get("lines", [])
        """What `run.log` had written in the last step, where the rank that writes it may have been lost before."""
        self.recorded = saved.counters.get("recorded")
        """The same of a record."""
        self._counters, self._streams, self._objects = Counters(run), Streams(run), Objects(run)
        self._models, self._gradients, self._modes = Models(run), Gradients(run), Modes(run)
        self._optimizers, self._schedulers = Optimizers(run), Schedulers(run)
        saved.used |= {label for label in saved.documents if saved.waits and kind_of(label) in KINDS}
        self._counters.check(saved)
        self._streams.check(saved)
        self._check_prepared()
        self._objects.check(saved)
        if self._counters.fresh:
            fresh = FreshOptions(run, saved, self._counters.fresh)
            fresh.check(awaits=self._schedulers.awaits)
            self._objects.leave(self._counters.fresh)
            saved.afterwards.append(fresh.load)
        self.extra = self._objects.extra

    def _check_prepared(self) -> None:
        """Plan what goes into the things that are prepared by now."""
        for part in (self._models, self._gradients, self._optimizers, self._schedulers, self._modes):
            part.check(self.saved)

    def load_models(self) -> None:
        """Write the weights, which fit, and continue with the counters and random streams."""
        resumption, is_inside = self._run.loop_state.resumption, self.saved.is_inside
        self._counters.keep_options()
        for part in (self._models, self._gradients, self._modes, self._objects, self._counters, self._streams):
            part.load()
        resumption.load_again = self._again if is_inside else None
        resumption.late = self if self.saved.waits else None
        self._schedulers.load()
        self._loaded = bits_of(self._run.loop_state), Small.of(self._run.loop_state)

    def _again(self) -> None:
        """Where the steps continue: undo what the epoch's body has changed, for it had changed that before the state too."""
        loaded, small = self._loaded
        if bits_of(self._run.loop_state) != loaded or not small.is_like(Small.of(self._run.loop_state)):
            self.saved.load()
            self._models.load()
            self._gradients.load()
        self._modes.load()
        self._objects.load()

    # What came in the middle: `LateParts`

    def look(self) -> None:
        if not self.saved.awaited():
            # [Note: why a late part may not fit yet]
            # In `model.head = run.prepare(head)` the head is not in its place yet.
            with suppress(UsageError):
                self._complete()

    def require(self) -> None:
        if awaited := self.saved.awaited():
            raise UsageError(
                f"The state has {', '.join(awaited)}, which came after the loop had begun, and this start has not made them "
                "before its first step.",
                "Let the condition hold after a resume too, at the top of the epoch: `if epoch >= 3 and not unfrozen:` instead of "
                "`if epoch == 3:`.",
            )
        try:
            self._complete()
        except UsageError as error:
            raise self.saved.unfit(error) from None

    def rewind(self) -> None:
        loop_state = self._run.loop_state
        if loop_state.position.region is Region.STEP:
            self._run.components.streams.enter(Domain.STEP, self._run.components.step_timer.step, 0)
        elif loop_state.epoch.reading is None and self._is_older():
            self._streams.rewind()

    def _is_older(self) -> bool:
        """Whether the run had made all that this start has before the body that the state is in."""
        made, late = self._run.loop_state.prepared.preparations.made, self.saved.late
        return late is not None and all(made[kind] <= late.before[kind] for kind in KINDS)

    def _complete(self) -> None:
        """Load the models wholly, and the rest as far as it waited.

        Raises:
            UsageError: when something does not fit; nothing is loaded then.
        """
        loop_state, saved = self._run.loop_state, self.saved
        before, known = len(saved.steps), {*saved.planned}
        if name := loop_state.prepared.preparations.unprepared():
            raise UsageError(f"{name} came into its model without run.prepare.", PREPARE_IT)
        saved.waits = False
        try:
            self._check_prepared()
        except UsageError:
            saved.waits = True
            del saved.steps[before:]
            raise
        self._counters.keep_options()
        loop_state.schedulers.undo_writes(
            getattr(one, "optimizer", None) for _, one in schedulers_of(loop_state) if id(one) in saved.planned - known
        )
        saved.load(before)
        self._models.load()
        self._gradients.load()
        self._modes.load()
        for loader, record in zip(loop_state.prepared.loaders, self.loaders, strict=True):
            loader.epochs_begun = max(loader.epochs_begun, record["epochs_begun"])
        self._loaded = bits_of(loop_state), Small.of(loop_state)
        loop_state.prepared.preparations.forget_new()
        loop_state.resumption.late = None


def made(run: RunState, place: Path, manifest: Manifest, objects: Mapping[str, Any]) -> LoadPlan:
    """Make the plan.

    Raises:
        UsageError: when the state does not fit the run, or is not what samebits writes.
    """
    try:
        return LoadPlan(run, place, manifest, objects)
    except CommandMistake:
        raise
    except UsageError as error:
        raise unfit(place, error.problem, error.fix) from None
    except (
        OSError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise unfit(place, f"it is not what samebits writes ({error!r}).", UNCHANGED) from error
