"""What a script holds and no state of the run does, and whether it has changed since some place.

Three kinds of things, found by walking the script's variables: objects with a `state_dict` (an average that nobody tracks,
a second model), plain attributes of objects of the script's own classes (a trainer's best value, a meter's sum), and
containers and generators. What stays as it was is made again by the script itself when it runs again up to that place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from lockstep.run.watch.holdings import Holdings, parts_of, script_variables
from lockstep.run.watch.marks import GENERATORS, Marks
from lockstep.run.watch.own_values import OwnValues

Look = Callable[[Any], list[Any]]
_CONTAINERS = (list, dict, set, deque, np.ndarray, Tensor, *GENERATORS)


class Unsaved:
    """What the script holds now. The walk begins at the frames of the script above the caller.

    Args:
        models: the prepared ones.
        known: objects that every state holds.
        versions_of: what changes with every write to an object with a state.
    """

    def __init__(self, models: Sequence[nn.Module], known: Sequence[Any], versions_of: Look) -> None:
        self._models, self._known, self._versions_of = models, known, versions_of
        self._stateful = {id(thing): (thing, self._look(thing)) for _, thing in self._found()}
        marks = Marks()
        self._kept = {id(thing): (thing, marks.of(thing)) for _, thing in self._containers()}
        self._own = OwnValues(models, known)

    def new(self) -> str:
        """The name of an object with a state that was not there; empty where there is none."""
        return next(
            (name for name, thing in self._found() if id(thing) not in self._stateful and self._look(thing)), ""
        )

    def changed(self) -> str:
        """The name of something that was there and has changed since; empty where there is none."""
        for name, thing in self._found():
            if id(thing) in self._stateful and self._look(thing) != self._stateful[id(thing)][1]:
                return name
        marks = Marks()
        for name, thing in self._containers():
            if id(thing) in self._kept and marks.of(thing) != self._kept[id(thing)][1]:
                return name
        return next(iter(OwnValues(self._models, self._known).changed_since(self._own).values()), "")

    def _found(self) -> Iterator[tuple[str, Any]]:
        return Holdings().before_step(self._models, self._known)

    def _containers(self) -> Iterator[tuple[str, Any]]:
        held = parts_of(self._models, self._known)
        return (
            (name, thing)
            for name, thing in script_variables()
            if isinstance(thing, _CONTAINERS) and id(thing) not in held
        )

    def _look(self, thing: Any) -> list[Any]:
        try:
            return self._versions_of(thing)
        except Exception:  # noqa: BLE001 - a state_dict of the script's own may raise anything
            return [object()]  # like nothing else: it counts as changed
