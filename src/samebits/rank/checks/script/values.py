"""What a turn of a loop works on: values, and the scopes in which names are looked up."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samebits.rank.checks.script.objects import NEW, memory_of

Place = tuple[str, int, str]
"""A variable of a scope, an attribute of an object, or the inside of an object."""
GRADIENTS: Place = ("gradients", 0, "")
"""Those of all parameters: a backward adds to them, `zero_grad` takes them away."""
COUNT: Place = ("count", 0, "")
"""The number of the turn, where the script counts them itself."""
Roots = tuple[tuple[str, Any], ...]


@dataclass(eq=False)
class Made:
    """An object that the turn makes."""

    parts: Roots = ()
    """What may be in it."""
    named: dict[str, Value] = field(default_factory=dict)
    """Its attributes, as far as they are known."""


def inside(thing: Any) -> Place:
    return "made" if isinstance(thing, Made) else "inside", memory_of(thing), ""


@dataclass(frozen=True)
class Value:
    """What an expression gives."""

    obj: Any = NEW
    """The object, if it was there before the turn and is known."""
    text: str = ""
    """What the script calls it."""
    roots: Roots = ()
    """What it may be, or share: names and objects."""
    of: frozenset[Place] = frozenset()
    """What it is computed from."""
    is_held: bool = False
    """Whether states hold it although the turn made it: `run.prepare` took it."""

    @property
    def is_new(self) -> bool:
        """Whether nothing is known of it but what it may share."""
        return self.obj is NEW

    @property
    def part(self) -> Value:
        """It, or something in it."""
        found = [root for _, made in self.roots if isinstance(made, Made) for root in made.parts]
        return Value(roots=(*self.roots, *found), of=self.of.union(inside(one) for _, one in found))


def mixed(values: Iterable[Value]) -> Value:
    """Something that may be, or share, any of these."""
    values = list(values)
    roots = {id(obj): (text, obj) for one in values for text, obj in one.roots}
    return Value(roots=(*roots.values(),), of=frozenset().union(*(one.of for one in values)))


def joined(values: Sequence[Value]) -> Value:
    """What it is after several ways."""
    first = values[0]
    if all(one is first or (one.obj is first.obj is not NEW and one.of == first.of) for one in values):
        return first
    some = mixed(values)
    return Value(roots=some.roots, of=some.of, is_held=all(one.is_held for one in values))


def meet(ends: Iterable[dict[Place, Value] | None]) -> dict[Place, Value] | None:
    """What is assigned on all ways that come here; None where nothing comes."""
    ways = [one for one in ends if one is not None]
    if not ways:
        return None
    return {place: joined([one[place] for one in ways]) for place in ways[0] if all(place in one for one in ways)}


@dataclass
class Scope:
    """Where names are looked up. Variables that functions share count as one if they have one name."""

    key: int
    local: frozenset[str]
    around: Mapping[str, Any]
    """The module's variables."""
    values: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, Any] = field(default_factory=dict)
    """What it shares with functions around it or inside it."""
    outer: Scope | None = None
    is_running: bool = False
    """Whether its variables live longer than the turn."""

    def find(self, name: str) -> tuple[Place, Any, bool]:
        """Where a name's value is, what it was before the turn, and whether that place outlives the turn."""
        if name in self.cells:
            return ("cell", 0, name), self.cells[name], True
        if name in self.local:
            return ("variable", self.key, name), self.values.get(name, NEW), self.is_running
        if self.outer is not None:
            return self.outer.find(name)
        known = self.around.get(name, getattr(builtins, name, NEW))
        return ("variable", id(self.around), name), known, True


@dataclass(frozen=True)
class Seen:
    """Where something is in the source."""

    text: str
    file: str
    line: int
