"""A closer look at the first difference.

Both sides are run again, up to the step where they part, and the values of the first item are compared element by
element. A file cannot be run again; its norms show how far away it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samebits.launcher.trials.trials import Trial, Trials
from samebits.protocol.recording import AT_END
from samebits.verify.cause import Symptoms, usual_cause
from samebits.verify.comparison import Difference, Side
from samebits.verify.deviation import Deviation, constant_ratio, deviation, read_values
from samebits.verify.evidence import Evidence, Kind, is_hash, is_nan, number_of, read_evidence, readable
from samebits.verify.lane_order import LaneOrder, Order, not_tried
from samebits.verify.result import Explained


@dataclass(frozen=True)
class Compared:
    """One of the recordings that are compared."""

    label: str
    num_ranks: int | None
    """None: a file."""
    evidence: Evidence
    trial: Trial | None
    """The run that made it; None: a file."""


@dataclass(frozen=True)
class Scene:
    """What it takes to explain a difference."""

    trials: Trials
    """Makes runs again."""
    lanes: int
    """Those of all runs."""
    wanted: Mapping[str, Any]
    """What the runs were asked to record."""
    facts: tuple[str, ...] = ()
    """What differs between where the file was written and here."""
    lane_order: LaneOrder = field(default_factory=lambda: not_tried(""))
    """What became of one rank's bits where its lanes came in another order."""


def explain(difference: Difference, compared: Sequence[Compared], scene: Scene) -> Explained:
    """Run both sides again, and say how far apart they are and what the usual cause is."""
    sides = [compared[side.run] for side in (difference.left, difference.right)]
    again, repeatable = _run_again(difference, compared, scene)
    deviated = _deviation(difference, again)
    symptoms = Symptoms(
        place=difference.place,
        ranks=(sides[0].num_ranks or 0, sides[1].num_ranks or 0),
        among_replicas=difference.among_replicas,
        ratio=deviated.ratio if deviated is not None else None,
        settings=_settings(difference, compared),
        relative=deviated.max_relative if deviated is not None else None,
        only_one_side=difference.left_value is None or difference.right_value is None,
        repeatable=repeatable,
        only_nan=_only_nan(difference, deviated),
        first_nan=next((one.evidence.first_nan for one in sides if one.evidence.first_nan), None),
        since=sides[1].label if sides[1].trial is None else "",
        facts=scene.facts,
        hands_on=scene.lane_order.found is Order.DIFFERS,
        handed_on=scene.lane_order.handed_on,
    )
    return Explained(
        difference=difference,
        left=_side(difference, difference.left, compared),
        right=_side(difference, difference.right, compared),
        deviation=deviated,
        values=both_texts(difference.left_value, difference.right_value),
        cause=usual_cause(symptoms),
        repeatable=repeatable,
        norms=_norms(difference, compared),
    )


def expected(difference: Difference, compared: Sequence[Compared], why: str) -> Explained:
    """A difference that the strategy brings by design: nothing is run again, and nobody is to blame."""
    return Explained(
        difference=difference,
        left=_side(difference, difference.left, compared),
        right=_side(difference, difference.right, compared),
        deviation=None,
        values=both_texts(difference.left_value, difference.right_value),
        cause=why,
        repeatable=False,
    )


def _run_again(difference: Difference, compared: Sequence[Compared], scene: Scene) -> tuple[Mapping[int, Trial], bool]:
    """Make the runs with captured values, by run number; and whether they gave the same bits as the first time."""
    place = difference.place
    capture = {"capture": {"step": place.step, "item": place.item}}
    # No further than the step where they part. After the last step that is the end of the script.
    wanted = {**scene.wanted, **capture} if place.step == AT_END else {"steps": max(place.step, 1), **capture}
    again: dict[int, Trial] = {}
    repeatable = True
    for number in sorted({difference.left.run, difference.right.run}):
        one = compared[number]
        if one.num_ranks is not None:
            trial = scene.trials.run(f"{one.label} again", one.num_ranks, scene.lanes, wanted)
            again[number] = trial
            # A script that gives other bits each time has no cause that depends on the ranks.
            repeated = read_evidence(trial.folder, trial.num_processes)
            repeatable = repeatable and _agrees_up_to(place.step, one.evidence, repeated)
    return again, repeatable


def _agrees_up_to(step: int, first: Evidence, again: Evidence) -> bool:
    return all(
        {place: value for place, value in ours.items() if place.step < step}
        == {place: value for place, value in theirs.items() if place.step < step}
        and all(theirs.get(place) == value for place, value in ours.items() if place.step == step and place in theirs)
        for ours, theirs in zip(first.ranks, again.ranks, strict=True)
    )


def _deviation(difference: Difference, again: Mapping[int, Trial]) -> Deviation | None:
    left, right = difference.left_value, difference.right_value
    if left is None or right is None:
        return None
    numbers = number_of(left), number_of(right)
    if numbers[0] is not None and numbers[1] is not None:
        return _deviation_of_numbers(numbers[0], numbers[1])
    captured = [
        read_values(again[side.run].folder, side.rank) if side.run in again else None
        for side in (difference.left, difference.right)
    ]
    if captured[0] is None or captured[1] is None:
        return None
    return deviation(captured[0], captured[1])


def _deviation_of_numbers(left: float, right: float) -> Deviation:
    gap, scale = abs(left - right), max(abs(left), abs(right))
    return Deviation(1, 1, gap, gap / scale if scale else 0.0, constant_ratio([left], [right]))


def _only_nan(difference: Difference, deviated: Deviation | None) -> bool:
    """Whether both sides are NaN and differ only in the bits of the NaN, as far as can be known."""
    both = all(value is not None and is_nan(value) for value in (difference.left_value, difference.right_value))
    return both and (deviated is None or deviated.only_nan)


def _settings(difference: Difference, compared: Sequence[Compared]) -> dict[str, tuple[str, str]]:
    """Optimizer settings that differ in the step: those whose value is not the hash of a tensor."""
    left = compared[difference.left.run].evidence.ranks[difference.left.rank]
    right = compared[difference.right.run].evidence.ranks[difference.right.rank]
    return {
        place.item: texts
        for place in difference.places
        if place.kind is Kind.OPTIMIZER and (texts := both_texts(left.get(place), right.get(place))) is not None
    }


def _norms(difference: Difference, compared: Sequence[Compared]) -> tuple[float, float] | None:
    """The norms of both sides, if one is a file."""
    left, right = (compared[side.run] for side in (difference.left, difference.right))
    place = difference.place
    if right.trial is not None or place not in left.evidence.norms or place not in right.evidence.norms:
        return None
    return left.evidence.norms[place], right.evidence.norms[place]


def both_texts(left: str | None, right: str | None) -> tuple[str, str] | None:
    """Both values for a person, or None for tensors, of which only hashes are known."""
    if any(value is not None and is_hash(value) for value in (left, right)):
        return None
    return readable(left), readable(right)


def _side(difference: Difference, side: Side, compared: Sequence[Compared]) -> str:
    one = compared[side.run]
    return f"rank {side.rank} of {one.num_ranks}" if difference.among_replicas else one.label
