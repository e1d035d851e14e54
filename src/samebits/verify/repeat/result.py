"""What runs of a script without our calls show, as plain values: shown by `report`, printed as JSON by `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from samebits.verify.comparison import first_difference
from samebits.verify.evidence import Evidence, ItemAtStep, Kind, Recorded
from samebits.verify.repeat.operators import Parting
from samebits.verify.result import CANNOT_TELL


class Verdict(StrEnum):
    """What is known."""

    SAME = "same bits"
    DIFFERENT = "different bits"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Run:
    """One side."""

    label: str
    steps: int
    seconds: float
    spent: float
    """The part of its training time that the recording took."""
    is_cut: bool
    """Whether it was ended behind the last step."""
    is_normal: bool = True
    """Whether it ended as a process does; otherwise by `os._exit`."""


@dataclass(frozen=True)
class Apart:
    """Where two sides part first."""

    left: str
    """The label of one side."""
    right: str
    rank: int
    place: ItemAtStep
    values: tuple[str | None, str | None]
    norms: tuple[float, float] | None
    places: int
    """How many items of this step differ."""
    of: int
    """How many there are."""
    ended: str = ""
    """The label of the side that ended by itself before this step, where that is the difference."""


@dataclass(frozen=True)
class Tried:
    """A cause that was tried."""

    name: str
    advice: str
    helped: bool | None
    """None: a run with it failed."""
    until: str = ""
    """Where the two runs part then, if that is later than without it."""
    is_idle: bool = False
    """Whether they are the same, but as a run without it: by chance."""


@dataclass
class Repeated:
    """Filled by `repeat` as it goes."""

    program: str
    steps: int
    num_processes: int | None
    runs: list[Run] = field(default_factory=list)
    compared: int = 0
    """How many different items there are."""
    apart: Apart | None = None
    why: str = ""
    """Why nothing can be compared."""
    failed: str = ""
    """The label of the run because of which."""
    tried: list[Tried] = field(default_factory=list)
    parting: Parting | None = None
    parting_why: str = ""
    """Why the operator is not known although it was asked for."""
    recorded_step: int | None = None
    """The step whose operators were compared, in place of the bits of all steps."""
    is_before: bool = False
    """Whether bits differ before that step already."""
    against: str = ""
    """The file of the other side."""
    facts: tuple[str, ...] = ()
    """Conditions that differ between both sides, in words."""
    saved_to: str = ""
    kept: str = ""
    folder: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.why:
            return Verdict.CANNOT_TELL
        return Verdict.DIFFERENT if self.is_apart else Verdict.SAME

    @property
    def is_apart(self) -> bool:
        """Whether two sides differ."""
        return self.apart is not None or self.parting is not None or self.is_before

    @property
    def exit_code(self) -> int:
        return {Verdict.SAME: 0, Verdict.DIFFERENT: 1, Verdict.CANNOT_TELL: CANNOT_TELL}[self.verdict]

    def not_covered(self) -> list[str]:
        """What this says nothing about."""
        behind = f"what lies behind step {self.steps}" if any(run.is_cut for run in self.runs) else ""
        behind = f"steps other than step {self.recorded_step}" if self.recorded_step is not None else behind
        is_one = self.against or self.recorded_step is not None
        ranks = "ranks but 0" if is_one and (self.num_processes or 1) > 1 else ""
        others = "other numbers of processes (a script with samebits.init() has the same bits on any)"
        return [one for one in (behind, ranks, "what no optimizer updates", others) if one]

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        apart = self.apart
        return {
            "program": self.program,
            "compares": "runs with runs",
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "steps": self.steps,
            "processes": self.num_processes,
            "runs": [asdict(run) for run in self.runs],
            "difference": None if apart is None else _apart_as_json(apart),
            "why": self.why or None,
            "failed": self.failed or None,
            "tried": [asdict(one) for one in self.tried],
            "recorded_step": self.recorded_step,
            "differs_before": self.is_before,
            "operator": None if self.parting is None else asdict(self.parting),
            "operator_unknown": self.parting_why or None,
            "against": self.against or None,
            "conditions_differ": list(self.facts),
            "not_covered": self.not_covered(),
            "saved_to": self.saved_to or None,
            "folder": self.folder or None,
        }


def _apart_as_json(apart: Apart) -> dict[str, Any]:
    return {
        "left": apart.left,
        "right": apart.right,
        "rank": apart.rank,
        "step": apart.place.step,
        "when": apart.place.when,
        "item": apart.place.item,
        "layer": apart.place.layer,
        "kind": apart.place.kind,
        "values": list(apart.values),
        "norms": None if apart.norms is None else list(apart.norms),
        "items_of_the_step": apart.places,
        "of": apart.of,
        "ended": apart.ended or None,
    }


def compare(left: tuple[str, Evidence], right: tuple[str, Evidence]) -> Apart | None:
    """Where two sides part first: rank by rank, the earliest step wins; then one makes a step before which the other has ended."""
    found = []
    steps = min(_steps(left[1]), _steps(right[1]))
    ours, theirs = left[1].until(steps), right[1].until(steps)
    for rank in range(max(len(ours.ranks), len(theirs.ranks))):
        one, other = _with_like_states(_rank_of(ours, rank), _rank_of(theirs, rank))
        difference = first_difference([Evidence((one,)), Evidence((other,))])
        if difference is not None:
            place = difference.place
            of = sum(each.step == place.step for each in {**one, **other})
            found.append(
                Apart(
                    left[0], right[0], rank, place, (difference.left_value, difference.right_value),
                    _norms(place, ours.norms, theirs.norms), len(difference.places), of,
                )
            )  # fmt: skip
    return min(found, key=lambda apart: apart.place.step, default=None) or _ended_before(left, right, steps)


def _steps(evidence: Evidence) -> int:
    return max((place.step for rank in evidence.ranks for place in rank), default=0)


def _ended_before(left: tuple[str, Evidence], right: tuple[str, Evidence], steps: int) -> Apart | None:
    """The step behind `steps`, where one side made it and the other had come to its end."""
    for (ended, one), (_, other) in ((left, right), (right, left)):
        # One that was ended behind its last wanted step had begun another.
        goes_on = _steps(other) > steps or not other.end.reached
        if one.end.reached and _steps(one) == steps and goes_on:
            return Apart(left[0], right[0], 0, ItemAtStep(steps + 1, "script step"), (None, None), None, 1, 1, ended)
    return None


def how_far(apart: Apart, evidence: Evidence) -> tuple[int, int]:
    """How far two runs come before they part; a larger one is later."""
    places = list(_rank_of(evidence, apart.rank))
    return apart.place.step, places.index(apart.place) if apart.place in places else len(places)


def _with_like_states(one: Recorded, other: Recorded) -> tuple[Recorded, Recorded]:
    """Both without the optimizer's state of steps in which only one recorded it, because it was asked for fewer steps or ended."""
    left, right = ({place.step for place in each if place.kind is Kind.OPTIMIZER} for each in (one, other))
    alone = left ^ right
    if not alone:
        return one, other
    ours, theirs = (
        {place: value for place, value in each.items() if place.kind is not Kind.OPTIMIZER or place.step not in alone}
        for each in (one, other)
    )
    return ours, theirs


def _rank_of(evidence: Evidence, rank: int) -> Recorded:
    return evidence.ranks[rank] if rank < len(evidence.ranks) else {}


def _norms(
    place: ItemAtStep, ours: Mapping[ItemAtStep, float], theirs: Mapping[ItemAtStep, float]
) -> tuple[float, float] | None:
    return (ours[place], theirs[place]) if place in ours and place in theirs else None
