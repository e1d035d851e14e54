"""The loop over an epoch's steps, and its check that each sample came once."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass

from torch.utils.data import DataLoader

from samebits.errors import SamebitsError, UsageError
from samebits.protocol.journal.ring import BETWEEN_STEPS, IN_STEP, Phase
from samebits.protocol.layout.stream_key import Domain
from samebits.rank.checks import labels
from samebits.rank.checks.loss_gauge import settle_losses
from samebits.rank.data.loader import PreparedLoader
from samebits.rank.data.planned_steps import PlannedSteps
from samebits.rank.data.stream import StreamedSteps
from samebits.rank.init.device import give_back_freed_memory
from samebits.rank.position.epoch_count import InsideEpoch
from samebits.rank.position.moment import Region
from samebits.rank.position.run_state import RunState
from samebits.rank.run.loop.epoch import begin_epoch, check_samples, has_next
from samebits.rank.run.loop.step import Step
from samebits.rank.strategy.contract import RIGHT_FORM

SETTLED_STEP = 2
"""After this step a run holds all that it will hold: its optimizer has its state."""


class Steps(Iterator[Step]):
    """The steps of a loader's next epoch, what `run.steps` returns; `len` tells a progress bar how many there are."""

    def __init__(self, run: RunState, loader: PreparedLoader) -> None:
        self._steps, self._loader = _train(run, loader), loader
        run.loop_state.epoch.steps = weakref.ref(self._steps)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Step]:  # noqa: PYI034
        # Only the loop holds the generator, so leaving the loop ends it.
        return self._steps

    def __next__(self) -> Step:
        return next(self._steps)


class StepsOfEpochs(Steps):
    """The steps of several epochs in one loop, what `run.steps(loader, epochs=)` returns."""

    def __init__(self, run: RunState, loader: PreparedLoader, num_epochs: int, epochs: Iterator[int]) -> None:
        self._loader, self._num_epochs = loader, num_epochs
        self._steps = _train_epochs(run, loader, epochs)

    def __len__(self) -> int:
        return self._num_epochs * len(self._loader)


def _train_epochs(run: RunState, loader: PreparedLoader, epochs: Iterator[int]) -> Generator[Step]:
    for _ in epochs:
        yield from Steps(run, loader)


def checked_loader(run: RunState, loader: object) -> PreparedLoader:
    """The loader, if steps over it may begin now; raise `UsageError` if not."""
    if not isinstance(loader, PreparedLoader):
        fix = "Write `loader = run.prepare(loader)`, or name it with the others: `model, loader = run.prepare(model, loader)`."
        if not isinstance(loader, DataLoader):
            fix = "run.prepare returns things in the order in which it gets them: write the same names on both sides."
        kind = type(loader).__name__
        raise UsageError(f"run.steps needs the loader that run.prepare returned, but got a {kind}.", fix)
    if not any(loader is own for own in run.loop_state.prepared.loaders):
        raise UsageError(
            "This loader belongs to an earlier samebits.init.", "Pass the DataLoader to run.prepare again."
        )
    if run.loop_state.position.region is not Region.SCRIPT and not run.loop_state.is_recorded:
        raise UsageError("run.steps was called inside another step.", f"Take one step at a time:\n{RIGHT_FORM}")
    if not run.loop_state.prepared.models:
        raise UsageError(
            "run.steps needs a model, and none was prepared.", "Pass it to run.prepare together with its optimizer."
        )
    return loader


@dataclass(frozen=True)
class _Epoch:
    """One epoch of a loader, as this rank trains on it."""

    loader: int
    """Which of the prepared ones."""
    loop: int
    """Which `run.epochs` of the script, from 1; 0 outside of one."""
    steps: PlannedSteps | StreamedSteps

    @property
    def inside(self) -> InsideEpoch:
        """How far it is."""
        return InsideEpoch(self.loader, self.steps.order, self.steps.done, self.loop)


def _train(run: RunState, loader: PreparedLoader) -> Generator[Step]:
    for begin_loop in run.components.observers.begin_loop:
        begin_loop()
    if _is_over(run):
        return
    _refuse_inside_a_step(run)
    run.begin()
    # Nothing was resumed by now, so all steps come again: lines of earlier ranks go out of the file.
    run.components.metrics.earlier.keep_none()
    epoch = _prepared(run, loader)
    step_timer, steps = run.components.step_timer, epoch.steps
    step_timer.step_in_epoch, step_timer.steps_per_epoch = steps.done, steps.length or 0
    if step_timer.num_epochs == 0:
        step_timer.epoch = loader.epochs_begun
    if not steps.is_over:
        labels.begin_looks(run)
    is_first = True
    while _has_next(run, epoch):
        number = steps.done
        mine, fetched = steps.take()
        step = Step(run, mine, fetched, number)
        run.loop_state.position.lane_samples = mine.cut.samples
        _enter_step(run, step, is_first=is_first)
        is_first = False
        try:
            yield step
        except GeneratorExit:
            step.close()
            run.loop_state.epoch.inside = None
            run.components.states.left_steps()
            run.loop_state.epochs.end_steps()
            # Nobody would see an error here; the end of the run raises it again.
            with suppress(SamebitsError, RuntimeError):
                settle_losses(run)
            # The script leaves its loop in this step, which counts.
            _count_step(run, mine.num_mine)
            _save_left(run, epoch.inside)
            run.loop_state.epoch.accounts.append({"loader": epoch.loader, **steps.account()})
            for left_loop in run.components.observers.left_loop:
                left_loop()
            raise
        finally:
            run.loop_state.position.region = Region.SCRIPT
        step.skip_rest()
        _finish_step(run, mine.num_mine)
        _reach_boundary(run, epoch.inside, is_last=steps.is_over)
        if _is_over(run):
            settle_losses(run)
            run.loop_state.epochs.end_steps()
            return
    settle_losses(run)
    run.loop_state.epoch.inside = None
    check_samples(run, steps)
    run.components.checks.say_idle()
    run.loop_state.epoch.accounts.append({"loader": epoch.loader, **steps.account()})
    run.loop_state.epochs.end_steps()
    labels.leave_loop(run, is_inner=run.loop_state.epochs.in_body)


def _has_next(run: RunState, epoch: _Epoch) -> bool:
    """Whether there is another step, behind those that are passed over."""
    while has_next(run, epoch.steps):
        if run.components.step_timer.step + 1 not in run.loop_state.epoch.skipped:
            return True
        _pass_over(run, epoch)
    return False


def _pass_over(run: RunState, epoch: _Epoch) -> None:
    """A step that `--skip-steps` names: it counts, its body does not run, and a state may be saved behind it."""
    # [Note: what a step that is passed over leaves]
    # Its random stream is entered, so that what the script draws behind it follows from its number. Nothing looks at the
    # script, which has done nothing since.
    step_timer, streams = run.components.step_timer, run.components.streams
    streams.look()
    step_timer.step, step_timer.step_in_epoch = step_timer.step + 1, step_timer.step_in_epoch + 1
    streams.enter(Domain.STEP, step_timer.step, 0)
    step_timer.publish()
    epoch.steps.pass_over()
    run.loop_state.epoch.inside = epoch.inside
    run.components.states.reach_boundary(epoch.inside, is_last=epoch.steps.is_over)


def _is_over(run: RunState) -> bool:
    # Asked anew each time: an observer changes it while a step ends, of which a type checker knows nothing.
    return run.loop_state.is_recorded


def _reach_boundary(run: RunState, inside: InsideEpoch, *, is_last: bool) -> None:
    """The run can resume from here: between two steps, or after the last one."""
    loop_state = run.loop_state
    loop_state.epoch.inside = inside
    if not loop_state.looks.is_over or is_last:
        labels.label_samples(run)
    labels.look_after_step(run)
    run.components.states.reach_boundary(inside, is_last=is_last)


def _save_left(run: RunState, inside: InsideEpoch) -> None:
    """The script left its loop in a step in which it asked for states: a run that resumes from them goes on in this epoch."""
    run.loop_state.position.region, run.loop_state.epoch.inside = Region.SCRIPT, inside
    try:
        run.components.states.save_asked()
    finally:
        run.loop_state.epoch.inside = None


def _refuse_inside_a_step(run: RunState) -> None:
    if run.loop_state.position.region is not Region.SCRIPT:
        raise UsageError(
            "run.steps was started inside another step.",
            "Take one step at a time, from one loader; to draw from two data sets together, load a "
            f"torch.utils.data.StackDataset:\n{RIGHT_FORM}",
        )


def _prepared(run: RunState, loader: PreparedLoader) -> _Epoch:
    """Plan the loader's next epoch, agree on it, and begin to fetch; after a resume from where it was."""
    loop_state, components = run.loop_state, run.components
    loop_state.epochs.count_call()
    if loop_state.epochs.is_first:
        loop_state.tallies.begin_steps()
    which = next(number for number, own in enumerate(loop_state.prepared.loaders) if own is loader)
    loop = loop_state.epochs.loop if loop_state.epochs.in_body else 0
    steps = begin_epoch(run, loader, which, loop)
    # The streams of the loaded state, should no step be left.
    if loop_state.resumption.later_streams is not None:
        components.streams.restore(loop_state.resumption.later_streams, components.step_timer.step)
        loop_state.resumption.later_streams = None
    if loop_state.resumption.schedulers is not None:
        loop_state.resumption.schedulers(False)
    if loop_state.resumption.late is not None:
        loop_state.resumption.late.look()
    if loop_state.resumption.load_again is not None:
        # What the epoch's body did before its steps has run again in this start; the state is loaded over it once more.
        loop_state.resumption.load_again()
        loop_state.resumption.load_again = None
    epoch = _Epoch(which, loop, steps)
    loop_state.epoch.reading = weakref.ref(steps)
    if steps.is_over:
        labels.refuse_loop_without_turn(run)
    components.states.enter_steps(epoch.inside, is_over=steps.is_over)
    return epoch


def _enter_step(run: RunState, step: Step, *, is_first: bool) -> None:
    run.components.checks.before_step()
    run.components.numerics.keep()
    # At what the body of the last step drew.
    run.components.streams.look()
    for before_step in run.components.observers.before_step:
        before_step()
    run.components.streams.enter(Domain.STEP, step.number, 0)
    run.components.states.enter_step()
    run.loop_state.position.region = Region.STEP
    run.components.step_timer.step = step.number
    run.components.step_timer.enter(Phase.SCRIPT, IN_STEP)
    for begin_step in run.components.observers.begin_step:
        begin_step(step.number, step.num_samples, is_first)


def _finish_step(run: RunState, num_samples: int) -> None:
    """Count, show and record a step whose body is finished."""
    _count_step(run, num_samples)
    step_timer = run.components.step_timer
    if step_timer.step == SETTLED_STEP:
        give_back_freed_memory()
    step_timer.enter(Phase.SCRIPT, BETWEEN_STEPS)
    for end_step in run.components.observers.end_step:
        end_step()


def _count_step(run: RunState, num_samples: int) -> None:
    if run.components.scaler is not None:
        run.components.scaler.settle()
    run.components.step_timer.samples += num_samples if run.config.counts else 0
    run.components.step_timer.step_in_epoch += 1
    run.components.step_timer.publish()
