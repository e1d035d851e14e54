"""What a turn of a loop works on: values, the places where they are, and who judges them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.run.script.objects import NEW

Place = tuple[str, int, str]
GRADIENTS: Place = ("g", 0, "")
"""Those of all parameters: a backward adds to them, `zero_grad` takes them away."""
Roots = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Value:
    """What an expression gives."""

    obj: Any = NEW
    """The object, if it was there before the turn and is known."""
    text: str = ""
    """What the script calls it."""
    roots: Roots = ()
    """What it may be a part of, of what was there before."""
    kind: type | None = None
    """The user's class of one that the turn made."""
    is_clock: bool = False
    is_ours: bool = False
    """Whether lockstep gave it."""
    is_prepared: bool = False
    """Whether `run.prepare` did: then states hold it."""

    @property
    def is_new(self) -> bool:
        """Whether nothing is known of it but what it may be a part of."""
        return self.obj is NEW


def joined(values: Sequence[Value]) -> Value:
    if all(one is values[0] or (one.obj is values[0].obj is not NEW) for one in values):
        return values[0]
    clocks, ours = all(one.is_clock for one in values), all(one.is_ours for one in values)
    kinds = {one.kind for one in values}
    return Value(roots=roots_of(values), kind=kinds.pop() if len(kinds) == 1 else None, is_clock=clocks, is_ours=ours)


def roots_of(values: Iterable[Value]) -> Roots:
    return tuple({id(obj): (text, obj) for one in values for text, obj in one.roots}.values())


@dataclass
class Scope:
    """Where names are looked up."""

    key: int
    local: frozenset[str]
    values: Mapping[str, Any]
    around: Mapping[str, Any]
    """The module's variables."""
    file: str
    cells: dict[str, tuple[Place, Any]] = field(default_factory=dict)
    outer: Scope | None = None
    is_running: bool = False
    """Whether its variables live longer than the turn."""


@dataclass(frozen=True)
class Seen:
    """Where something is in the source."""

    text: str
    file: str
    line: int


class Judge:
    """What the reader asks, and tells; `script_state` answers."""

    def is_held(self, thing: Any) -> bool:
        """Whether every state holds it."""
        raise NotImplementedError

    def is_changeable(self, thing: Any) -> bool:
        """Whether it has a value of its own that may be changed."""
        raise NotImplementedError

    def look(self, value: Value, at: Seen) -> None:
        """The turn reads an object that was there before."""
        raise NotImplementedError

    def name(self, kind: str, thing: Any, at: Seen) -> None:
        """Name what no state holds."""
        raise NotImplementedError


def meet(ends: Sequence[dict[Place, Value] | None]) -> dict[Place, Value] | None:
    """What is assigned on all ways that come here."""
    ways = [one for one in ends if one is not None]
    if not ways:
        return None
    return {place: joined([one[place] for one in ways]) for place in ways[0] if all(place in one for one in ways)}
