"""An epoch on all ranks: agree on its samples and their order, look for the next step, check that each sample came once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits.errors import InternalError, UsageError
from samebits.notices import say
from samebits.protocol.journal.ring import Phase
from samebits.protocol.layout.cut import Cut
from samebits.rank.caller import where
from samebits.rank.checks.replicas import begin_checks, bits_held, compare
from samebits.rank.data.loader import PreparedLoader
from samebits.rank.data.planned_steps import PlannedSteps
from samebits.rank.data.stream import HOW_TO_SHUFFLE, PreparedStream, StreamedSteps, StreamPosition
from samebits.rank.data.stream_dataset import NOTHING_READ
from samebits.rank.data.uses import MASK
from samebits.rank.position.epoch_count import InsideEpoch
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.run_state import RunState
from samebits.rank.run.prepare.refusals import objection_to_steps
from samebits.rank.strategy.norm import has_synchronised_norm


def begin_epoch(run: RunState, loader: PreparedLoader, which: int, loop: int) -> PlannedSteps | StreamedSteps:
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


def _begin_planned(run: RunState, loader: PreparedLoader, which: int, loop: int) -> PlannedSteps:
    resumption = run.loop_state.resumption
    record, resumption.goes_on_order = resumption.goes_on_order, None
    plan = loader.plan_training(record if resumption.goes_on is not None else None)
    _agree(run, [plan.digest, plan.num_samples, len(plan.steps)])
    done = 0
    if (before := _place_before(run.loop_state, which, loop)) is not None:
        if before.order != plan.digest or before.done > len(plan.steps):
            raise UsageError(
                f"The state was saved after {before.done} steps of an epoch that had other samples, or another order.",
                "Use the same data set, batch size and seed, or another name for a new run.",
            )
        done = before.done
    _check_norms(run, [*plan.counts], plan.batch_size)
    for begin_epoch in run.components.observers.begin_epoch:
        begin_epoch(loader, plan)
    return PlannedSteps(loader, plan, run.components.step_timer.step + 1 - done, done, run.loop_state.epoch.skipped)


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
    for begin_epoch in run.components.observers.begin_epoch:
        begin_epoch(loader, None)
    steps = loader.training(
        epoch,
        StreamPosition(components.step_timer.step + 1 - done, done, order, loop_state.epoch.skipped),
        saved,
        with_state=components.states.follows_streams,
        elsewhere=components.streams.elsewhere,
    )
    if steps.goes_on_by and components.transport.rank == 0:
        say(f"{type(loader.dataset).__name__} resumes after {done} steps of the epoch by {steps.goes_on_by}.")
    return steps


def has_next(run: RunState, steps: PlannedSteps | StreamedSteps) -> bool:
    """Whether there is another step. Of a stream, the ranks compare what they have read for it.

    Raises:
        UsageError: on every rank, when they have read different samples, or a different number of them.
    """
    if isinstance(steps, StreamedSteps) and not run.config.mesh.asynchronous:
        try:
            block = steps.look()
        except Exception as error:
            run.components.states.take_after(error)
            raise
        # Each rank reads the stream itself. A data set that depends on the rank is caught before its samples are used.
        gathered = run.components.transport.all_gather_object([block.size, block.after], "run.steps samples", where())
        for rank, (size, after) in enumerate(gathered):
            if [size, after] != gathered[0]:
                raise UsageError(
                    f"The stream is not the same on every rank: in step {steps.done + 1} of the epoch, rank 0 has read "
                    f"{gathered[0][0]} samples and rank {rank} {'others' if size == gathered[0][0] else size}.",
                    f"Do not split by rank: samebits cuts for all ranks. {HOW_TO_SHUFFLE}",
                )
    return not steps.is_over


def _agree(run: RunState, mine: list[Any]) -> None:
    """Agree on `mine` (a hash of the order, the samples, the steps), and check that all ranks have the same models."""
    gathered = run.components.transport.all_gather_object(mine, "run.steps", where())
    for rank, other in enumerate(gathered):
        if other != gathered[0]:
            raise UsageError(
                f"The samples or their order are not the same on every rank: {other_order(gathered[0], rank, other)}.",
                "Do not shuffle, seed or split by rank in the sampler or the data set: samebits shuffles and cuts for "
                "all ranks.",
            )
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


def other_order(first: Sequence[Any], rank: int, other: Sequence[Any]) -> str:
    """What differs between the order of rank 0 and that of another one; each as for `_agree`."""
    if first[1:] == other[1:]:
        return f"rank {rank} takes others than rank 0, or in another order ({first[1]} samples in {first[2]} steps on both)"
    return f"rank 0 has {first[1]} samples in {first[2]} steps, rank {rank} has {other[1]} in {other[2]}"


def check_samples(run: RunState, steps: PlannedSteps | StreamedSteps) -> None:
    mine = [
        steps.mine if run.config.counts else [0, 0],
        run.components.checks.written(),
    ]
    gathered = run.components.transport.all_gather_object(mine, "epoch end", where())
    run.components.checks.say_written([paths for _, paths in gathered])
    count, hashes = (sum(numbers) for numbers in zip(*(used for used, _ in gathered), strict=True))
    # A sum over hashes of samples is the same whichever rank took which of them.
    if [count, hashes & MASK] != steps.whole:
        raise InternalError(f"The ranks trained on {count} samples of an epoch of {steps.num_samples}, or on others.")
    if isinstance(steps, StreamedSteps) and run.components.transport.world_size == 1 and not steps.read_again():
        say(
            "the stream had other samples when its beginning was read a second time, so another start or another number of ranks "
            f"has other bits. Give the data set no random numbers or clock of its own. {HOW_TO_SHUFFLE}"
        )
    run.loop_state.epoch.epochs_seen.append(steps.num_samples - steps.num_skipped)
