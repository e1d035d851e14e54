"""The first operator at which two numbers of ranks part: `--where` for a script with lanes.

Both sides make the step that differs once more, and write down every operator of it. A lane computes the same wherever it is
carried, so lanes are compared one by one, and what is outside of lanes with each rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samebits.launcher.trials.trials import Trial, Trials
from samebits.protocol.recording import AT_END, BODY
from samebits.protocol.run_folder import read_json
from samebits.verify.comparison import Difference
from samebits.verify.evidence import Kind
from samebits.verify.explanation import Compared
from samebits.verify.repeat.operators import Operator, Parting, Why, first_parting, read_operators, with_values

Place = tuple[int, int]
"""How many passes of the step had begun, and the lane."""


@dataclass(frozen=True)
class Part:
    """The operators of one rank at one place."""

    rank: int
    operators: Sequence[Operator]


Places = Mapping[Place, Sequence[Part]]
"""Of a lane the one rank that carries it, of a step's body all ranks."""


@dataclass(frozen=True)
class Found:
    """Where two runs part: the place, and the rank on each side."""

    parting: Parting
    place: Place
    ranks: tuple[int, int]


def find_operator(difference: Difference, compared: Sequence[Compared], trials: Trials, lanes: int) -> Parting | str:
    """Make the step again on both sides; where they part, or a sentence that says why that is not known."""
    place = difference.place
    if place.kind is Kind.INITIAL or place.step == AT_END:
        return f"The difference is no step's: {place}. Operators are recorded in steps."
    pair = _sides(difference, compared)
    if pair is None:
        return "A lane is compared with itself on another number of ranks, but there is only one: give --ranks 1,2."
    sides = [_recorded(one, trials, lanes, place.step, None) for one in pair]
    for side in sides:
        if isinstance(side, str):
            return side
    trials_made = [side for side in sides if not isinstance(side, str)]
    is_cut = any("zero1" in str(read_json(trial.folder.decided).get("strategy")) for trial in trials_made)
    ours, theirs = (places_of(trial, lanes_only=is_cut) for trial in trials_made)
    if why := _incomparable(ours, theirs):
        return why
    found = first_place(ours, theirs, place.step)
    if found is None:
        cut = " Of zero1's update each rank computes a part, which is not compared." if is_cut else ""
        return (
            f"In two more runs every operator of step {place.step} had the same inputs and results in every lane, "
            f"so what differs is made outside of them, or not each time.{cut}"
        )
    found = replace(found, parting=replace(found.parting, sides=(pair[0].label, pair[1].label)))
    return _with_values(found, pair, trials, lanes)


def _sides(difference: Difference, compared: Sequence[Compared]) -> tuple[Compared, Compared] | None:
    """Two runs on other numbers of ranks; among the replicas of one run, that run and another."""
    right = compared[difference.right.run]
    left = compared[difference.left.run]
    if left is right:
        others = [one for one in compared if one.num_ranks not in (None, right.num_ranks)]
        left = min(others, key=lambda one: one.num_ranks or 0, default=right)
    is_pair = left.num_ranks is not None and right.num_ranks is not None and left is not right
    return (left, right) if is_pair else None


def _recorded(one: Compared, trials: Trials, lanes: int, step: int, values_of: tuple[str, int] | None) -> Trial | str:
    what = "the values" if values_of is not None else "each operator"
    wanted = {"steps": step, "operators_of": step, **({"values_of": values_of} if values_of is not None else {})}
    assert one.num_ranks is not None
    trial = trials.run(f"{one.label}, {what} of step {step}", one.num_ranks, lanes, wanted)
    if trial.outcome.exit_code:
        return f"The run that records operators failed: {trial.outcome.block or trial.outcome.exit_code}"
    return trial


def _file(trial: Trial, name: str, rank: int) -> Path:
    return trial.folder.evidence(rank).with_name(f"{name}-{rank:05d}.json{'l' if name == 'operators' else ''}")


def places_of(trial: Trial, *, lanes_only: bool = False) -> Places:
    """What all ranks of a run wrote, by place."""
    found: dict[Place, list[Part]] = {}
    for rank in range(trial.num_processes):
        by_place: dict[str, list[Operator]] = {}
        for operator in read_operators(_file(trial, "operators", rank)):
            by_place.setdefault(operator.place, []).append(operator)
        for word, operators in by_place.items():
            passes, lane = map(int, word.split())
            if lane != BODY or not lanes_only:
                found.setdefault((passes, lane), []).append(Part(rank, operators))
    return found


def _incomparable(ours: Places, theirs: Places) -> str:
    if not ours and not theirs:
        return "No operator of the step was recorded."
    if any(len(parts) > 1 for side in (ours, theirs) for (_, lane), parts in side.items() if lane != BODY):
        return "Several ranks compute one lane, as stages of a model do, so a lane has no one order of operators."
    return ""


def first_place(ours: Places, theirs: Places, step: int) -> Found | None:
    """The first place at which two runs part: what is before the first pass, its lanes, what is behind it, the lanes of the next."""
    for passes in sorted({place[0] for place in (*ours, *theirs)}):
        lanes = sorted(lane for number, lane in {*ours, *theirs} if number == passes and lane != BODY)
        apart = [found for lane in lanes if (found := _at((passes, lane), ours, theirs, step)) is not None]
        if apart:
            numbers = tuple(found.place[1] for found in apart)
            return replace(apart[0], parting=replace(apart[0].parting, lane=numbers[0], lanes=numbers))
        found = _at((passes, BODY), ours, theirs, step)
        if found is not None:
            return found
    return None


def _at(place: Place, ours: Places, theirs: Places, step: int) -> Found | None:
    nobody = [Part(0, [])]
    left = ours.get(place, nobody)[0]
    for right in theirs.get(place, nobody):
        parting = first_parting(left.operators, right.operators, step)
        if parting is not None:
            return Found(parting, place, (left.rank, right.rank))
    return None


def _with_values(found: Found, pair: tuple[Compared, Compared], trials: Trials, lanes: int) -> Parting:
    """The same with how far apart the results are, from one more run of each side."""
    parting = found.parting
    if parting.why is not Why.OPERATOR:
        return parting
    files = []
    for one, rank in zip(pair, found.ranks, strict=True):
        at = (" ".join(map(str, found.place)), parting.number)
        trial = _recorded(one, trials, lanes, parting.step, at)
        if isinstance(trial, str):
            return parting
        files.append(_file(trial, "values", rank))
    return with_values(parting, *files)
