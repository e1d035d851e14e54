"""Plain iteration of a prepared loader: this rank's share of the batches, each sample once over all ranks, none padded.

Batches are whole, as the loader makes them, and dealt to the lanes in turn. So one rank sees what a plain loop sees,
`len(loader)` is the number of batches, and a tally adds the same numbers in the same order on any number of ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from lockstep.caller import where
from lockstep.errors import UsageError
from lockstep.feed.loader import PreparedLoader
from lockstep.journal.record import Phase
from lockstep.layout.stream_key import Domain
from lockstep.process_group.default_group import num_exchanges
from lockstep.run.parts import Parts
from lockstep.run.position.region import Place, Region
from lockstep.run.watch.shares import Share, sentence


def evaluate(parts: Parts, loader: PreparedLoader) -> Iterator[Any]:
    """The batches of this rank's lanes; ranks may have different numbers of them, also none."""
    line = where()
    if parts.place.in_lane:
        raise UsageError(
            "A prepared loader was iterated inside another loop over batches, where each rank would see other samples. "
            "Evaluate between steps or after the epoch; to train, use run.steps(loader)."
        )
    if not any(loader is own for own in parts.loaders):
        raise UsageError("This loader belongs to an earlier lockstep.init. Pass the DataLoader to run.prepare again.")
    outside, parts.place.is_counted = Place(parts.place.region), False
    before = parts.ledger.enter(Phase.EVALUATE, "evaluate")
    parts.strategy.keep_buffers()
    parts.strangers.begin_lane()
    with parts.streams.elsewhere():
        plan = loader.plan_evaluation(parts.ledger.step)
        lanes = loader.share(plan)
        parts.shares.begin(num_exchanges())
        parts.evaluated, parts.evaluation = [], plan.digest()
        fetched = loader.fetch(lanes, evaluation=True)
        try:
            for part in lanes:
                batch = next(fetched)
                parts.place.region, parts.place.lane = Region.EVALUATION, part.lane
                parts.place.num_samples = len(part.indices)
                parts.evaluated.extend(part.indices)
                loader.evaluated = parts.evaluated
                parts.streams.enter(Domain.LANE, "evaluation", parts.ledger.step, part.step, part.lane)
                with parts.strategy.precision.inside():
                    yield batch
            parts.shares.end(Share(line, len(parts.evaluated), plan.num_samples, parts.place.is_counted))
        finally:
            parts.strangers.end_lane()
            parts.place.region, parts.place.lane = outside.region, -1
            _restore_buffers(parts)
            parts.ledger.enter(before, "evaluated")


def say_shares(parts: Parts) -> None:
    """Say of evaluations whose numbers stayed one rank's own; before a step, and at the end of the script."""
    for share in parts.shares.take(num_exchanges()):
        if parts.transport.rank == 0:
            print(f"lockstep: {sentence(share)}", file=sys.stderr)


def _restore_buffers(parts: Parts) -> None:
    """BatchNorm in training mode changes its statistics, by other samples on each rank: that is undone, and said once."""
    changed = parts.strategy.restore_buffers()
    if changed and not parts.said_training_mode:
        parts.said_training_mode = True
        if parts.transport.rank == 0:
            print(
                f"lockstep: the model was in training mode while a prepared loader was iterated; {changed[0]} and "
                f"{len(changed) - 1} other buffers would have changed and were restored. Call model.eval() first.",
                file=sys.stderr,
            )
