"""Which states of a run that is recorded stay besides the newest ones: few, spread over the run. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def spread(steps: Sequence[int], keep: int, others: int) -> list[int]:
    """Of all steps the newest `keep` (at least one), and at most `others` older ones, as evenly as is possible.

    Of too many, the one goes whose neighbours are closest together, the oldest of several; never the first.

    Invariant: what came out goes in again with the next step. Of steps that come at equal distances three others or more lie
    nowhere twice as far apart as they would if they were spread evenly.
    """
    older, newest = steps[:-keep], steps[-keep:]
    if not others or not older:
        return list(newest)
    line: list[int] = []
    for step in (*older, newest[0]):
        line.append(step)
        if len(line) > others + 1:
            inner = range(1, len(line) - 1)
            del line[min(inner, key=lambda place: line[place + 1] - line[place - 1])]
    return [*line[:-1], *newest]
