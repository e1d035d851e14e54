"""What two runs logged, step by step: the same values, or the first one that differs. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from samebits.protocol.metric_lines import PLACES

Logged = Mapping[int, Mapping[str, list[Any]]]
"""By step and name, each value of it in the order in which it was logged; None for one that was not finite."""
ABSENT = "not logged"
"""In place of a value that one side did not log."""


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
    """None: not finite."""
    replayed: Any


@dataclass(frozen=True)
class Compared:
    """What the comparison found."""

    count: int
    """Values that are the same; of two that are not finite nobody knows."""
    first: int
    """The first step of which a value was compared; 0 where none was."""
    last: int
    names: tuple[str, ...]
    other: OtherValue | None = None


def compare_values(recorded: Logged, replayed: Logged, whole: Container[int] = ()) -> Compared:
    """Compare each value of the replay with the recorded one; steps of which nothing was recorded are passed over.

    JSON has as many digits as tell each float from all others, so numbers with equal texts are equal bits.

    Args:
        recorded: by the run.
        replayed: by the replay.
        whole: steps that the replay has made with all that the script does behind them: nothing recorded may be missing there.
    """
    count, steps, names = 0, dict[int, None](), dict[str, None]()
    for step in sorted(recorded):
        then, now = recorded[step], replayed.get(step, {})
        for name in dict.fromkeys((*now, *(then if step in whole else ()))):
            for there, here in zip_longest(then.get(name, ()), now.get(name, ()), fillvalue=ABSENT):
                if here is ABSENT and step not in whole:
                    break
                if repr(there) != repr(here):
                    return _compared(count, [*steps], names, OtherValue(step, name, there, here))
                if here is not None:
                    count, names[name], steps[step] = count + 1, None, None
    return _compared(count, [*steps], names, None)


def _compared(count: int, steps: list[int], names: Mapping[str, None], other: OtherValue | None) -> Compared:
    return Compared(count, steps[0] if steps else 0, steps[-1] if steps else 0, tuple(names), other)
