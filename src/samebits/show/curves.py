"""The curves of a run: what `run.log` wrote to `metrics.jsonl`, and how few points of it a picture needs."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.machine.growing_file import GrowingFile
from samebits.protocol.events import finite
from samebits.protocol.metric_lines import PLACES
from samebits.protocol.run_folder import objects_in

MOST_POINTS = 2000
"""Of one curve in a picture: about as many as its pixels are wide, twice."""
MOST_CURVES = 40
MOST_NAME = 80


@dataclass
class Curve:
    """The values of one metric, in the order in which they were logged."""

    steps: MutableSequence[int] = field(default_factory=lambda: array("q"))
    values: MutableSequence[float] = field(default_factory=lambda: array("d"))
    """NaN and infinities among them, as the script logged them."""
    num_unfinite: int = 0
    """How many of the values are NaN or infinite."""
    _width: int = 1
    """How many values a part has."""
    _parts: list[tuple[int, ...]] = field(default_factory=list)
    """Of each part that is full: where its least and its greatest value are."""

    def add(self, step: int, value: float) -> None:
        """Add a point."""
        self.steps.append(step)
        self.values.append(value)
        self.num_unfinite += not math.isfinite(value)

    def thinned(self, most: int = MOST_POINTS) -> tuple[list[int], list[float | None]]:
        """At most `most` points that look the same: of each part of the curve its least and its greatest value.

        Values that are no finite numbers become None, which a picture leaves out. What was thinned before is kept: only
        what was added since costs time. `most` must be the same each time.
        """
        size = len(self.values)
        chosen: Iterable[int] = range(size)
        if size > most:
            # Parts double, so that each is made of two that are known.
            while -(-size // self._width) > most // 2:
                halves = zip(self._parts[::2], self._parts[1::2], strict=False)
                self._width, self._parts = 2 * self._width, [self._extremes(one + other) for one, other in halves]
            for begin in range(len(self._parts) * self._width, size - self._width + 1, self._width):
                self._parts.append(self._extremes(range(begin, begin + self._width)))
            rest = range(len(self._parts) * self._width, size)
            chosen = [one for part in (*self._parts, self._extremes(rest) if rest else ()) for one in part]
        clean = ((at, self.values[at]) for at in chosen)
        return [self.steps[at] for at in chosen], [value if math.isfinite(value) else None for _, value in clean]

    def _extremes(self, places: Sequence[int]) -> tuple[int, ...]:
        """Where the least and the greatest of these values are, in their order; the first place where none is finite."""
        known = [at for at in places if math.isfinite(self.values[at])] if self.num_unfinite else places
        if not known:
            return (places[0],)
        taken = [self.values[at] for at in known]
        return tuple(sorted({known[taken.index(min(taken))], known[taken.index(max(taken))]}))


@dataclass(frozen=True)
class Curves:
    by_name: dict[str, Curve]
    is_whole: bool = True
    """Whether no line of the file was passed over, because it was too large."""

    @property
    def loss(self) -> Curve | None:
        """That of the metric named `loss`, else of the first whose name ends so; None without one."""
        names = [name for name in self.by_name if name == "loss"] or [n for n in self.by_name if n.endswith("loss")]
        return self.by_name[names[0]] if names else None


class CurveReader:
    """Reads `metrics.jsonl` again and again; it may be half written, huge or hostile, and lines that are none are left out."""

    def __init__(self, path: Path) -> None:
        self._file, self._found = GrowingFile(path, spreads=True), dict[str, Curve]()

    def read(self) -> Curves:
        """All of it. The curves grow with the next look."""
        lines, is_anew = self._file.new()
        if is_anew:
            self._found = {}
        for line in objects_in(lines):
            self._take(line)
        return Curves(dict(self._found), self._file.is_whole)

    def _take(self, line: Mapping[str, Any]) -> None:
        step = line.get("step")
        if type(step) is not int or not 0 <= step < 1 << 53:
            return
        for name, value in line.items():
            if name in PLACES:
                continue
            if type(value) is not float:
                if isinstance(value, bool) or not isinstance(value, int | None):
                    continue
                value = finite(value)  # noqa: PLW2901 - null: what was logged was not finite
            curve = self._found.get(name)
            if curve is None:
                if len(name) > MOST_NAME or len(self._found) >= MOST_CURVES:
                    continue
                curve = self._found[name] = Curve()
            curve.add(step, value)


def first_difference(ours: Curve, theirs: Curve, after: int = 0) -> int | None:
    """The first step at which two runs logged other values, to the last bit; None where they agree as far as both go.

    `after`: only steps behind this one count.
    """
    for ours_at, theirs_at in zip(_points(ours, after), _points(theirs, after), strict=False):
        if ours_at != theirs_at:
            return min(ours_at[0], theirs_at[0])
    return None


def _points(curve: Curve, after: int) -> Iterator[tuple[int, str]]:
    return (one for one in zip(curve.steps, map(repr, curve.values), strict=True) if one[0] > after)
