"""From times to a line of the table: medians, their ratio, and how far the ratio wandered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

BLOCKS = 4
"""The rounds are cut into this many blocks; the spread is that of the blocks' ratios."""


@dataclass(frozen=True)
class Line:
    """One comparison. Times are medians in milliseconds; a ratio above 1 means that lockstep is faster."""

    what: str
    other: str
    """The name of the other side."""
    lockstep_ms: float
    other_ms: float
    ratio: float
    ratio_least: float
    ratio_most: float
    limit: str
    """What limits both on this machine, and its time."""
    limit_ms: float
    rounds: int


def compare(what: str, ours: Sequence[int], other: tuple[str, Sequence[int]], limit: tuple[str, Sequence[int]]) -> Line:
    """Compare the nanoseconds of interleaved rounds: round i of every side was measured at the same time."""
    name, theirs = other
    edges = [round(len(ours) * block / BLOCKS) for block in range(BLOCKS + 1)]
    parts = [slice(a, b) for a, b in pairwise(edges) if a < b]
    ratios = [median(theirs[part]) / median(ours[part]) for part in parts]
    return Line(
        what=what,
        other=name,
        lockstep_ms=median(ours) / 1e6,
        other_ms=median(theirs) / 1e6,
        ratio=median(theirs) / median(ours),
        ratio_least=min(ratios),
        ratio_most=max(ratios),
        limit=limit[0],
        limit_ms=median(limit[1]) / 1e6,
        rounds=len(ours),
    )


def table(lines: Sequence[Line]) -> str:
    """The lines under each other, with a heading."""
    rows = [("", "lockstep", "other side", "", "ratio", "(blocks)", "limit", "", "rounds")]
    rows += [
        (
            line.what,
            f"{line.lockstep_ms:.1f} ms",
            line.other,
            f"{line.other_ms:.1f} ms",
            f"{line.ratio:.2f}x",
            f"({line.ratio_least:.2f}-{line.ratio_most:.2f})",
            line.limit,
            f"{line.limit_ms:.1f} ms",
            str(line.rounds),
        )
        for line in lines
    ]
    left = (0, 2, 6)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if at in left else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
