"""A closer look at the first difference.

Both sides are run again, up to the step where they part, and the values of the first item are compared element by
element. Whether they part again at the same place says whether the script is repeatable at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.prove.cause import Symptoms, usual_cause
from lockstep.prove.comparison import Difference, Side
from lockstep.prove.evidence import Evidence, Kind, number_of, read_evidence
from lockstep.prove.findings import Explained
from lockstep.prove.trials import Trial, Trials
from lockstep.prove.values import Deviation, constant_ratio, deviation, read_values

HASH_DIGITS = 32


def explain(
    difference: Difference, made: Sequence[Trial], evidence: Sequence[Evidence], trials: Trials, lanes: int
) -> Explained:
    """Run both sides again, and say how far they are apart and what the usual cause is.

    Args:
        difference: the first one.
        made: the compared runs.
        evidence: what they recorded.
        trials: makes the runs again.
        lanes: of all runs.
    """
    place = difference.place
    again, repeatable = _run_again(difference, made, evidence, trials, lanes)
    deviated = _deviation(difference, again)
    ranks = (made[difference.left.run].num_ranks, made[difference.right.run].num_ranks)
    symptoms = Symptoms(
        kind=place.kind,
        step=place.step,
        ranks=ranks,
        among_replicas=difference.among_replicas,
        ratio=deviated.ratio if deviated is not None else None,
        settings=_settings(difference, evidence),
        only_one_side=difference.left_value is None or difference.right_value is None,
        repeatable=repeatable,
    )
    return Explained(
        difference=difference,
        left=_side(difference, difference.left, made),
        right=_side(difference, difference.right, made),
        deviation=deviated,
        values=_texts(difference.left_value, difference.right_value),
        cause=usual_cause(symptoms),
        repeatable=repeatable,
    )


def expected(difference: Difference, made: Sequence[Trial], why: str) -> Explained:
    """A difference that the strategy brings by nature: nothing is run again, and nobody is to blame."""
    return Explained(
        difference=difference,
        left=_side(difference, difference.left, made),
        right=_side(difference, difference.right, made),
        deviation=None,
        values=_texts(difference.left_value, difference.right_value),
        cause=why,
        repeatable=False,
    )


def _run_again(
    difference: Difference, made: Sequence[Trial], evidence: Sequence[Evidence], trials: Trials, lanes: int
) -> tuple[Mapping[int, Trial], bool]:
    """The runs with the captured values, by number of run; and whether they gave the same bits as the first time."""
    place = difference.place
    wanted: Mapping[str, Any] = {"steps": place.step, "capture": {"step": place.step, "item": place.item}}
    again: dict[int, Trial] = {}
    repeatable = True
    for number in sorted({difference.left.run, difference.right.run}):
        trial = trials.run(f"{made[number].label} again", made[number].num_ranks, lanes, wanted)
        again[number] = trial
        repeated = read_evidence(trial.folder, trial.num_processes)
        repeatable = repeatable and _agrees_up_to(place.step, evidence[number], repeated)
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
    captured = [read_values(again[side.run].folder, side.rank) for side in (difference.left, difference.right)]
    if captured[0] is None or captured[1] is None:
        return None
    return deviation(captured[0], captured[1])


def _deviation_of_numbers(left: float, right: float) -> Deviation:
    gap, scale = abs(left - right), max(abs(left), abs(right))
    return Deviation(1, 1, gap, gap / scale if scale else 0.0, constant_ratio([left], [right]))


def _settings(difference: Difference, evidence: Sequence[Evidence]) -> dict[str, tuple[str, str]]:
    """Optimizer settings that differ in the step: what is no hash of a tensor."""
    left = evidence[difference.left.run].ranks[difference.left.rank]
    right = evidence[difference.right.run].ranks[difference.right.rank]
    return {
        place.item: texts
        for place in difference.places
        if place.kind is Kind.OPTIMIZER and (texts := _texts(left.get(place), right.get(place))) is not None
    }


def _texts(left: str | None, right: str | None) -> tuple[str, str] | None:
    """Both values for a person, or None for tensors, of which only hashes are known."""
    if any(value is not None and number_of(value) is None and len(value) == HASH_DIGITS for value in (left, right)):
        return None
    return _text(left), _text(right)


def _text(value: str | None) -> str:
    if value is None:
        return "nothing"
    number = number_of(value) if "0x" in value else None
    return value if number is None else repr(number)


def _side(difference: Difference, side: Side, made: Sequence[Trial]) -> str:
    trial = made[side.run]
    return f"rank {side.rank} of {trial.num_ranks}" if difference.among_replicas else trial.label
