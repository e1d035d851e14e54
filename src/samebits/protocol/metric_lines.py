"""The lines of `metrics.jsonl` that somebody was given, and those that come again when ranks start again.

A step that is computed again logs the same values again, to the last bit. So of a step that was passed on nothing new can
come, but for what was logged after the loss in the newest one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

PLACES = frozenset({"step", "epoch", "time"})
"""Keys of a line that are no values."""


def decoded(line: str | bytes) -> dict[str, Any] | None:
    """A line of the file; None where it is half written, or none."""
    with suppress(ValueError, RecursionError):
        values = json.loads(line)
        if isinstance(values, dict) and type(values.get("step")) is int and values["step"] >= 0:
            return values
    return None


def values_of(line: Mapping[str, Any]) -> dict[str, float]:
    """What was logged, by name; NaN for what was not finite."""
    return {name: math.nan if value is None else value for name, value in line.items() if name not in PLACES}


def without_time(line: Mapping[str, Any]) -> str:
    """A line as text, up to its time: equal for the same values of the same step."""
    return json.dumps({name: value for name, value in line.items() if name != "time"}, sort_keys=True)


@dataclass
class Delivered:
    """What was given last: the lines of the newest step; of earlier steps all were given."""

    step: int = -1
    lines: Counter[str] = field(default_factory=Counter)
    _again: Counter[str] = field(default_factory=Counter)
    """How often each line of the newest step has come since the ranks started."""

    @classmethod
    def until(cls, lines: Iterable[Mapping[str, Any]]) -> Delivered:
        """Where all of `lines`, in their order, were given by ranks that are gone."""
        made = cls()
        for line in lines:
            made.takes(line)
        made.starts_again()
        return made

    def takes(self, line: Mapping[str, Any]) -> bool:
        """Whether a line is new; then it counts as given."""
        step, text = int(line["step"]), without_time(line)
        if step < self.step:
            return False
        if step > self.step:
            self.step, self.lines, self._again = step, Counter(), Counter()
        self._again[text] += 1
        if self._again[text] <= self.lines[text]:
            return False
        self.lines[text] += 1
        return True

    def starts_again(self) -> None:
        """Ranks have started again: what was given may come again."""
        self._again = Counter()
