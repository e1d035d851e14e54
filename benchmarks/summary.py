"""From rounds to a line of the table: medians, what they come to beside its goal, and how far that wandered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median

BLOCKS = 4
"""The rounds are cut into this many blocks; the spread is that of the blocks' results."""
MIB = 1 << 20
FORWARD, BACKWARD, EXCHANGE, UPDATE, REST = PHASES = ("forward", "backward", "exchange", "optimizer", "rest")
"""Where the time of a step goes."""

Rounds = Sequence[float]
"""One amount for each round: nanoseconds, or bytes. Round i of every side was measured at the same time."""


class Unit(StrEnum):
    """What a line's amounts are."""

    NS = "ns"
    BYTES = "bytes"


class Kind(StrEnum):
    """What a line comes to."""

    TIMES = "times"
    """The other side's amount over ours; the goal is the least."""
    SHARE = "share"
    """A part of 1; the goal is the least."""
    AMOUNT = "amount"
    """Our own amount; the goal is the most."""


@dataclass(frozen=True)
class Line:
    """One comparison. Amounts are medians."""

    row: str
    """Of the scoreboard."""
    what: str
    ours: str
    """Which of our ways."""
    amount: float
    other: str
    """The other side; empty where there is none."""
    other_amount: float
    unit: Unit
    kind: Kind
    result: float
    least: float
    """The smallest and the largest result over the blocks of rounds."""
    most: float
    goal: float
    """0 means none."""
    limit: str
    """What no program on this machine can beat."""
    limit_amount: float
    limit_goal: float
    """The share of the limit that must be reached; 0 means none."""
    rounds: Mapping[str, list[float]] = field(default_factory=dict)
    """Every side's amounts, round by round."""
    notes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What else was measured, for the picture: by side and name."""

    def with_notes(self, notes: Mapping[str, Mapping[str, float]]) -> Line:
        """The same line, with notes."""
        return replace(self, notes=notes)

    @property
    def reached(self) -> float:
        """Limit over our amount; 0 without a limit."""
        return self.limit_amount / self.amount if self.amount else 0.0

    @property
    def met(self) -> bool | None:
        """Whether all goals are met; None without a goal, and for a negative amount, which is noise."""
        if (not self.goal and not self.limit_goal) or (self.kind is Kind.AMOUNT and self.result < 0):
            return None
        good = self.result <= self.goal if self.kind is Kind.AMOUNT else self.result >= self.goal
        return good and self.reached >= self.limit_goal


@dataclass(frozen=True)
class Aim:
    """Where a line belongs, and what it must reach."""

    row: str
    what: str
    goal: float = 0.0
    limit_goal: float = 0.0


def compare(
    aim: Aim,
    ours: tuple[str, Rounds],
    other: tuple[str, Rounds] = ("", ()),
    limit: tuple[str, Rounds] = ("", ()),
    unit: Unit = Unit.NS,
) -> Line:
    """How many times as long the other side takes; without another side, our own amount."""
    sides = {"ours": ours[1], "other": other[1]}
    if not other[1]:
        return _line(aim, (ours, other, limit), unit, Kind.AMOUNT, spread(lambda of: of["ours"], {"ours": ours[1]}))
    return _line(aim, (ours, other, limit), unit, Kind.TIMES, spread(lambda of: of["other"] / of["ours"], sides))


def compare_removed(aim: Aim, ours: tuple[str, Rounds], other: tuple[str, Rounds], without: tuple[str, Rounds]) -> Line:
    """Which share of what the other side takes above `without` is gone in ours; 1 means all of it."""

    def removed(of: Mapping[str, float]) -> float:
        surplus = of["other"] - of["without"]
        return (of["other"] - of["ours"]) / surplus if surplus > 0 else float(of["ours"] <= of["other"])

    found = spread(removed, {"ours": ours[1], "other": other[1], "without": without[1]})
    return _line(aim, (ours, other, without), Unit.NS, Kind.SHARE, found)


def spread(result: Callable[[Mapping[str, float]], float], sides: Mapping[str, Rounds]) -> tuple[float, float, float]:
    """The result of the medians over all rounds, and its least and most over blocks of rounds.

    Raises:
        ValueError: when the sides have different numbers of rounds, or none.
    """
    lengths = {len(rounds) for rounds in sides.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"the sides have {sorted(lengths)} rounds; each must have the same number, and at least one")
    length = lengths.pop()
    edges = [round(length * block / BLOCKS) for block in range(BLOCKS + 1)]
    parts = [slice(a, b) for a, b in pairwise(edges) if a < b]
    found = [result({name: median(rounds[part]) for name, rounds in sides.items()}) for part in parts]
    return result({name: median(rounds) for name, rounds in sides.items()}), min(found), max(found)


def best(sides: Mapping[str, Rounds]) -> str:
    """The name of the side with the smallest median; the first of equals."""
    return min(sides, key=lambda name: median(sides[name]))


def table(lines: Sequence[Line]) -> str:
    """The lines one below the other, with a heading."""
    rows: list[tuple[str, ...]] = [
        ("row", "", "samebits", "", "other side", "", "result", "(blocks)", "goal", "", "limit", "", "", "rounds")
    ]
    rows += [_cells(line) for line in lines]
    left = (0, 1, 2, 4, 8, 9, 10)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if at in left else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def amount_text(amount: float, unit: Unit) -> str:
    """With three digits and a unit that suits it; empty for nothing."""
    if not amount:
        return ""
    if unit is Unit.BYTES:
        return f"{amount / MIB:.0f} MiB"
    for size, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(amount) >= size:
            return f"{_digits(amount / size)} {name}"
    return f"{amount:.0f} ns"


def _digits(number: float) -> str:
    return f"{number:.2f}" if abs(number) < 10 else f"{number:.1f}" if abs(number) < 100 else f"{number:.0f}"


def _times(ratio: float) -> str:
    """Below 1 cut to three digits, so that no ratio that misses a goal reads like the goal."""
    return f"{int(ratio * 1000) / 1000:.3f}" if 0 <= ratio < 1 else _digits(ratio)


def _line(
    aim: Aim,
    sides: tuple[tuple[str, Rounds], tuple[str, Rounds], tuple[str, Rounds]],
    unit: Unit,
    kind: Kind,
    found: tuple[float, float, float],
) -> Line:
    ours, other, limit = sides
    result, least, most = found
    return Line(
        row=aim.row,
        what=aim.what,
        ours=ours[0],
        amount=median(ours[1]),
        other=other[0],
        other_amount=median(other[1]) if other[1] else 0.0,
        unit=unit,
        kind=kind,
        result=result,
        least=least,
        most=most,
        goal=aim.goal,
        limit=limit[0] if limit[1] else "",
        limit_amount=median(limit[1]) if limit[1] else 0.0,
        limit_goal=aim.limit_goal,
        rounds={name: list(rounds) for name, rounds in sides if name},
    )


def _cells(line: Line) -> tuple[str, ...]:
    goals = [_goal_text(line)] * bool(line.goal) + [f"{line.limit_goal:.0%} of limit"] * bool(line.limit_goal)
    return (
        line.row,
        line.what,
        line.ours,
        amount_text(line.amount, line.unit),
        line.other,
        amount_text(line.other_amount, line.unit),
        _result_text(line, line.result),
        f"({_result_text(line, line.least)} - {_result_text(line, line.most)})",
        ", ".join(goals),
        {True: "met", False: "missed", None: ""}[line.met],
        line.limit,
        amount_text(line.limit_amount, line.unit),
        f"{line.reached:.0%}" if line.limit else "",
        str(len(next(iter(line.rounds.values()), ()))),
    )


def _result_text(line: Line, result: float) -> str:
    if line.kind is Kind.AMOUNT:
        return amount_text(result, line.unit)
    return f"{result:.2f}" if line.kind is Kind.SHARE else f"{_times(result)}x"


def _goal_text(line: Line) -> str:
    if line.kind is Kind.AMOUNT:
        return f"≤ {amount_text(line.goal, line.unit)}"
    return f"≥ {line.goal:g}" if line.kind is Kind.SHARE else f"≥ {line.goal:.3g}x"
