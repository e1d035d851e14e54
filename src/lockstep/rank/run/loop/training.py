"""The loop over an epoch's steps, and its check that each sample came once."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lockstep.errors import InternalError, LockstepError, UsageError
from lockstep.notices import say
from lockstep.protocol.journal.ring import Phase
from lockstep.protocol.layout.cut import Cut
from lockstep.protocol.layout.stream_key import Domain
from lockstep.rank.caller import where
from lockstep.rank.checks.script.labels import label
from lockstep.rank.data.loader import PreparedLoader
from lockstep.rank.data.planned_steps import PlannedSteps
from lockstep.rank.data.stream import HOW_TO_SHUFFLE, Place, PreparedStream, StreamedSteps
from lockstep.rank.data.stream_dataset import NOTHING_READ
from lockstep.rank.data.uses import MASK
from lockstep.rank.init.memory import give_back_freed_memory
from lockstep.rank.run.loop.evaluation import say_shares
from lockstep.rank.run.loop.loop_variables import STEPS, note_loop_variables, restore_loop_variables
from lockstep.rank.run.loop.loss_gauge import settle_losses
from lockstep.rank.run.loop.randomness import objection_to_steps
from lockstep.rank.run.loop.recording import is_over, record_before, record_begin, record_left, record_step, settle
from lockstep.rank.run.loop.replicas import begin_checks, bits_held, compare
from lockstep.rank.run.loop.step import Step
from lockstep.rank.run.position.epoch_count import InsideEpoch
from lockstep.rank.run.position.moment import Region
from lockstep.rank.run.run_state import Components, LoopState, RunState
from lockstep.rank.strategy.contract import RIGHT_FORM
from lockstep.rank.strategy.norm import has_synchronised_norm

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
        return self._steps  # a loop holds it alone, so that leaving the loop ends it

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
        raise UsageError(
            "run.steps needs the loader that run.prepare returned.", "Write `loader = run.prepare(loader)`."
        )
    if not any(loader is own for own in run.loop_state.prepared.loaders):
        raise UsageError(
            "This loader belongs to an earlier lockstep.init.", "Pass the DataLoader to run.prepare again."
        )
    if run.loop_state.position.region is not Region.SCRIPT and not is_over(run.components):
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
    settle(run)
    if is_over(run.components):
        return
    _refuse_inside_a_step(run)
    run.loop_state.begin()
    run.components.metrics.earlier.keep_none()
    epoch = _prepared(run, loader)
    step_timer, steps = run.components.step_timer, epoch.steps
    first = steps.done
    step_timer.step_in_epoch, step_timer.steps_per_epoch = steps.done, steps.length or 0
    if step_timer.num_epochs == 0:
        step_timer.epoch = loader.epochs_begun
    if run.loop_state.script is None and not steps.is_over:
        label(run)
    while _has_next(run, steps):
        number = steps.done
        mine, fetched = steps.take()
        step = Step(run, mine, fetched, number)
        run.loop_state.position.lane_samples = mine.cut.samples
        _enter_step(run, step, is_first=number == first)
        try:
            yield step
        except GeneratorExit:
            step.close()
            run.loop_state.epoch.inside = None
            run.loop_state.checkpointing.automatic.left_steps()
            run.loop_state.checkpointing.last.left_steps()
            run.loop_state.epochs.end_steps()
            with suppress(LockstepError, RuntimeError):  # nobody would see it here; the end of the run raises it
                settle_losses(run)
            _count_step(run, mine.num_mine)  # the script leaves its loop; this step counts
            run.loop_state.epoch.accounts.append({"loader": epoch.loader, **steps.account()})
            record_left(run.components)
            raise
        finally:
            run.loop_state.position.region = Region.SCRIPT
        step.skip_rest()
        _finish_step(run, mine.num_mine)
        _reach_boundary(run, epoch.inside, is_last=steps.is_over)
        if is_over(run.components):
            settle_losses(run)
            run.loop_state.epochs.end_steps()
            return
    settle_losses(run)
    run.loop_state.epoch.inside = None
    run.loop_state.epoch.left.pop(STEPS, None)
    _check_samples(run, steps)
    run.loop_state.epoch.accounts.append({"loader": epoch.loader, **steps.account()})
    run.loop_state.epochs.end_steps()


def _reach_boundary(run: RunState, inside: InsideEpoch, *, is_last: bool) -> None:
    """The run can resume from here: between two steps, or after the last one."""
    loop_state = run.loop_state
    loop_state.epoch.inside = inside
    if is_last:
        note_loop_variables(run, STEPS)
    loop_state.checkpointing.automatic.after_step(ends_epoch=is_last)
    loop_state.checkpointing.snapshots.after_step(ends_epoch=is_last)
    loop_state.checkpointing.last.enter_boundary(inside, is_last=is_last)


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
    steps = _begin_epoch(run, loader, which, loop)
    if loop_state.resumption.later_streams is not None:  # those of the loaded state, should no step be left
        components.streams.restore(loop_state.resumption.later_streams, components.step_timer.step)
        loop_state.resumption.later_streams = None
    if loop_state.resumption.late is not None:
        loop_state.resumption.late.look()
    if loop_state.resumption.load_again is not None:
        loop_state.resumption.load_again()
        loop_state.resumption.load_again = None
    epoch = _Epoch(which, loop, steps)
    loop_state.epoch.reading = weakref.ref(steps)
    loop_state.checkpointing.snapshots.enter_steps()
    if steps.is_over:
        restore_loop_variables(run, STEPS)
    loop_state.checkpointing.last.enter_boundary(epoch.inside, is_last=steps.is_over)
    return epoch


def _begin_epoch(run: RunState, loader: PreparedLoader, which: int, loop: int) -> PlannedSteps | StreamedSteps:
    """The steps of the loader's next epoch that are left, on whose order all ranks agree."""
    run.loop_state.epochs.begin_steps()
    run.components.step_timer.enter(Phase.DATA, "epoch order")
    run.components.streams.look()
    steps: PlannedSteps | StreamedSteps
    if isinstance(loader, PreparedStream):
        steps = _begin_stream(run, loader, which, loop)
    else:
        steps = _begin_planned(run, loader, which, loop)
    if steps.is_over and not steps.done:
        raise UsageError(
            f"The epoch has no step: the data set has {_count_of(loader)} samples, fewer than "
            f"batch_size={loader.batch_size}, and drop_last=True leaves them out.",
            "Use a smaller batch_size or drop_last=False.",
        )
    return steps


def _enter_step(run: RunState, step: Step, *, is_first: bool) -> None:
    say_shares(run.components)
    run.components.numerics.keep()
    run.components.streams.look()  # at what the body of the last step drew
    record_before(run)
    run.components.streams.enter(Domain.STEP, step.number, 0)
    run.loop_state.checkpointing.last.enter_step()
    run.loop_state.position.region = Region.STEP
    run.components.step_timer.step = step.number
    if run.components.meter is not None:
        run.components.meter.begin_step(step.number, step.num_samples, is_first)


def _begin_planned(run: RunState, loader: PreparedLoader, which: int, loop: int) -> PlannedSteps:
    plan = loader.plan_training()
    _agree(run, [plan.digest, plan.num_samples, len(plan.steps)])
    done = 0
    if (before := _place_before(run.loop_state, which, loop)) is not None:
        if before.order != plan.digest or before.done > len(plan.steps):
            raise UsageError(
                f"The state was saved after {before.done} steps of an epoch that had other samples, or another order.",
                "Use the same data set, batch size and seed, or another name for a new run.",
            )
        done = before.done
    _check_norms(run, plan.sizes, plan.batch_size)
    record_begin(run, loader, plan)
    return PlannedSteps(loader, plan, run.components.step_timer.step + 1 - done, done)


def _begin_stream(run: RunState, loader: PreparedStream, which: int, loop: int) -> StreamedSteps:
    loop_state, components = run.loop_state, run.components
    epoch = loader.begin_epoch()
    _agree(run, [loader.digest, 0, 0])
    before, saved, loop_state.resumption.goes_on_stream = (
        _place_before(loop_state, which, loop),
        loop_state.resumption.goes_on_stream,
        None,
    )
    done, order = (before.done, before.order) if before is not None else (0, NOTHING_READ)
    record_begin(run, loader, None)
    steps = loader.training(
        epoch,
        Place(components.step_timer.step + 1 - done, done, order),
        saved,
        with_state=loop_state.checkpointing.automatic.is_on or loop_state.checkpointing.last.is_on,
        elsewhere=components.streams.elsewhere,
    )
    if steps.goes_on_by and components.transport.rank == 0:
        say(f"{type(loader.dataset).__name__} goes on after {done} steps of the epoch by {steps.goes_on_by}.")
    return steps


def _has_next(run: RunState, steps: PlannedSteps | StreamedSteps) -> bool:
    """Whether there is another step. Of a stream, the ranks compare what they have read for it.

    Raises:
        UsageError: on every rank, when they have read different samples, or a different number of them.
    """
    if isinstance(steps, StreamedSteps) and not run.config.mesh.asynchronous:
        try:
            block = steps.look()
        except Exception as error:
            run.loop_state.checkpointing.last.take_after(error)
            raise
        told = run.components.transport.all_gather_object([block.size, block.after], "run.steps samples", where())
        for rank, (size, after) in enumerate(told):
            if [size, after] != told[0]:
                raise UsageError(
                    f"The stream is not the same on every rank: in step {steps.done + 1} of the epoch, rank 0 has read "
                    f"{told[0][0]} samples and rank {rank} {'others' if size == told[0][0] else size}.",
                    f"Do not split by rank: lockstep cuts for all ranks. {HOW_TO_SHUFFLE}",
                )
    return not steps.is_over


def _agree(run: RunState, told: list[Any]) -> None:
    """Agree with the other ranks on the order, and check that they have the same models."""
    agree_on_order(run.components, told, "run.steps")
    compare(run, run.components.transport.all_gather_object(bits_held(run), "run.steps replicas", where()))
    begin_checks(run)


def _count_of(loader: PreparedLoader) -> int | str:
    return "too few" if isinstance(loader, PreparedStream) else len(loader.dataset)  # type: ignore[arg-type]


def _place_before(loop_state: LoopState, which: int, loop: int) -> InsideEpoch | None:
    """Where in this epoch a loaded state was saved; None where the epoch begins."""
    before, loop_state.resumption.goes_on = loop_state.resumption.goes_on, None
    if before is not None and (before.loader, before.loop) != (which, loop):
        raise UsageError(
            f"The state was saved in the steps of loader {before.loader + 1} and of run.epochs number {before.loop}, but "
            f"this is loader {which + 1} and number {loop}.",
            "Keep the loops as they were, and prepare the loaders in the same order.",
        )
    return before


def _check_norms(run: RunState, sizes: Sequence[int], batch_size: int) -> None:
    """Raise `UsageError` when layers that exchange in every lane would meet an empty one."""
    if has_synchronised_norm(run.loop_state.prepared.models):
        cut = Cut(batch_size, run.config.placement.num_lanes)
        if objection := objection_to_steps([cut.sizes(size) for size in sizes]):
            raise objection


def agree_on_order(components: Components, mine: list[Any], call: str) -> None:
    """Raise `UsageError` on every rank when the ranks would take different samples or orders.

    Args:
        components: the run's.
        mine: a hash of the order, the number of samples, and of steps.
        call: the user's.
    """
    told = components.transport.all_gather_object(mine, call, where())
    for rank, other in enumerate(told):
        if other != told[0]:
            raise UsageError(
                f"The samples or their order are not the same on every rank: {other_order(told[0], rank, other)}.",
                "Do not shuffle, seed or split by rank in the sampler or the data set: lockstep shuffles and cuts for "
                "all ranks.",
            )


def other_order(first: Sequence[Any], rank: int, other: Sequence[Any]) -> str:
    """What differs between the order of rank 0 and that of another one; each as for `agree_on_order`."""
    if first[1:] == other[1:]:
        return f"rank {rank} takes others than rank 0, or in another order ({first[1]} samples in {first[2]} steps on both)"
    return f"rank 0 has {first[1]} samples in {first[2]} steps, rank {rank} has {other[1]} in {other[2]}"


def _finish_step(run: RunState, num_samples: int) -> None:
    """Count, show and record a step whose body is finished."""
    _count_step(run, num_samples)
    step_timer = run.components.step_timer
    if step_timer.step == SETTLED_STEP:
        give_back_freed_memory()
    record_step(run)
    step_timer.enter(Phase.SCRIPT, "between steps")
    if run.components.meter is not None:
        run.components.meter.end_step(step_timer.step, run.components.strategy.report())


def _count_step(run: RunState, num_samples: int) -> None:
    if run.components.scaler is not None:
        run.components.scaler.settle()
    run.components.step_timer.samples += num_samples if run.config.counts else 0
    run.components.step_timer.step_in_epoch += 1
    run.components.step_timer.publish()


def _check_samples(run: RunState, steps: PlannedSteps | StreamedSteps) -> None:
    mine = [
        steps.mine if run.config.counts else [0, 0],
        run.components.written.take() if run.components.written is not None else {},
    ]
    told = run.components.transport.all_gather_object(mine, "epoch end", where())
    say_written(run.components, [paths for _, paths in told])
    count, hashes = (sum(numbers) for numbers in zip(*(used for used, _ in told), strict=True))
    if [count, hashes & MASK] != steps.whole:
        raise InternalError(f"The ranks trained on {count} samples of an epoch of {steps.num_samples}, or on others.")
    if isinstance(steps, StreamedSteps) and run.components.transport.world_size == 1 and not steps.read_again():
        say(
            "the stream had other samples when its beginning was read a second time, so another start or another number of ranks "
            f"has other bits. Give the data set no random numbers or clock of its own. {HOW_TO_SHUFFLE}"
        )
    run.loop_state.epoch.epochs_seen.append(steps.num_samples)


def say_written(components: Components, everyone: list[dict[str, str]]) -> None:
    """Say which files several ranks wrote since the last time; `everyone` has each rank's `WrittenFiles.take`."""
    for sentence in components.written.conclude(everyone) if components.written is not None else ():
        if components.transport.rank == 0:
            say(sentence)
