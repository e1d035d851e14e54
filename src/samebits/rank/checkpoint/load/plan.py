"""Where each part of a saved state goes, found out and checked before anything changes: `run.load_state` in two halves.

A checksum finds damage, but does not say who wrote a file. So every value is decoded here and compared with what the
run has; what does not fit in kind or shape is refused by its path while the models are as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.layout.stream_key import Domain
from samebits.protocol.state_files.manifest import GRADIENTS, Manifest
from samebits.protocol.state_files.whole_state import wrong_counters
from samebits.rank.checkpoint.load.late_schedulers import LateSchedulers
from samebits.rank.checkpoint.load.parts import (
    PREPARE_IT,
    UNCHANGED,
    PlannedParts,
    checked_gradients,
    checked_modes,
    kind_of,
    saved_order,
    saved_stream,
    unfit,
    wrong_inside,
    wrong_streams,
)
from samebits.rank.checkpoint.state.changes import Small, bits_of
from samebits.rank.checkpoint.state.collect import (
    BODY_STREAMS,
    MADE,
    MODES,
    ORDER,
    STREAM,
    TRACKED,
    VALUE,
    is_stateful,
    label_of,
    labelled,
    optimizers_of,
    schedulers_of,
)
from samebits.rank.checkpoint.state.optimizer_state import parameter_names
from samebits.rank.data.stream import SavedStream
from samebits.rank.position.epoch_count import InsideEpoch
from samebits.rank.position.kept_values import restore
from samebits.rank.position.made_schedulers import MadeScheduler
from samebits.rank.position.moment import Region
from samebits.rank.position.preparations import KINDS, MODEL
from samebits.rank.position.run_state import RunState
from samebits.rank.position.step_timer import StepTimer


class LoadPlan(PlannedParts):
    """What goes where; made without changing anything.

    Where things came in the middle of the run that was saved, models take what fits them at first, and all of it once this
    start has made the same things; the optimizers and schedulers that are new, or have grown, are loaded then.

    Raises:
        UsageError: when the state does not fit what the run prepared. A state that samebits did not write may raise
            anything else that a decoder raises; see `made`.
    """

    def __init__(self, run: RunState, place: Path, manifest: Manifest, objects: Mapping[str, Any]) -> None:
        super().__init__(run, place, manifest)
        self.new: list[str] = []
        """Names of tracked objects that the state does not have."""
        self.loaders = self.counters["loaders"]
        self.lines = self.counters.get("lines", [])
        """What `run.log` had written in the last step, where the rank that writes it may have been lost before."""
        self._streams = self._decode(self._documents["random numbers"])
        self._body_streams = self._decode(self._documents.get(BODY_STREAMS))
        self._stream = saved_stream(self._decode(self._documents.get(STREAM)))
        self.order = saved_order(self._decode(self._documents.get(ORDER)))
        self._used |= {label for label in self._documents if self._waits and kind_of(label) in KINDS}
        _check_own(self, run, (self._streams, self._body_streams), GRADIENTS in manifest.files, waits=self._waits)
        self._options: Mapping[str, Any] = self.counters.get("options", {})
        # [Note: why options are compared before anything is loaded]
        # The comparison raises for what is no list of options.
        run.loop_state.prepared.preparations.options.overridden(self._options)
        self._plan_prepared()
        for label, thing in run.loop_state.prepared.stateful.items():
            self._add(
                label, thing, self._like(label, thing.state_dict(), self._decode(self._document(label)), all_keys=True)
            )
        for name, thing in run.loop_state.prepared.tracked.items():
            self._add_tracked(name, thing)
        for name, thing in objects.items():
            self._add_object(name, thing)
        self._made = LateSchedulers(run, self._decode(self._documents.get(MADE)))
        self._add_made(self._made.present())
        self._values = self._run_values()
        self.extra = self._extra()

    def _plan_prepared(self) -> None:
        """Plan what goes into the things that are prepared by now."""
        loop_state = self._run.loop_state
        models = loop_state.prepared.preparations.models(None if self._late is None else self._late.first)
        num_models = sum(kind_of(label) == MODEL for label in self._documents)
        names = parameter_names(models, several=num_models > 1)
        self._models.clear()
        for label, model in labelled(models, MODEL):
            self._add_model(label, model)
        file = self._files[GRADIENTS] if self.counters.get("inside") and not self._waits else None
        self._gradients = checked_gradients(self._run, file, names)
        for label, optimizer in optimizers_of(loop_state):
            self._plan_if_it_fits(label, optimizer, lambda label, one: self._add_optimizer(label, one, names))
        for label, scheduler in schedulers_of(loop_state):
            if not self._waits or id(getattr(scheduler, "optimizer", scheduler)) in {*self._planned, id(scheduler)}:
                self._plan_if_it_fits(label, scheduler, self._add_scheduler)
        self._modes = checked_modes(
            self._decode(self._documents.get(MODES, {})), loop_state.prepared.models, may_lack=self._waits
        )

    def load_all_but_models(self) -> None:
        """Load optimizers, schedulers, objects and counters.

        Raises:
            UsageError: when one of them refuses.
        """
        self._load(self._rest)

    def look(self) -> None:
        if not self._awaited():
            # [Note: why a late part may not fit yet]
            # In `model.head = run.prepare(head)` the head is not in its place yet.
            with suppress(UsageError):
                self._complete()

    def require(self) -> None:
        if awaited := self._awaited():
            raise _late_is_missing(awaited)
        try:
            self._complete()
        except UsageError as error:
            raise unfit(self.place, error.problem, error.fix) from None

    def rewind(self) -> None:
        loop_state, streams = self._run.loop_state, self._run.components.streams
        if loop_state.position.region is Region.STEP:
            streams.enter(Domain.STEP, self._run.components.step_timer.step, 0)
        elif loop_state.epoch.reading is None and self._is_older():
            streams.restore(self._body_streams or self._streams, self._run.components.step_timer.step)

    def _is_older(self) -> bool:
        """Whether the run had made all that this start has before the body that the state is in."""
        made = self._run.loop_state.prepared.preparations.made
        return self._late is not None and all(made[kind] <= self._late.before[kind] for kind in KINDS)

    def _complete(self) -> None:
        """Load the models wholly, and the rest as far as it waited.

        Raises:
            UsageError: when something does not fit; nothing is loaded then.
        """
        loop_state, before, known = self._run.loop_state, len(self._rest), {*self._planned}
        if name := loop_state.prepared.preparations.unprepared():
            raise UsageError(f"{name} came into its model without run.prepare.", PREPARE_IT)
        self._waits = False
        try:
            self._plan_prepared()
        except UsageError:
            self._waits = True
            del self._rest[before:]
            raise
        self._keep_options()
        loop_state.schedulers.undo_writes(
            getattr(one, "optimizer", None) for _, one in schedulers_of(loop_state) if id(one) in self._planned - known
        )
        self._load(self._rest[before:])
        self._load_models_and_gradients()
        loop_state.switch(self._modes)
        for loader, saved in zip(loop_state.prepared.loaders, self.loaders, strict=True):
            loader.epochs_begun = max(loader.epochs_begun, saved["epochs_begun"])
        self._loaded = bits_of(loop_state), Small.of(loop_state)
        loop_state.prepared.preparations.forget_new()
        loop_state.resumption.late = None

    def _keep_options(self) -> None:
        """Say which options of the script count no more, and keep those of the state."""
        options = self._run.loop_state.prepared.preparations.options
        others = options.overridden(self._options)
        options.keep(self._options)
        if others and self._run.components.transport.rank == 0:
            say(
                f"the script makes {'; '.join(others[:3])}{'; …' * (len(others) > 3)}, and what the state has counts: to change "
                "it, set it in the loop (`optimizer.param_groups[0]['lr'] = 0.01`, `run.state.scale = 0.5`), or choose another name to begin anew."
            )

    def load_models(self) -> None:
        """Write the weights, which fit, and continue with the counters and random streams."""
        self._keep_options()
        self._load_models_and_gradients()
        self._run.loop_state.switch(self._modes)
        restore(self._run.loop_state.values, self._values)
        _restore_counters(self._run, self, self._stream)
        self._run.components.streams.restore(self._body_streams or self._streams, self._run.components.step_timer.step)
        self._run.loop_state.resumption.later_streams = self._streams if self.counters.get("inside") else None
        self._run.loop_state.resumption.load_again = self._again if self.counters.get("inside") else None
        self._run.loop_state.resumption.late = self if self._waits else None
        self._made.begin(self._load_made, is_inside=self.counters.get("inside") is not None)
        self._loaded = bits_of(self._run.loop_state), Small.of(self._run.loop_state)

    def _load_models_and_gradients(self) -> None:
        for step in self._models:
            step.load()
        for parameter, gradient in self._gradients:
            parameter.grad = None if gradient is None else gradient.to(parameter.device)

    def _again(self) -> None:
        """Where the steps continue: undo what the epoch's body has changed, for it had changed that before the state too."""
        loaded, small = self._loaded
        if bits_of(self._run.loop_state) != loaded or not small.is_like(Small.of(self._run.loop_state)):
            self.load_all_but_models()
            self._load_models_and_gradients()
        self._run.loop_state.switch(self._modes)
        restore(self._run.loop_state.values, self._values)

    def _add_tracked(self, name: str, thing: Any) -> None:
        """What is new begins as the script made it; what only the state has is refused in `_extra`, or it would be lost."""
        label = f"{TRACKED}{name}"
        if label not in self._documents:
            self.new.append(name)
        elif isinstance(thing, LRScheduler):
            self._add_scheduler(label, thing)
        else:
            self._add(label, thing, self._decode(self._document(label)["state"]), thing.state_dict())

    def _add_object(self, name: str, thing: Any) -> None:
        if not is_stateful(thing):
            raise UsageError(
                f"{name}= must be an object with load_state_dict.",
                "Leave out what was saved as a value: it comes back in the result.",
            )
        document = self._document(label_of(name))
        if not document["object"]:
            raise UsageError(
                f"{name}= was saved as a value, not as an object.", "Leave it out: it comes back in the result."
            )
        self._add(name, thing, self._decode(document["value"]))

    def _add_made(self, pairs: Sequence[tuple[MadeScheduler, Mapping[str, Any]]]) -> None:
        for one, saved in pairs:
            scheduler, label = one.here, f"{MADE}, of which {type(one.here).__name__}"
            self._add_scheduler_state(label, scheduler, saved["class"], saved["state"])

    def _load_made(self, pairs: Sequence[tuple[MadeScheduler, Mapping[str, Any]]]) -> None:
        """Load schedulers that were made since this state was."""
        before = len(self._rest)
        try:
            self._add_made(pairs)
        except UsageError as error:
            raise unfit(self.place, error.problem, error.fix) from None
        self._load(self._rest[before:])

    def _run_values(self) -> dict[str, Any]:
        """`run.state`."""
        labels = [label for label in self._documents if label.startswith(VALUE)]
        return {label.removeprefix(VALUE): self._decode(self._document(label)) for label in labels}

    def _extra(self) -> dict[str, Any]:
        """What the script saved besides objects; raise for what nothing takes."""
        left = {label: document for label, document in self._documents.items() if label not in self._used}
        for label, document in left.items():
            if label.startswith(TRACKED):
                name = label.removeprefix(TRACKED)
                raise UsageError(
                    f"it holds {name!r}, which this script does not track.",
                    f"Add run.track({name}=...) before it is loaded.",
                )
            if not label.endswith("="):
                raise UsageError(f"it holds {label!r}, which this run did not prepare.", "Prepare the same things.")
            if document["object"]:
                raise UsageError("it holds the state of an object.", f"Pass {label}... to run.load_state.")
        return {label.removesuffix("="): self._decode(document["value"]) for label, document in left.items()}


def _restore_counters(run: RunState, plan: LoadPlan, stream: SavedStream | None) -> None:
    saved, step_timer = plan.counters, run.components.step_timer
    run.loop_state.epochs.restore(saved["epochs"])
    step_timer.step, step_timer.epoch = saved["step"], saved["epoch"]
    step_timer.num_losses, step_timer.loss = saved["num_losses"], saved["loss"]
    run.loop_state.epoch.epochs_seen[:] = saved["epochs_seen"]
    run.loop_state.epoch.accounts[:], run.loop_state.resumption.goes_on_stream = saved.get("accounts", []), stream
    run.loop_state.resumption.goes_on = InsideEpoch(**saved["inside"]) if saved.get("inside") else None
    run.loop_state.resumption.goes_on_order = plan.order
    if saved.get("tallies") is not None:
        run.loop_state.tallies.restore(saved["tallies"])
    run.loop_state.resumption.resumed = epochs, _ = len(run.loop_state.epoch.epochs_seen), step_timer.step
    if run.components.transport.rank == 0:
        _say_place(epochs, step_timer, inside=run.loop_state.resumption.goes_on is not None)
    for loader, before in zip(
        run.loop_state.prepared.loaders, plan.loaders, strict=False
    ):  # some may be prepared later
        loader.epochs_begun = before["epochs_begun"]


def _check_own(plan: LoadPlan, run: RunState, streams: tuple[Any, Any], has_gradients: bool, *, waits: bool) -> None:
    own, of_body = streams
    inside = wrong_inside(plan.counters.get("inside"), of_body, has_gradients)
    if problem := wrong_counters(plan.counters) or wrong_streams(own) or inside:
        raise UsageError(f"{problem}.", UNCHANGED)
    if len(plan.loaders) < len(run.loop_state.prepared.loaders) or (
        len(plan.loaders) > len(run.loop_state.prepared.loaders) and not waits
    ):
        raise UsageError(
            f"it was saved with {len(plan.loaders)} prepared loaders, and the run has {len(run.loop_state.prepared.loaders)}.",
            "Prepare the same loaders.",
        )
    run.loop_state.epochs.check(plan.counters["epochs"])


def _late_is_missing(awaited: Sequence[str]) -> UsageError:
    return UsageError(
        f"The state has {', '.join(awaited)}, which came after the loop had begun, and this start has not made them before "
        "its first step.",
        "Let the condition hold after a resume too, at the top of the epoch: `if epoch >= 3 and not unfrozen:` instead of "
        "`if epoch == 3:`.",
    )


def _say_place(epochs: int, step_timer: StepTimer, *, inside: bool) -> None:
    finished = f"after {epochs} epoch{'s' * (epochs != 1)}, step {step_timer.step}"
    say(f"the run resumes {f'in epoch {step_timer.epoch}, after step {step_timer.step}' if inside else finished}")


def made(run: RunState, place: Path, manifest: Manifest, objects: Mapping[str, Any]) -> LoadPlan:
    """Make the plan.

    Raises:
        UsageError: when the state does not fit the run, or is not what samebits writes.
    """
    try:
        return LoadPlan(run, place, manifest, objects)
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
