"""Plain iteration of a prepared loader: this rank's share of the batches, each sample once over all ranks, no padding.

One rank sees what a plain loop sees, and `len(loader)` is the number of batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.events import Kind
from samebits.protocol.journal.ring import Phase
from samebits.protocol.layout.stream_key import Domain
from samebits.rank.caller import where
from samebits.rank.data.loader import Batches, LanePart, PreparedLoader
from samebits.rank.data.stream import PreparedStream, StreamedShare
from samebits.rank.position.moment import LoopPosition, Region
from samebits.rank.position.run_state import RunState


def evaluate(run: RunState, loader: PreparedLoader, limit: int | None) -> Iterator[Any]:
    """The batches of this rank's lanes, of the loader's first `limit` ones; ranks may have different numbers of them, or none."""
    line = where()
    if run.loop_state.position.in_lane:
        raise UsageError(
            "A prepared loader was iterated inside another loop over batches, where ranks would see different samples.",
            "Evaluate between steps or after the epoch; to train, use run.steps(loader).",
        )
    if not any(loader is own for own in run.loop_state.prepared.loaders):
        raise UsageError(
            "This loader belongs to an earlier samebits.init.", "Pass the DataLoader to run.prepare again."
        )
    run.components.numerics.keep()
    outside, run.loop_state.position.is_counted = LoopPosition(run.loop_state.position.region), False
    failed = False
    before, began_s = run.components.step_timer.enter(Phase.EVALUATE, "evaluate"), time.monotonic()
    # A model in training mode would move its statistics by this rank's share only: they are put back afterwards.
    run.components.strategy.keep_buffers()
    with run.components.streams.elsewhere():
        share = _share(loader, run.components.step_timer.step, limit)
        run.components.checks.begin_evaluation()  # behind the sampler: what it exchanges puts no numbers together
        run.loop_state.evaluation.samples, run.loop_state.evaluation.digest = [], share.digest
        run.loop_state.evaluation.loader, loader.left_at, num_batches = loader, "", 0
        try:
            for part, batch in share:
                num_batches += 1
                run.loop_state.position.region, run.loop_state.position.lane = Region.EVALUATION, part.lane
                run.loop_state.position.num_samples = len(part.indices)
                run.loop_state.evaluation.samples.extend(part.indices)
                loader.evaluated = run.loop_state.evaluation.samples
                run.components.streams.enter(
                    Domain.LANE, "evaluation", run.components.step_timer.step, part.step, part.lane
                )
                with run.components.strategy.precision.inside():
                    yield batch
            num_seen, is_counted = len(run.loop_state.evaluation.samples), run.loop_state.position.is_counted
            run.components.checks.end_evaluation(line, num_seen, share.num_samples, is_counted=is_counted)
        except GeneratorExit:
            # Also behind this rank's last batch, which `if i == k: break` takes and does not use.
            _note_left(run, loader, line, num_batches)
            raise
        except Exception as error:
            failed = True
            run.components.states.take_after(error)
            raise
        finally:
            if not failed:
                # A script that leaves its loop early has evaluated too.
                run.note(Kind.EVALUATION, seconds=round(time.monotonic() - began_s, 3))
            run.components.checks.close_lane()
            run.loop_state.position.region, run.loop_state.position.lane = outside.region, -1
            _restore_buffers(run)
            run.components.step_timer.enter(before, "evaluated")


@dataclass
class _PlannedShare:
    """This rank's share of the batches of a data set with a length."""

    digest: str
    num_samples: int
    lanes: list[LanePart]
    fetched: Batches

    def __iter__(self) -> Iterator[tuple[LanePart, Any]]:
        for part in self.lanes:
            yield part, next(self.fetched)


def _share(loader: PreparedLoader, step: int, limit: int | None) -> _PlannedShare | StreamedShare:
    if isinstance(loader, PreparedStream):
        return loader.evaluation(step, limit)
    # [Note: whole batches are dealt to lanes]
    # Batches stay as the loader makes them, and go to the lanes in turn. So a tally adds the same numbers in the same order
    # on any number of ranks.
    plan = loader.plan_evaluation(step, limit)
    lanes = loader.share(plan)
    return _PlannedShare(plan.digest, plan.num_samples, lanes, loader.fetch(lanes, evaluation=True))


def _note_left(run: RunState, loader: PreparedLoader, line: str, num_batches: int) -> None:
    """The script left its loop: on another number of ranks, it would have seen other samples.

    What one rank sees is what is meant, so there only `verify` objects.
    """
    if run.components.transport.world_size == 1 and not run.config.purpose.records:
        return
    loader.left_at = line
    if run.loop_state.position.is_counted:
        run.loop_state.evaluation.tallied_until = line
    elif num_batches > 1:
        # The first batch of rank 0 is the loader's: a look at it is the same on any number of ranks.
        run.components.checks.left_evaluation(line)


def _restore_buffers(run: RunState) -> None:
    """Undo what BatchNorm in training mode did to its statistics, with other samples on each rank; say so once."""
    changed = run.components.strategy.restore_buffers()
    if changed and not run.loop_state.notices.training_mode:
        run.loop_state.notices.training_mode = True
        if run.components.transport.rank == 0:
            say(
                f"the model was in training mode while a prepared loader was iterated; {changed[0]} and "
                f"{len(changed) - 1} other buffers would have changed and were restored. Call model.eval() first."
            )
