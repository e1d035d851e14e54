"""The loop over an epoch's steps, and its check that each sample came once."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from lockstep.caller import where
from lockstep.errors import PromiseBroken, UsageError
from lockstep.feed.batches import Batches
from lockstep.feed.loader import PreparedLoader, StepPlan
from lockstep.feed.order import EpochPlan
from lockstep.journal.record import Phase
from lockstep.layout.stream_key import Domain
from lockstep.notices import say
from lockstep.rank.memory import give_back_freed_memory
from lockstep.run.loop.evaluation import say_shares
from lockstep.run.loop.replicas import check_replicas
from lockstep.run.loop.step import Step
from lockstep.run.loop.synchronised_norm import has_synchronised_norm, objection_to_steps
from lockstep.run.loop.testimony import is_over, settle, testify_before, testify_begin, testify_left, testify_step
from lockstep.run.position.inside_epoch import InsideEpoch
from lockstep.run.position.kept_values import restore
from lockstep.run.position.region import Region
from lockstep.run.run_state import Machinery, Progress, RunState
from lockstep.run.watch.counted import counter_of
from lockstep.strategy.right_form import RIGHT_FORM

SETTLED_STEP = 2
"""After this step a run holds all that it will hold: its optimizer has its state."""


class Steps(Iterator[Step]):
    """The steps of a loader's next epoch, what `run.steps` returns; `len` tells a progress bar how many there are."""

    def __init__(self, run: RunState, loader: PreparedLoader) -> None:
        self._steps, self._loader = _train(run, loader), loader
        run.progress.steps = weakref.ref(self._steps)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Step]:  # noqa: PYI034
        return self._steps  # a loop holds it alone, so that leaving the loop ends it

    def __next__(self) -> Step:
        return next(self._steps)


@dataclass(frozen=True)
class _Epoch:
    """One epoch of a loader, as this rank trains on it."""

    plan: EpochPlan
    loader: int
    """Which of the prepared ones."""
    loop: int
    """Which `run.epochs` of the script, from 1; 0 outside of one."""
    steps: list[StepPlan]
    done: int
    """How many of them a loaded state has behind it."""
    fetched: Batches


def _train(run: RunState, loader: PreparedLoader) -> Generator[Step]:
    settle(run)
    if is_over(run.machinery):
        return
    if run.progress.position.region is not Region.SCRIPT:
        raise UsageError(
            "run.steps was started inside another step.",
            "Take one step at a time, from one loader; to draw from two data sets together, load a "
            f"torch.utils.data.StackDataset:\n{RIGHT_FORM}",
        )
    run.progress.begin()
    run.machinery.metrics.earlier.keep_none()
    epoch = _prepared(run, loader)
    ledger = run.machinery.ledger
    ledger.step_in_epoch, ledger.steps_per_epoch = epoch.done, len(epoch.steps)
    if ledger.num_epochs == 0:
        ledger.epoch = loader.epochs_begun
    for number, mine in enumerate(epoch.steps[epoch.done :], epoch.done):
        step = Step(run, mine, epoch.fetched, number)
        _enter_step(run, step, is_first=number == epoch.done)
        try:
            yield step
        except GeneratorExit:
            step.close()
            run.progress.inside = None
            run.progress.automatic.left_steps()
            run.progress.rescue.left_steps()
            run.progress.epochs.end_steps()
            _count_step(run, mine.num_mine)  # the script leaves its loop; this step counts
            testify_left(run.machinery)
            raise
        finally:
            run.progress.position.region = Region.SCRIPT
        step.skip_rest()
        _finish_step(run, mine.num_mine)
        run.progress.inside = InsideEpoch(epoch.loader, epoch.plan.digest, number + 1, epoch.loop)
        is_last = number + 1 == len(epoch.steps)
        run.progress.automatic.after_step(ends_epoch=is_last)
        run.progress.snapshots.after_step(ends_epoch=is_last)
        run.progress.rescue.enter_boundary(run.progress.inside, is_last=is_last)
        if is_over(run.machinery):
            run.progress.epochs.end_steps()
            return
    run.progress.inside = None
    _check_samples(run, epoch.plan, sum(step.num_mine for step in epoch.steps))
    run.progress.epochs.end_steps()


def _prepared(run: RunState, loader: PreparedLoader) -> _Epoch:
    """Plan the loader's next epoch, agree on it, and begin to fetch; after a resume from where it was."""
    progress, machinery = run.progress, run.machinery
    progress.epochs.count_call()
    if progress.epochs.is_first:
        progress.tallies.begin_steps()
    which = next(number for number, own in enumerate(progress.loaders) if own is loader)
    loop = progress.epochs.loop if progress.epochs.in_body else 0
    plan = _begin_epoch(run, loader)
    done = _steps_done(progress, which, loop, plan)
    steps = loader.cut(plan, machinery.ledger.step + 1 - done)
    _check_norms(progress, steps)
    testify_begin(run, loader, plan)
    fetched = loader.fetch([part for step in steps[done:] for part in step.parts], evaluation=False)
    if progress.later_streams is not None:  # those of the loaded state, should no step be left
        machinery.streams.restore(progress.later_streams, machinery.ledger.step)
        progress.later_streams = None
    if progress.later_values is not None:  # what the body changed before its steps, it changed before the state too
        restore(progress.values, progress.later_values)
        progress.later_values = None
    if 0 < done < len(steps):
        _refuse_counters(progress)
    progress.snapshots.enter_steps()
    progress.rescue.enter_boundary(InsideEpoch(which, plan.digest, done, loop), is_last=done == len(steps))
    return _Epoch(plan, which, loop, steps, done, fetched)


def _enter_step(run: RunState, step: Step, *, is_first: bool) -> None:
    say_shares(run.machinery)
    run.machinery.streams.look()  # at what the body of the last step drew
    testify_before(run)
    run.machinery.streams.enter(Domain.STEP, step.number, 0)
    run.progress.rescue.enter_step()
    run.progress.position.region = Region.STEP
    run.machinery.ledger.step = step.number
    if run.machinery.meter is not None:
        run.machinery.meter.begin_step(step.number, step.num_samples, is_first)


def _begin_epoch(run: RunState, loader: PreparedLoader) -> EpochPlan:
    """The order of the loader's next epoch, on which all ranks agree."""
    run.progress.epochs.begin_steps()
    run.machinery.ledger.enter(Phase.DATA, "epoch order")
    run.machinery.streams.look()
    plan = loader.plan_training()
    agree_on_order(run.machinery, plan, "run.steps")
    sums = run.machinery.strategy.checksums()
    check_replicas(run, run.machinery.transport.all_gather_object(sums, "run.steps replicas", where()))
    if not plan.steps:
        raise UsageError(
            f"The epoch has no step: the data set has {len(loader.dataset)} samples, fewer than "  # type: ignore[arg-type]
            f"batch_size={loader.batch_size}, and drop_last=True leaves them out.",
            "Use a smaller batch_size or drop_last=False.",
        )
    return plan


def _steps_done(progress: Progress, which: int, loop: int, plan: EpochPlan) -> int:
    """How many steps of this epoch a loaded state has behind it."""
    before, progress.goes_on = progress.goes_on, None
    if before is None:
        return 0
    if (before.loader, before.loop) != (which, loop):
        raise UsageError(
            f"The state was saved in the steps of loader {before.loader + 1} and of run.epochs number {before.loop}, but "
            f"this is loader {which + 1} and number {loop}.",
            "Keep the loops as they were, and prepare the loaders in the same order.",
        )
    if before.order != plan.digest or before.done > len(plan.steps):
        raise UsageError(
            f"The state was saved after {before.done} steps of an epoch that had other samples, or another order.",
            "Use the same data set, batch size and seed, or another name for a new run.",
        )
    return before.done


def _refuse_counters(progress: Progress) -> None:
    """Raise `UsageError` when the loop's steps are counted from outside, where the epoch goes on in the middle."""
    if counter := counter_of_steps(progress):
        raise UsageError(
            f"This run goes on in the middle of an epoch, but {counter} around run.steps begins at its beginning.",
            "Use step.index, the step's number in the epoch, instead; or save every epoch.",
        )


def counter_of_steps(progress: Progress) -> str:
    """The name of what counts or pairs the steps of the current loop from outside; empty when nothing does."""
    steps = progress.steps() if progress.steps is not None else None
    return counter_of(steps) if steps is not None else ""


def _check_norms(progress: Progress, steps: Sequence[StepPlan]) -> None:
    """Raise `UsageError` when layers that exchange in every lane would meet an empty one."""
    if has_synchronised_norm(progress.models) and (
        objection := objection_to_steps([step.cut.samples for step in steps])
    ):
        raise objection


def agree_on_order(machinery: Machinery, plan: EpochPlan, call: str) -> None:
    """Raise `UsageError` on every rank when the ranks would take different samples or orders."""
    told = machinery.transport.all_gather_object([plan.digest, plan.num_samples, len(plan.steps)], call, where())
    for rank, other in enumerate(told):
        if other != told[0]:
            raise UsageError(
                f"The samples or their order are not the same on every rank: rank 0 has {told[0][1]} samples in "
                f"{told[0][2]} steps, rank {rank} has {other[1]} in {other[2]}.",
                "Do not shuffle, seed or split by rank in the sampler or the data set: lockstep shuffles and cuts for "
                "all ranks.",
            )


def _finish_step(run: RunState, num_samples: int) -> None:
    """Count, show and record a step whose body is finished."""
    _count_step(run, num_samples)
    ledger = run.machinery.ledger
    if ledger.step == SETTLED_STEP:
        give_back_freed_memory()
    testify_step(run)
    ledger.enter(Phase.SCRIPT, "between steps")
    if run.machinery.meter is not None:
        run.machinery.meter.end_step(ledger.step, run.machinery.strategy.report())


def _count_step(run: RunState, num_samples: int) -> None:
    if run.machinery.scaler is not None:
        run.machinery.scaler.settle()
    run.machinery.ledger.samples += num_samples if run.setup.counts else 0
    run.machinery.ledger.step_in_epoch += 1
    run.machinery.ledger.publish()


def _check_samples(run: RunState, plan: EpochPlan, num_mine: int) -> None:
    mine = [
        num_mine if run.setup.counts else 0,
        run.machinery.written.take() if run.machinery.written is not None else {},
    ]
    told = run.machinery.transport.all_gather_object(mine, "epoch end", where())
    say_written(run.machinery, [paths for _, paths in told])
    count = sum(number for number, _ in told)
    if count != plan.num_samples:
        raise PromiseBroken(f"The ranks trained on {count} samples of an epoch of {plan.num_samples}.")
    run.progress.epochs_seen.append(plan.num_samples)


def say_written(machinery: Machinery, everyone: list[dict[str, str]]) -> None:
    """Say which files several ranks wrote since the last time; `everyone` has each rank's `WrittenFiles.take`."""
    for sentence in machinery.written.conclude(everyone) if machinery.written is not None else ():
        if machinery.transport.rank == 0:
            say(sentence)
