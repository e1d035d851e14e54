"""What a turn reads, assigns and changes of what was there before, and what of that decides anything.

A turn carries on what it reads of a place before it assigns it there, and assigns somewhere, and what it changes inside of an
object that it did not make. That is named if it matters: if a test, a call or what a state holds depends on it. What is only
added up and shown is not.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FunctionType
from typing import Any

from samebits.rank.checks.script.found import Found
from samebits.rank.checks.script.objects import NEW, is_changeable, is_users
from samebits.rank.checks.script.values import COUNT, GRADIENTS, Made, Place, Scope, Seen, Value, inside, meet, mixed


class Places:
    """Keeps account of one turn.

    Args:
        found: gets the names.
        changing: what is known to change; by values of other places from before, tests are decided: `if args.distributed`.
    """

    def __init__(self, found: Found, *, changing: frozenset[Place] = frozenset()) -> None:
        self.found = found
        self.changing = changing
        self.folded: set[Place] = set()
        """What decided where the turn goes by the value that it had before."""
        self.env: dict[Place, Value] | None = {}
        """What is assigned on every way to here; None where nothing comes."""
        self.control: frozenset[Place] = frozenset()
        """What decided that the script comes here."""
        self.file, self.is_behind, self.looks = "", False, True
        self.keys = itertools.count(1)
        self.before_lanes: set[Place] | None = None
        self._reads: dict[Place, Seen] = {}
        self._stores: dict[Place, tuple[Seen, Any]] = {}
        """Where each is assigned, and an attribute's owner."""
        self._changed: dict[Place, tuple[Seen, Any]] = {}
        self._flows: dict[Place, set[Place]] = defaultdict(set)
        """From what each is computed."""
        self._mattering: set[Place] = set()
        self._made: list[Made] = []

    def made(self, parts: Iterable[Value], *, shares: bool = False) -> Value:
        """Something that the turn makes: it has these in it, or `shares` what is in them."""
        some = mixed(parts)
        self._made.append(made := Made(() if shares else some.roots))
        roots = (*(some.roots if shares else ()), ("", made))
        return Value(roots=roots, of=some.of | {inside(made)})

    def look(self, thing: Any, text: str, line: int) -> Value:
        """The turn reads an object that was there before."""
        if thing is NEW:
            return Value(text=text)
        if self.looks and not self.is_behind:
            self.found.look(thing, Seen(text, self.file, line))
        if not is_changeable(thing):
            return Value(thing, text)
        return Value(thing, text, ((text, thing),), frozenset({inside(thing)}))

    def read(self, place: Place, known: Any, text: str, line: int) -> Value:
        if self.env is not None and place in self.env:
            return self.env[place]
        self._reads.setdefault(place, Seen(text, self.file, line))
        value = self.look(known, text, line)
        return replace(value, of=value.of | {place})

    def name(self, name: str, scope: Scope, line: int) -> Value:
        place, known, _ = scope.find(name)
        return self.read(place, known, name, line)

    def assign(self, place: Place, value: Value) -> None:
        if self.env is not None:
            # [Note: flags of what is prepared in the middle]
            # A resumed start prepares the same things once more and the state is loaded into them, so a flag that decides
            # whether they are made (`is_grown`) must begin anew: what `run.prepare` took depends on no control.
            self.env[place] = value if value.is_held else replace(value, of=value.of | self.control)

    def store(self, place: Place, value: Value, text: str, line: int, owner: Any = None) -> None:
        """Assign to a place that outlives the turn."""
        self.assign(place, value)
        if self.is_behind or value.is_held:
            return
        self._stores.setdefault(place, (Seen(text, self.file, line), owner))
        self._flows[place] |= value.of | self.control

    def change(self, value: Value, line: int, *by: Value) -> None:
        """The turn changes what `value` may be or share, and puts `by` into it."""
        some = mixed(by)
        for text, thing in value.roots:
            if isinstance(thing, Made):
                thing.parts = (*thing.parts, *some.roots)
            elif self.found.is_held(thing):
                self._mattering |= some.of | self.control
            elif not self.is_behind:
                self._changed.setdefault(inside(thing), (Seen(text, self.file, line), thing))
            self._flows[inside(thing)] |= some.of | self.control

    def matters(self, *values: Value) -> None:
        """What the run does depends on these, and on what decided that the script comes here."""
        self._mattering |= mixed(values).of | self.control

    def ways(self, *ways: Callable[[], None]) -> bool:
        """Go each of them; whether all come to their end."""
        before, ends = self.env, []
        for way in ways:
            self.env = None if before is None else dict(before)
            way()
            ends.append(self.env)
        self.env = meet(ends)
        return None not in ends

    def end(self) -> None:
        """The turn's body is over; what follows is what the script does behind the loop."""
        left = (self.env or {}).get(GRADIENTS)
        if GRADIENTS in self._reads and left is not None and not left.is_held:
            self.found.name("gradients", None, self._reads[GRADIENTS])
        self.is_behind = True

    def conclude(self, surely: set[Place]) -> frozenset[Place]:
        """Name what is carried on and matters; `surely` is assigned in every turn.

        Returns:
            What decided a test and changes after all: then nothing is named yet.
        """
        if changing := self.folded & {*self._stores, *self._changed}:
            return frozenset(changing)
        early = surely if self.before_lanes is None else self.before_lanes
        carried: dict[Place, tuple[str, Any, Seen]] = {}
        for place, (at, owner) in self._stores.items():
            kind = "attribute" if place[0] == "attribute" else "variable"
            unseen = kind == "attribute" and not is_users(type(owner)) and not isinstance(owner, FunctionType)
            if unseen and place not in early:
                self._mattering.add(place)
            if place in self._reads or (unseen and place not in early):
                carried[place] = kind, owner, at
        carried |= {place: ("changed", thing, at) for place, (at, thing) in self._changed.items()}
        mattering = self._all_that_matters()
        for place, (kind, thing, at) in carried.items():
            if place in mattering:
                self.found.name(kind, thing, at)
        if COUNT in mattering:
            self.found.name("counted", None, self._reads[COUNT])
        return frozenset()

    def _all_that_matters(self) -> set[Place]:
        found, waiting = set(), [*self._mattering]
        while waiting:
            place = waiting.pop()
            if place not in found:
                found.add(place)
                waiting += self._flows[place]
                if place[0] == "inside":
                    waiting += [one for one in self._stores if one[0] == "attribute" and one[1] == place[1]]
        return found
