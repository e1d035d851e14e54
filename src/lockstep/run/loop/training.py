"""The loop over an epoch's steps, and its check that each sample came once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from lockstep.caller import where
from lockstep.errors import PromiseBroken, UsageError
from lockstep.feed.loader import PreparedLoader, StepPlan
from lockstep.feed.order import EpochPlan
from lockstep.journal.record import Phase
from lockstep.layout.stream_key import Domain
from lockstep.rank.memory import give_back_freed_memory
from lockstep.run.loop.evaluation import say_shares
from lockstep.run.loop.replicas import check_replicas
from lockstep.run.loop.step import Step
from lockstep.run.loop.synchronised_norm import has_synchronised_norm, objection_to_steps
from lockstep.run.loop.testimony import is_over, settle, testify_begin, testify_left, testify_step
from lockstep.run.parts import Parts
from lockstep.run.position.region import Region
from lockstep.strategy.right_form import RIGHT_FORM

SETTLED_STEP = 2
"""After this step a run holds what it will hold: its optimizer has its state."""


def train(parts: Parts, loader: PreparedLoader) -> Iterator[Step]:
    """The steps of the loader's next epoch; what `run.steps` returns."""
    settle(parts)
    if is_over(parts):
        return
    if parts.place.region is not Region.SCRIPT:
        raise UsageError(
            f"run.steps was begun inside another step. One step at a time, from one loader; to draw "
            f"from two data sets together, load a torch.utils.data.StackDataset:\n{RIGHT_FORM}"
        )
    plan = _begin_epoch(parts, loader)
    first = parts.ledger.step + 1
    steps = loader.cut(plan, first)
    _check_norms(parts, steps)
    testify_begin(parts, loader, plan)
    fetched = loader.fetch([part for step in steps for part in step.parts], evaluation=False)
    parts.ledger.step_in_epoch, parts.ledger.steps_per_epoch = 0, len(plan.steps)
    if parts.ledger.num_epochs == 0:
        parts.ledger.epoch = loader.epochs_begun
    for number, mine in enumerate(steps):
        step = Step(parts, mine, fetched)
        say_shares(parts)
        parts.streams.look()  # at what the body of the last step drew
        parts.streams.enter(Domain.STEP, step.number, 0)
        parts.place.region = Region.STEP
        parts.ledger.step = step.number
        if parts.meter is not None:
            parts.meter.begin_step(step.number, step.num_samples, number == 0)
        try:
            yield step
        except GeneratorExit:
            parts.epochs.end_steps()
            _count_step(parts, mine.num_mine)  # the script leaves its loop; this step is made
            testify_left(parts)
            raise
        finally:
            parts.place.region = Region.SCRIPT
        step.skip_rest()
        _finish_step(parts, mine.num_mine)
        if is_over(parts):
            parts.epochs.end_steps()
            return
    _check_samples(parts, plan, sum(step.num_mine for step in steps))
    parts.epochs.end_steps()


def _begin_epoch(parts: Parts, loader: PreparedLoader) -> EpochPlan:
    """The order of the loader's next epoch, on which all ranks agree."""
    parts.epochs.begin_steps()
    parts.ledger.enter(Phase.DATA, "epoch order")
    parts.streams.look()
    plan = loader.plan_training()
    agree_on_order(parts, plan, "run.steps")
    sums = parts.strategy.checksums()
    check_replicas(parts, parts.transport.all_gather_object(sums, "run.steps replicas", where()))
    if not plan.steps:
        raise UsageError(
            f"The epoch has no step: the data set has {len(loader.dataset)} samples, fewer than batch_size="  # type: ignore[arg-type]
            f"{loader.batch_size}, and drop_last=True leaves them out. Use a smaller batch_size or drop_last=False."
        )
    return plan


def _check_norms(parts: Parts, steps: Sequence[StepPlan]) -> None:
    """Raise `UsageError` when layers that exchange in every lane would meet an empty one."""
    if has_synchronised_norm(parts.models) and (objection := objection_to_steps([step.cut.samples for step in steps])):
        raise UsageError(objection)


def agree_on_order(parts: Parts, plan: EpochPlan, call: str) -> None:
    """Raise `UsageError` on every rank when the ranks would take other samples or another order."""
    told = parts.transport.all_gather_object([plan.digest(), plan.num_samples, len(plan.steps)], call, where())
    for rank, other in enumerate(told):
        if other != told[0]:
            raise UsageError(
                f"The order of the samples is not the same on every rank: rank 0 has {told[0][1]} samples in "
                f"{told[0][2]} steps, rank {rank} has {other[1]} in {other[2]}, or in another order. lockstep shuffles "
                f"and cuts for all ranks; do not shuffle, seed or split by rank in the sampler or the data set."
            )


def _finish_step(parts: Parts, num_samples: int) -> None:
    """The body of a step is finished: count it, show it, record it."""
    _count_step(parts, num_samples)
    ledger = parts.ledger
    if ledger.step == SETTLED_STEP:
        give_back_freed_memory()
    testify_step(parts)
    ledger.enter(Phase.SCRIPT, "between steps")
    if parts.meter is not None:
        parts.meter.end_step(ledger.step, parts.strategy.report())


def _count_step(parts: Parts, num_samples: int) -> None:
    if parts.scaler is not None:
        parts.scaler.settle()
    parts.ledger.samples += num_samples if parts.counts else 0
    parts.ledger.step_in_epoch += 1
    parts.ledger.publish()


def _check_samples(parts: Parts, plan: EpochPlan, num_mine: int) -> None:
    mine = [num_mine if parts.counts else 0, parts.written.take() if parts.written is not None else {}]
    told = parts.transport.all_gather_object(mine, "epoch end", where())
    say_written(parts, [paths for _, paths in told])
    count = sum(number for number, _ in told)
    if count != plan.num_samples:
        raise PromiseBroken(f"The ranks trained on {count} samples of an epoch of {plan.num_samples}.")
    parts.epochs_seen.append(plan.num_samples)


def say_written(parts: Parts, everyone: list[dict[str, str]]) -> None:
    """Say which files several ranks wrote since the last time; `everyone` is what `WrittenFiles.take` gave each rank."""
    for sentence in parts.written.conclude(everyone) if parts.written is not None else ():
        if parts.transport.rank == 0:
            print(f"lockstep: {sentence}", file=sys.stderr)
