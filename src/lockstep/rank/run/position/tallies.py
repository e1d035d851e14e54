"""The tallies of a run, by the order in which the script made them, so that a state can hold what they have added up.

The script makes those of its outside once, and those of an epoch's body in every epoch. A resumed script makes them again
in the same order, up to where the steps of the epoch begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

Sums = dict[str, dict[int, tuple[float, float]]]
"""By name and lane: the weighted sum, and the sum of the weights."""


class Keeps(Protocol):
    """A tally."""

    is_unheard: bool
    """Whether this rank added something in an evaluation that the others have not heard of."""

    def known(self) -> Sums:
        """What every rank knows: what was added in lanes of steps that have ended."""

    def take_new(self) -> Sums:
        """What this rank added in lanes since the last call."""

    def hear(self, sums: Sums) -> None:
        """Take what some rank has added in lanes."""


@dataclass
class _Made:
    """Tallies made in one place."""

    count: int = 0
    before_steps: int = 0
    """How many were made when the steps began."""
    alive: WeakValueDictionary[int, Keeps] = field(default_factory=WeakValueDictionary)
    saved: Sequence[Mapping[str, Mapping[str, Sequence[float]]]] = ()
    """Of a loaded state, by number."""

    def add(self, tally: Keeps) -> None:
        self.alive[self.count] = tally
        self._restore(self.count)
        self.count += 1

    def restore(self, saved: Sequence[Any]) -> None:
        self.saved = saved
        for number in list(self.alive):
            self._restore(number)

    def _restore(self, number: int) -> None:
        if number < len(self.saved):
            self.alive[number].hear(_decoded(self.saved[number]))

    def is_unheard(self) -> bool:
        known = self.alive.items() if self.before_steps else ()
        return any(tally.is_unheard for number, tally in known if number < self.before_steps)

    def told(self) -> list[dict[str, Any]]:
        found = [self.alive.get(number) for number in range(self.before_steps)]
        return [_encoded(tally.known()) if tally is not None else {} for tally in found]


class Tallies:
    """All tallies of one run."""

    def __init__(self) -> None:
        self._outside, self._body = _Made(), _Made()
        self.changes = 0
        """Grows when something that every rank knows changes outside of a step's lanes."""

    def add(self, tally: Keeps, *, in_body: bool) -> None:
        """Note a new one; it begins with what a loaded state has for it."""
        (self._body if in_body else self._outside).add(tally)

    def enter_body(self) -> None:
        """A body of `run.epochs` begins."""
        self._body = _Made(saved=self._body.saved)
        self._outside.before_steps = self._outside.count

    def begin_steps(self) -> None:
        """`run.steps` begins: what is made later belongs to a step."""
        for made in (self._outside, self._body):
            made.before_steps, made.saved = made.count, ()

    def encode(self, *, inside: bool) -> dict[str, Any]:
        """What a state holds; the same on every rank. Between epochs, not `inside` one, a body's are over."""
        return {"outside": self._outside.told(), "body": self._body.told() if inside else []}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on with what `encode` returned."""
        self._outside.restore(saved["outside"])
        self._body.restore(saved["body"])

    def changed(self) -> None:
        """A tally was reset, or has heard what evaluations added."""
        self.changes += 1

    @property
    def are_unheard(self) -> bool:
        """Whether this rank added something outside of steps that only it knows, and that a state would hold."""
        return any(made.is_unheard() for made in (self._outside, self._body))

    def take_new(self) -> dict[int, list[Any]]:
        """What this rank added in the lanes of the last pass: by lane, a list of place, number, name and sums."""
        found: dict[int, list[Any]] = {}
        for place, made in enumerate((self._outside, self._body)):
            for number, tally in sorted(made.alive.items() if made.count else ()):
                for name, lane, pair in _items(tally.take_new()):
                    found.setdefault(lane, []).append([place, number, name, *pair])
        return found

    def hear(self, notes: Mapping[int, Any]) -> None:
        """Take what all ranks added in the lanes of a pass: by lane, what they logged, and what `take_new` returned."""
        for lane, (_, told) in notes.items():
            self._hear(lane, told)

    def _hear(self, lane: int, told: Sequence[Any]) -> None:
        for place, number, name, total, weight in told:
            tally = (self._outside, self._body)[place].alive.get(number)
            if tally is not None:
                tally.hear({name: {lane: (total, weight)}})


def _items(sums: Sums) -> Iterator[tuple[str, int, tuple[float, float]]]:
    for name, lanes in sums.items():
        for lane, pair in lanes.items():
            yield name, lane, pair


def _encoded(sums: Sums) -> dict[str, Any]:
    return {name: {str(lane): list(pair) for lane, pair in lanes.items()} for name, lanes in sums.items()}


def _decoded(saved: Mapping[str, Mapping[str, Sequence[float]]]) -> Sums:
    return {
        name: {int(lane): (float(pair[0]), float(pair[1])) for lane, pair in lanes.items()}
        for name, lanes in saved.items()
    }
