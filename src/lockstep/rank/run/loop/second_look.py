"""Fetching samples a second time, for `lockstep verify`: does a data set remember what it gave before?

A data set that augments once and keeps the result, writes to its samples, or mixes a sample with the one before gives
other samples when its process fetched others before, and that depends on the ranks. The first epoch may not show it,
because each sample comes once. So each rank fetches the samples of the first steps again, for other lanes than its own
(rank 0 for the last ones) and with other random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.protocol.layout.cut import Cut
from lockstep.protocol.layout.stream_key import Domain, stream_key
from lockstep.rank.data.lane_dataset import LaneIndices
from lockstep.rank.data.loader import LanePart, PreparedLoader
from lockstep.rank.data.order import EpochPlan
from lockstep.rank.recording.recorder import Witness
from lockstep.rank.run.run_state import RunState

NUM_STEPS = 2
"""How many steps are fetched again: those that every proof has recorded."""


def look_again_at_training(run: RunState, witness: Witness) -> None:
    """Fetch the first samples of every loader that has trained. No exchange; random streams stay where they are."""
    for loader in run.progress.loaders:
        if loader.standing.number in witness.plans:
            _look_again(run, witness, loader, "training")


def look_again_at_evaluation(run: RunState, witness: Witness) -> None:
    """Do the same with every loader that has evaluated."""
    for loader in run.progress.loaders:
        if loader.has_fetched("evaluation"):
            _look_again(run, witness, loader, "evaluation")


def _look_again(run: RunState, witness: Witness, loader: PreparedLoader, purpose: str) -> None:
    of = f" of loader {loader.standing.number + 1}" if len(run.progress.loaders) > 1 else ""
    label = f"{purpose} samples{of}"
    with run.machinery.streams.elsewhere():
        try:
            plan = witness.plans[loader.standing.number] if purpose == "training" else loader.plan_evaluation(0)
            for part, batch in _fetched(loader, purpose, plan):
                witness.samples_again(f"{label}, step {part.step + 1}, lane {part.lane}", batch)
        except Exception as error:  # noqa: BLE001 - a data set that gives its samples once; the script never asks twice
            witness.samples_again(f"{label}, the end", type(error).__name__)


def _fetched(loader: PreparedLoader, purpose: str, plan: EpochPlan) -> Iterator[tuple[LanePart, Any]]:
    standing = loader.standing
    cut = Cut(plan.batch_size, standing.num_lanes)
    found = []
    for step, samples in enumerate(plan.steps[:NUM_STEPS]):
        lanes = cut.lanes_of(samples)
        for mine in standing.lanes:
            lane = standing.num_lanes - 1 - mine
            key = stream_key(standing.seed, Domain.FETCH, "again", purpose, standing.number, step, lane)
            if lanes[lane]:
                found.append(LanePart(step, lane, LaneIndices(lanes[lane], key)))
    yield from zip(found, loader.fetch(found, evaluation=purpose == "evaluation"), strict=False)
