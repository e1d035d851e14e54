"""What two runs logged, step by step: the same values, or the first one that differs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from samebits.protocol.metric_lines import PLACES

Logged = Mapping[int, Mapping[str, list[Any]]]
"""By step and name, each value of it in the order in which it was logged; None for one that was not finite."""


def logged_in(lines: Iterable[Mapping[str, Any]]) -> Logged:
    """The values in the lines of a `metrics.jsonl`; what is no such line is left out."""
    found: dict[int, dict[str, list[Any]]] = {}
    for line in lines:
        if type(step := line.get("step")) is int:
            for name, value in line.items():
                if name not in PLACES:
                    found.setdefault(step, {}).setdefault(str(name), []).append(value)
    return found


@dataclass(frozen=True)
class OtherValue:
    """The first value that differs."""

    step: int
    name: str
    recorded: Any
    """None: not finite, or nothing of that name was logged."""
    replayed: Any


@dataclass(frozen=True)
class Compared:
    """What the comparison found."""

    count: int
    """Values that are the same."""
    first: int
    """The first step of which a value was compared; 0 where none was."""
    last: int
    names: tuple[str, ...]
    other: OtherValue | None = None


def compare_values(recorded: Logged, replayed: Logged) -> Compared:
    """Compare each value of the replay with the recorded one; steps of which nothing was recorded are passed over.

    JSON has as many digits as tell each float from all others, so equal numbers are equal bits.
    """
    count, steps, names = 0, list[int](), dict[str, None]()
    for step in sorted(set(recorded) & set(replayed)):
        for name, values in replayed[step].items():
            there = recorded[step].get(name, [])
            for number, value in enumerate(values):
                if number >= len(there) or there[number] != value:
                    other = OtherValue(step, name, there[number] if number < len(there) else None, value)
                    return _compared(count, steps, names, other)
                count += 1
                names[name] = None
        steps.append(step)
    return _compared(count, steps, names, None)


def _compared(count: int, steps: list[int], names: Mapping[str, None], other: OtherValue | None) -> Compared:
    return Compared(count, steps[0] if steps else 0, steps[-1] if steps else 0, tuple(names), other)
