"""Where two recordings differ first. Pure functions of what was recorded.

Ranks of one run are compared with its rank 0, each run with the first one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from samebits.protocol.recording import AT_END
from samebits.verify.evidence import Evidence, ItemAtStep, Kind, Recorded


@dataclass(frozen=True)
class Side:
    """A recording: that of `rank` in run number `run`."""

    run: int
    rank: int


@dataclass(frozen=True)
class Difference:
    """The first place where two recordings differ."""

    left: Side
    right: Side
    place: ItemAtStep
    left_value: str | None
    """None: this recording has no such item."""
    right_value: str | None
    places: tuple[ItemAtStep, ...]
    """All places of the same step that differ, in order; the first of them is `place`."""

    @property
    def among_replicas(self) -> bool:
        """Whether two ranks of the same run differ."""
        return self.left.run == self.right.run


def first_difference(runs: Sequence[Evidence]) -> Difference | None:
    """The first difference: among the replicas of a run, else between a run and the first one; the earliest step wins.

    Invariant: None exactly when all recordings are equal, apart from script items that only one rank has.
    """
    # [Note: why replicas are compared first]
    # Ranks of one run carry replicas. A difference among them is closer to its cause than one between runs, which it brings
    # about.
    found = [
        _difference(Side(number, 0), Side(number, rank), run.ranks[0], run.ranks[rank])
        for number, run in enumerate(runs)
        for rank in range(1, len(run.ranks))
    ]
    among = [difference for difference in found if difference is not None]
    if among:
        return min(among, key=lambda difference: difference.place.step)
    found = [
        _difference(Side(0, 0), Side(number, 0), runs[0].ranks[0], run.ranks[0])
        for number, run in enumerate(runs[1:], 1)
    ]
    between = [difference for difference in found if difference is not None]
    return min(between, key=lambda difference: difference.place.step) if between else None


def _difference(left: Side, right: Side, ours: Recorded, theirs: Recorded) -> Difference | None:
    replicas = left.run == right.run
    places = [place for place in _ordered(ours, theirs) if _differs(place, ours, theirs, replicas)]
    if not places:
        return None
    step = min(place.step for place in places)
    same_step = tuple(sorted((place for place in places if place.step == step), key=_spread))
    first = same_step[0]
    return Difference(left, right, first, ours.get(first), theirs.get(first), same_step)


def _spread(place: ItemAtStep) -> int:
    """Among items of a step, which otherwise stay in their order: models are made before all else, and evaluated after it."""
    return 0 if place.kind is Kind.INITIAL else 1 + place.item.startswith("value run.gather at ")


def _ordered(ours: Recorded, theirs: Recorded) -> list[ItemAtStep]:
    return [*ours, *(place for place in theirs if place not in ours)]


def _differs(place: ItemAtStep, ours: Recorded, theirs: Recorded, replicas: bool) -> bool:
    """Whether both differ; what a script keeps on one rank (`if run.is_main: ...`) does not count among replicas."""
    if replicas and place.kind is Kind.SCRIPT and (place not in ours or place not in theirs):
        return False
    return ours.get(place) != theirs.get(place)


@dataclass(frozen=True)
class Cell:
    """All values of a row in one run, over all steps."""

    digest: str
    """The first 8 hexadecimal digits of their hash, from rank 0; empty when there are none."""
    num_items: int
    """The number of different names."""
    differs_at: int | None
    """The first step at which they differ from the first run, or among the run's ranks."""
    rank: int | None = None
    """The rank that differs from rank 0, if the run's ranks differ among themselves."""


def cell(belongs: Callable[[ItemAtStep], bool], run: Evidence, reference: Evidence) -> Cell:
    """Compare the items that belong to a row in `run` with those in `reference`, which may be the same."""
    mine = _of(belongs, run.ranks[0])
    digest = hashlib.blake2b(digest_size=4)
    # Sorted: an equal digest means equal values, in whatever order ranks recorded them.
    for place, value in sorted(mine.items(), key=lambda item: (item[0].step, item[0].item)):
        digest.update(f"{place.step} {place.item} {value}\n".encode())
    names = len({place.item for place in mine})
    word = digest.hexdigest() if mine else ""
    # Replicas that differ count before the first run: then there is no one value to compare with it.
    for rank in range(1, len(run.ranks)):
        found = _difference(Side(0, 0), Side(0, rank), mine, _of(belongs, run.ranks[rank]))
        if found is not None:
            return Cell(word, names, found.place.step, rank)
    found = _difference(Side(0, 0), Side(1, 0), _of(belongs, reference.ranks[0]), mine)
    return Cell(word, names, found.place.step if found is not None else None)


def _of(belongs: Callable[[ItemAtStep], bool], recorded: Recorded) -> Recorded:
    return {place: value for place, value in recorded.items() if belongs(place)}


def comparable(runs: Sequence[Evidence]) -> list[Evidence]:
    """The recordings without what cannot be the same: if some run did not reach its end, others recorded more there.

    Invariant: what was recorded in steps stays; if every run reached its end, everything does.
    """
    if all(run.end.reached for run in runs):
        return list(runs)
    everywhere = set.intersection(*(set(run.ranks[0]) for run in runs))

    def stays(place: ItemAtStep) -> bool:
        return place.step != AT_END or place.kind is Kind.AGAIN or place in everywhere

    return [replace(run, ranks=tuple(_of(stays, rank) for rank in run.ranks)) for run in runs]


END, AGAIN = "end", "again"
NAMES = {
    Kind.INITIAL: "initial values",
    Kind.RESUMED: "resumes with",
    Kind.SAMPLES: "samples",
    Kind.LOSS: "losses",
    Kind.GRADIENT: "gradients",
    Kind.NORM: "gradient norms",
    Kind.BUFFER: "buffers",
    Kind.PARAMETER: "parameters",
    Kind.OPTIMIZER: "optimizer",
    Kind.SCRIPT: "script's own",
    Kind.VALUE: "logged values",
}
"""Rows of what was recorded in steps."""
ONE_PER_STEP = (Kind.LOSS, Kind.NORM)


@dataclass(frozen=True)
class Row:
    """Items that are compared over all runs; `cells` are in the order of the runs."""

    key: str
    """The kind of item; "end" for everything after the last step, "again" for samples that were fetched once more."""
    title: str
    num_items: int
    cells: tuple[Cell, ...]

    @property
    def in_each_step(self) -> bool:
        """Whether its items come in every step."""
        return self.key in NAMES and self.key not in (Kind.INITIAL, Kind.RESUMED)


def rows_of(runs: Sequence[Evidence]) -> list[Row]:
    """The rows that have anything in them; the first run is what the others are compared with."""
    found = [_row(kind, name, _of_steps(kind), runs) for kind, name in NAMES.items()]
    found.append(_row(END, "at the end", lambda place: place.step == AT_END and place.kind is not Kind.AGAIN, runs))
    found.append(_row(AGAIN, "samples again", lambda place: place.kind is Kind.AGAIN, runs))
    return [row for row in found if row.num_items]


def _of_steps(kind: Kind) -> Callable[[ItemAtStep], bool]:
    return lambda place: place.kind is kind and place.step != AT_END


def _row(key: str, name: str, belongs: Callable[[ItemAtStep], bool], runs: Sequence[Evidence]) -> Row:
    cells = tuple(cell(belongs, run, runs[0]) for run in runs)
    count = max(one.num_items for one in cells)
    return Row(key, name if key in ONE_PER_STEP and count == 1 else f"{name} ({count})", count, cells)
