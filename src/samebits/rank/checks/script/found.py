"""What no state holds of a script, as it is found: each thing once, with its line and what to write."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from samebits.rank.caller import short
from samebits.rank.checks.script.objects import ATOMS, MOST_ELEMENTS, is_our_own, kind_of
from samebits.rank.checks.script.values import Seen
from samebits.rank.checks.variables import Named

MOST_S = 0.25
"""Of the rank's time, at the first step. The scripts of `tests/` take at most a fifth of it."""
ADVICE = {
    "variable": "keep it in run.state",
    "attribute": "keep the value in run.state, or give the object state_dict and load_state_dict for run.track",
    "changed": "keep it in run.state, or make it anew in every turn",
    "place": "make it anew in every epoch, or give it state_dict and load_state_dict for run.track",
    "optimizer": "pass it to run.prepare or run.track",
    "generator": "draw from the global generators, which every state holds",
    "loader": "iterate a torch.utils.data.StackDataset with run.steps, or make the iterator in every epoch",
    "counted": "use step.index, the step's number in the epoch",
    "setter": "set it before the first epoch, or in every turn anew",
    "exec": "assign the variables by name",
    "gradients": "call optimizer.zero_grad() at the end of each epoch",
    "hidden": "keep what it changes in run.state",
}


class Found:
    """Collects names of things whose ids are not in `held`, as those of what every state holds are."""

    def __init__(self, held: set[int]) -> None:
        self._held = held
        self._names: dict[int | str, Named] = {}
        self._looked: set[int] = set()
        self._until = time.thread_time() + MOST_S

    def names(self) -> list[Named]:
        return list(self._names.values())

    def spend(self) -> None:
        """Go on, while there is time.

        Raises:
            TimeoutError: when the time is over.
        """
        if time.thread_time() > self._until:
            raise TimeoutError(f"longer than {MOST_S} s")

    def is_held(self, thing: Any) -> bool:
        if isinstance(thing, (list, tuple)) and thing and id(thing) not in self._held:
            return all(id(one) in self._held for one in thing[:MOST_ELEMENTS])
        return id(thing) in self._held or is_our_own(thing)

    def look(self, thing: Any, at: Seen) -> None:
        """Name an object that the loop reads, and what is in it, if it may change where nobody sees it."""
        if id(thing) in self._looked or self.is_held(thing):
            return
        self._looked.add(id(thing))
        if kind := kind_of(thing):
            self.name(kind, thing, at)
        elif isinstance(thing, (list, tuple, dict, set, frozenset)):
            for number, one in enumerate(list(thing.values() if isinstance(thing, dict) else thing)[:MOST_ELEMENTS]):
                if not isinstance(one, (*ATOMS, Tensor)):
                    self.look(one, Seen(f"{at.text}[{number}]", at.file, at.line))

    def name(self, kind: str, thing: Any, at: Seen) -> None:
        """Name what no state holds, once."""
        what = f"what {at.text} changes, whose source cannot be read whole" if kind == "hidden" else at.text
        by_text = thing is None or kind in ("variable", "counted", "exec")
        key = f"{at.file} {at.text}" if by_text else id(thing)
        self._names.setdefault(key, Named(what, short(at.file, at.line), ADVICE[kind], kind))
