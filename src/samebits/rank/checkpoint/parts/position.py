"""Where the run is: its counters, and the place of the data set in the epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.records import plain
from samebits.protocol.skipped_steps import SkippedSteps, of_resumed
from samebits.protocol.state_files.whole_state import wrong_counters
from samebits.rank.checkpoint.parts.fresh import changed
from samebits.rank.checkpoint.parts.part import ORDER, RUN, STREAM, UNCHANGED, CommandMistake, Into, Part, Saved
from samebits.rank.checks.loss_gauge import settle_losses
from samebits.rank.data.planned_steps import PlannedSteps
from samebits.rank.data.stream import PreparedStream, SavedStream
from samebits.rank.position.epoch_count import InsideEpoch
from samebits.rank.position.exact_json import encode
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.preparations import VALUES, OtherOption, may_be_fresh
from samebits.rank.position.run_state import RunState


class Counters(Part):
    """Of steps, epochs, samples and tallies; what a data set that is iterated keeps itself; the order that a sampler has drawn."""

    def save(self, into: Into) -> None:
        record = into.counters
        if (stream := record.pop("stream", None)) is not None:
            into.add(STREAM, stream, of_main=True)
        steps = self._run.loop_state.epoch.reading() if self._run.loop_state.epoch.reading is not None else None
        if isinstance(steps, PlannedSteps) and into.is_inside and steps.own_order is not None:
            into.add(ORDER, steps.own_order, of_main=True)
        if into.is_inside and into.at is None and steps is not None:
            record["account"] = {"loader": record["inside"]["loader"], **steps.account()}
        into.add(RUN, record, of_main=self._run.config.mesh.asynchronous)

    def check(self, saved: Saved) -> None:
        self._saved, prepared = saved.counters, self._run.loop_state.prepared
        self._stream, self._order = _saved_stream(saved.own(STREAM)), _saved_order(saved.own(ORDER))
        if problem := wrong_counters(self._saved):
            raise UsageError(f"{problem}.", UNCHANGED)
        theirs, mine = len(self._saved["loaders"]), len(prepared.loaders)
        if theirs < mine or (theirs > mine and not saved.waits):
            raise UsageError(
                f"it was saved with {theirs} prepared loaders, and the run has {mine}.", "Prepare the same loaders."
            )
        self._run.loop_state.epochs.check(self._saved["epochs"])
        self._is_of_parent = self._read_parent()
        self._skipped = self._skipped_steps()
        # [Note: why options are compared before anything is loaded]
        # The comparison raises for what is no list of options, and in a branch for one that the script has changed.
        self._refuse_changed(prepared.preparations.options.overridden(self._saved.get("options", {})))

    def _skipped_steps(self) -> SkippedSteps:
        """The steps that were passed over, and those that will be."""
        settings, saved = self._run.config.environment.settings, self._saved
        given = settings.course.skipped if settings is not None else SkippedSteps()
        before = SkippedSteps.read(saved.get("skipped", []))
        try:
            return of_resumed(given, before, saved["step"], is_branch=self._is_of_parent)
        except UsageError as error:
            raise CommandMistake(error.problem, error.fix) from None

    def _read_parent(self) -> bool:
        """Whether the state is the one from which the run was branched, and not one of its own."""
        settings = self._run.config.environment.settings
        parent = settings.course.parent if settings is not None else None
        if parent is None or self._saved.get("parent") == plain(parent):
            return False
        if self._saved["step"] != parent.step:
            raise UsageError(
                f"it was saved after step {self._saved['step']} of another run, and this one is a branch of {parent.text}.",
                "Choose another --name.",
            )
        return True

    @property
    def fresh(self) -> tuple[str, ...]:
        """Options and values for which the script's own count: where the state is the parent's of a branch."""
        settings = self._run.config.environment.settings
        return settings.course.fresh if settings is not None and self._is_of_parent else ()

    def _refuse_changed(self, others: Sequence[OtherOption]) -> None:
        """Raise `CommandMistake` where a branch would go on with an option that the script no longer has.

        From a state of its own only a command is refused, and for options alone: first values of `run.state` may differ in
        each start, and ranks that start again go on as they were.
        """
        settings = self._run.config.environment.settings
        if settings is None or settings.course.parent is None:
            return
        left = [one for one in others if not (may_be_fresh(one.label) and one.key in self.fresh)]
        if not self._is_of_parent:
            left = [one for one in left if one.label != VALUES and not settings.restart.number]
        if left:
            raise changed(left, may_take=self._is_of_parent)

    def keep_options(self) -> None:
        """Say which options of the script count no more, and keep those of the state."""
        options, saved = self._run.loop_state.prepared.preparations.options, self._saved.get("options", {})
        others = [one.text for one in options.overridden(saved) if one.key not in self.fresh]
        self._refuse_changed(options.overridden(saved))
        options.keep(saved, self.fresh)
        if others and self._run.components.transport.rank == 0:
            say(
                f"the script makes {'; '.join(others[:3])}{'; …' * (len(others) > 3)}, and what the state has counts: to change "
                "it, set it in the loop (`optimizer.param_groups[0]['lr'] = 0.01`, `run.state.scale = 0.5`), or choose another name to begin anew."
            )

    def load(self) -> None:
        saved, loop_state, step_timer = self._saved, self._run.loop_state, self._run.components.step_timer
        resumption, loop_state.epoch.skipped = loop_state.resumption, self._skipped
        loop_state.epochs.restore(saved["epochs"])
        step_timer.step, step_timer.epoch = saved["step"], saved["epoch"]
        step_timer.num_losses, step_timer.loss = saved["num_losses"], saved["loss"]
        loop_state.epoch.epochs_seen[:] = saved["epochs_seen"]
        loop_state.epoch.accounts[:], resumption.goes_on_stream = saved.get("accounts", []), self._stream
        resumption.goes_on = InsideEpoch(**saved["inside"]) if saved.get("inside") else None
        resumption.goes_on_order = self._order
        if saved.get("tallies") is not None:
            loop_state.tallies.restore(saved["tallies"])
        resumption.resumed = epochs, _ = len(loop_state.epoch.epochs_seen), step_timer.step
        if self._run.components.transport.rank == 0:
            finished = f"after {epochs} epoch{'s' * (epochs != 1)}, step {step_timer.step}"
            inside = f"in epoch {step_timer.epoch}, after step {step_timer.step}"
            say(f"the run resumes {inside if resumption.goes_on is not None else finished}")
        # some may be prepared later
        for loader, before in zip(loop_state.prepared.loaders, saved["loaders"], strict=False):
            loader.epochs_begun = before["epochs_begun"]


def _saved_order(record: Any) -> Mapping[str, Any] | None:
    """The order of the epoch that a sampler of the script had drawn."""
    if record is None:
        return None
    samples, sizes = record["samples"], record["sizes"]
    is_ours = all(isinstance(one, Tensor) and one.dtype is torch.int64 and one.ndim == 1 for one in (samples, sizes))
    if (
        not is_ours
        or bool((sizes < 0).any())
        or int(sizes.sum()) != len(samples)
        or type(record["batch_size"]) is not int
    ):
        raise UsageError("its order of the epoch is not described the way samebits does it.", UNCHANGED)
    return dict(record)


def _saved_stream(record: Any) -> SavedStream | None:
    """How a data set resumes by itself."""
    saved = SavedStream(**record) if record is not None else None
    if saved is not None and not all(type(one) is int and one >= 0 for one in (saved.position, saved.size)):
        raise UsageError("its place of the data set is not described the way samebits does it.", UNCHANGED)
    return saved


def counters(run: RunState, going: InsideEpoch | None, *, with_tallies: bool = True) -> dict[str, Any]:
    """Where the run is; the same on every rank. `going`: where in an epoch whose steps have begun."""
    settle_losses(run)
    step_timer, inside = run.components.step_timer, going or run.loop_state.resumption.goes_on
    return {
        "step": step_timer.step,
        "epoch": step_timer.epoch,
        "num_losses": step_timer.num_losses,
        "loss": step_timer.loss,
        "epochs_seen": list(run.loop_state.epoch.epochs_seen),
        "accounts": list(run.loop_state.epoch.accounts),
        "epochs": run.loop_state.epochs.position(inside=inside is not None),
        "inside": None if inside is None else {**vars(inside)},
        "stream": _stream(run.loop_state) if inside is not None else None,
        **(
            {"late": late}
            if (late := run.loop_state.prepared.preparations.late(runs_again=inside is not None)) is not None
            else {}
        ),
        **({"tallies": run.loop_state.tallies.encode(inside=inside is not None)} if with_tallies else {}),
        **of_command_line(run),
        "options": run.loop_state.prepared.preparations.options.by_label,
        "loaders": [
            {
                "epochs_begun": loader.epochs_begun - (going is not None and going.loader == number),
                "samples": None if isinstance(loader, PreparedStream) else len(loader.dataset),  # type: ignore[arg-type]
                "batch_size": loader.batch_size,
            }
            for number, loader in enumerate(run.loop_state.prepared.loaders)
        ],
    }


def of_command_line(run: RunState) -> dict[str, Any]:
    """Which run this is a branch of, and the steps that it passes over, where there is something to say."""
    settings, skipped = run.config.environment.settings, run.loop_state.epoch.skipped
    parent = settings.course.parent if settings is not None else None
    return {
        **({"parent": plain(parent)} if parent is not None else {}),
        **({"skipped": [[*one] for one in skipped.ranges]} if skipped else {}),
    }


def _stream(loop_state: LoopState) -> dict[str, Any] | None:
    """What the data set itself keeps of its place in the epoch; None where it has no `state_dict`, or an odd one."""
    steps = loop_state.epoch.reading() if loop_state.epoch.reading is not None else None
    saved = loop_state.resumption.goes_on_stream or (steps.saved if steps is not None else None)
    record = None if saved is None else {name: getattr(saved, name) for name in ("state", "position", "size", "after")}
    try:
        encode(record, STREAM, lambda path, _: path)
    except UsageError:
        return None  # it is read from its beginning again
    return record
