"""The number of each optimizer and scheduler that a run prepared, in order: what its part of a state is called by.

One that is prepared in the middle has the next number, and what it replaces keeps its own. A state says how many were prepared
before the loop, so a start that has not come to the later ones knows that they are still to come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OPTIMIZER, SCHEDULER = "optimizer", "scheduler"


@dataclass
class Preparations:
    """Those of one run."""

    things: dict[str, dict[int, Any]] = field(default_factory=lambda: {OPTIMIZER: {}, SCHEDULER: {}})
    """By kind and number, from 1; what was replaced is missing."""
    made: dict[str, int] = field(default_factory=lambda: {OPTIMIZER: 0, SCHEDULER: 0})
    """The number of the last one."""
    first: dict[str, int] | None = None
    """`made` before the first one that was prepared in the middle; None until then."""

    def add(self, kind: str, thing: Any, *, is_late: bool) -> str:
        """Number it; return its label."""
        if is_late and self.first is None:
            self.first = dict(self.made)
        self.made[kind] += 1
        self.things[kind][self.made[kind]] = thing
        return f"{kind}{self.made[kind]}"

    def remove(self, thing: Any) -> None:
        """It was replaced, and no state has it from here on."""
        for numbered in self.things.values():
            for number in [number for number, one in numbered.items() if one is thing]:
                del numbered[number]

    def holds(self, thing: Any) -> bool:
        """Whether it was prepared and not replaced."""
        return any(one is thing for numbered in self.things.values() for one in numbered.values())

    def labelled(self, kind: str) -> list[tuple[str, Any]]:
        """`optimizer`, or `optimizer1`, `optimizer2` where there were several."""
        several = self.made[kind] > 1
        return [(f"{kind}{number if several else ''}", thing) for number, thing in self.things[kind].items()]


def label_in(documents: Any, label: str) -> str:
    """What a state calls `optimizer` or `optimizer1`, which are one."""
    stem = label.rstrip("0123456789")
    names = (stem, f"{stem}1") if label in {stem, f"{stem}1"} else (label,)
    return next((name for name in names if name in documents), label)


def late_labels(documents: Any, first: Any) -> set[str]:
    """The labels in a state that were prepared in the middle; `first` is what the state says, None where nothing was.

    Raises:
        ValueError: when lockstep does not write that.
    """
    if first is None:
        return set()
    if not isinstance(first, dict) or set(first) != {OPTIMIZER, SCHEDULER}:
        raise ValueError(first)
    kinds = {label: label.rstrip("0123456789") for label in documents}
    return {label for label, kind in kinds.items() if kind in first and int(label[len(kind) :] or 1) > int(first[kind])}
