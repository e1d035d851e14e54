"""`run.state`: plain values of the script that belong to every state, as attributes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from torch import Tensor

from lockstep.errors import UsageError
from lockstep.rank.checkpoint.state.exact_json import encode
from lockstep.rank.run.position.made_options import MadeOptions


class KeptValues:
    """Values by name: `run.state.best = 0.91`. Its `vars` are the values.

    Kept: numbers, texts, switches, None, tensors, and tuples, lists, sets and dictionaries of them. What is assigned
    before a state is loaded is a first value, which the state's own replaces.

    Args:
        has_begun: whether the first loop over epochs or steps has begun.
        made: gets the first values.
    """

    __slots__ = ("__dict__", "_has_begun", "_loaded", "_made")
    _has_begun: Callable[[], bool]
    _made: MadeOptions
    _loaded: frozenset[str]

    def __init__(self, has_begun: Callable[[], bool], made: MadeOptions) -> None:
        object.__setattr__(self, "_has_begun", has_begun)
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_loaded", frozenset())

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise UsageError(
                f"run.state.{name} begins with an underscore, and so is not saved.", "Use a name without one."
            )
        if name in self._loaded and not self._has_begun():
            raise UsageError(
                f"run.state.{name} was loaded by run.load_state, and an assignment before the first epoch would lose it.",
                "Give it its first value before run.load_state.",
            )
        try:
            encode(value, f"run.state.{name}", lambda path, _: path)
        except UsageError as error:
            raise UsageError(
                error.problem,
                "Keep what it is made of (numbers, texts, lists, dictionaries, tensors), or name an object that has a "
                f"state_dict: run.track({name}=...).",
            ) from None
        if not self._has_begun():
            self._made.add_value(name, value)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:  # only for what is not there
        raise AttributeError(
            f"run.state.{name} has no value. Assign a first one before the loop: run.state.{name} = 0."
        )

    def __repr__(self) -> str:
        return f"run.state({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def restore(values: KeptValues, saved: Mapping[str, Any]) -> None:
    """Take the values of a state; others stay. Lists, dictionaries and tensors that are there are filled in place."""
    for name, value in copy.deepcopy(dict(saved)).items():
        own = vars(values).get(name)
        if type(own) is list and type(value) is list:
            own[:] = value
        elif type(own) is dict and type(value) is dict:
            own.clear()
            own.update(value)
        elif (
            isinstance(own, Tensor)
            and isinstance(value, Tensor)
            and (own.shape, own.dtype) == (value.shape, value.dtype)
        ):
            own.detach().copy_(value)
        else:
            vars(values)[name] = value
    object.__setattr__(values, "_loaded", frozenset(saved))


Sums = dict[str, dict[int, tuple[float, float]]]
"""By name and lane: the weighted sum, and the sum of the weights."""


class Keeps(Protocol):
    """A tally."""

    is_unheard: bool
    """Whether this rank added something in an evaluation that the others have not received."""

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
        """Continue with what `encode` returned."""
        self._outside.restore(saved["outside"])
        self._body.restore(saved["body"])

    def changed(self) -> None:
        """A tally was reset, or has received what evaluations added."""
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
