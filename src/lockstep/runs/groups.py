"""Ranks that do the same, together: 62 of 64 ranks that wait at one line are one row of a table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from lockstep.runs.view import Row, State

MOST_ALONE = 8
"""Up to so many ranks each has a row of its own, in the order of ranks."""
INTEREST = (State.FAILED, State.STOPPED, State.WORKS, State.WAITS, State.ENDED)
"""What others may have to look at comes first: ranks at work while others wait are among those that hold them up."""


@dataclass(frozen=True)
class Group:
    """Ranks in one row."""

    rows: tuple[Row, ...]

    @property
    def oldest(self) -> Row:
        """The one that has done it for longest."""
        return max(self.rows, key=lambda row: row.lasts_s)

    @property
    def does_one_thing(self) -> bool:
        """Whether all do the same at the same line."""
        return len({_same(row) for row in self.rows}) == 1


def _same(row: Row) -> Hashable:
    return row.state, row.doing, row.place


_KEYS: tuple[Callable[[Row], Hashable], ...] = (_same, lambda row: (row.state, row.place), lambda row: row.state)
"""What ranks of a group have in common, from much to little."""


def grouped(rows: Sequence[Row], most: int | None = None) -> list[Group]:
    """The ranks in groups, those first that others may have to look at; a few ranks stay alone, in their order.

    Args:
        rows: of all ranks.
        most: how many groups there is room for. If it is not enough, unlike ranks of one state come together.

    Invariant: every rank is in one group.
    """
    if len(rows) <= MOST_ALONE and (most is None or len(rows) <= most):
        return [Group((row,)) for row in rows]
    found: dict[Hashable, list[Row]] = {}
    for key in _KEYS:
        found = {}
        for row in rows:
            found.setdefault(key(row), []).append(row)
        if most is None or len(found) <= most:
            break
    groups = [Group(tuple(together)) for together in found.values()]
    return sorted(groups, key=lambda group: (INTEREST.index(group.rows[0].state), len(group.rows), group.rows[0].rank))
