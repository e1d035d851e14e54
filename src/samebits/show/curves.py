"""The curves of a run: what `run.log` wrote to `metrics.jsonl`, and how few points of it a picture needs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from samebits.machine.regular_file import open_regular
from samebits.protocol.events import finite
from samebits.protocol.metric_lines import PLACES, decoded

MOST_BYTES = 64 << 20
"""A larger file is read in parts, evenly spread over it."""
PART_BYTES = 1 << 16
MOST_POINTS = 2000
"""Of one curve in a picture: about as many as its pixels are wide, twice."""
MOST_CURVES = 40
MOST_NAME = 80


@dataclass
class Curve:
    """The values of one metric, in the order in which they were logged."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    """NaN and infinities among them, as the script logged them."""


@dataclass(frozen=True)
class Curves:
    by_name: dict[str, Curve]
    is_whole: bool = True
    """Whether the file was small enough to be read to its end."""

    @property
    def loss(self) -> Curve | None:
        """That of the metric named `loss`, else of the first whose name ends so; None without one."""
        names = [name for name in self.by_name if name == "loss"] or [n for n in self.by_name if n.endswith("loss")]
        return self.by_name[names[0]] if names else None


def curves_in(path: Path) -> Curves:
    """Read `metrics.jsonl`, which may be half written, huge or hostile; lines that are none are left out."""
    found: dict[str, Curve] = {}
    is_whole = True
    with suppress(OSError):
        is_whole = path.stat().st_size <= MOST_BYTES
        for line in _lines(path, is_whole=is_whole):
            _take(line, found)
    return Curves(found, is_whole)


def _lines(path: Path, *, is_whole: bool) -> Iterator[bytes]:
    with open_regular(path) as file:
        if is_whole:
            yield from file
            return
        size, parts = os.fstat(file.fileno()).st_size, MOST_BYTES // PART_BYTES
        for number in range(parts):
            file.seek(number * (size - PART_BYTES) // (parts - 1))
            whole = file.read(PART_BYTES).split(b"\n")
            yield from whole[1:-1]


def _take(line: bytes, found: dict[str, Curve]) -> None:
    told = decoded(line)
    if told is None or told["step"] >= 1 << 53:
        return
    step = told["step"]
    for name, value in told.items():
        if (
            name in PLACES
            or isinstance(value, bool)
            or not isinstance(value, int | float | None)
            or len(name) > MOST_NAME
        ):
            continue
        if name not in found and len(found) >= MOST_CURVES:
            continue
        curve = found.setdefault(name, Curve())
        curve.steps.append(step)
        curve.values.append(
            value if isinstance(value, float) else finite(value)
        )  # null: what was logged was not finite


def thinned(
    steps: Sequence[int], values: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[int], list[float | None]]:
    """At most `most` points that look the same: of each part of the curve its least and its greatest value.

    Values that are no finite numbers become None, which a picture leaves out.
    """
    clean = [value if math.isfinite(value) else None for value in values]
    if len(clean) <= most:
        return list(steps), clean
    chosen: list[int] = []
    parts = most // 2
    for part in range(parts):
        indices = list(range(part * len(clean) // parts, (part + 1) * len(clean) // parts))
        known = [i for i in indices if clean[i] is not None]
        if known:
            key = lambda i: clean[i] or 0.0  # noqa: E731 - None is left out
            chosen += sorted({min(known, key=key), max(known, key=key)})
        elif indices:
            chosen.append(indices[0])
    return [steps[i] for i in chosen], [clean[i] for i in chosen]


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
