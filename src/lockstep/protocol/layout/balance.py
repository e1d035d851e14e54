"""Where to cut a row of segments into stages: the slowest stage decides, so its cost is made as small as possible.

Measured costs are noisy. Of all cuts whose slowest stage is within `TOLERANCE` of the best, the one with the most even
numbers of segments is taken: ten equal layers on two stages are cut 5 + 5, whatever was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

TOLERANCE = 0.03


def balance(costs: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """The first segment of every stage except stage 0.

    Args:
        costs: seconds of each segment, in order; at least as many as stages.
        num_stages: how many stages; each gets at least one segment.

    Invariant: the bounds rise; in no cut is the slowest stage cheaper than 1 / (1 + `TOLERANCE`) of this one's.
    """
    if not 1 <= num_stages <= len(costs):
        raise ValueError(f"{len(costs)} segments cannot make {num_stages} stages")
    sums = (0.0, *accumulate(costs))

    @cache
    def slowest(start: int, stages: int) -> float:
        """The lowest possible cost of the slowest of `stages` stages over the segments from `start` on."""
        if stages == 1:
            return sums[-1] - sums[start]
        ends = range(start + 1, len(costs) - stages + 2)
        return min(max(sums[end] - sums[start], slowest(end, stages - 1)) for end in ends)

    limit = slowest(0, num_stages) * (1.0 + TOLERANCE)

    @cache
    def most_even(start: int, stages: int) -> tuple[float, float, tuple[int, ...]]:
        """(sum of squared numbers of segments, cost of the slowest stage, bounds) among cuts below the limit."""
        if stages == 1:
            cost = sums[-1] - sums[start]
            return (float((len(costs) - start) ** 2) if cost <= limit else float("inf"), cost, ())
        options = []
        for end in range(start + 1, len(costs) - stages + 2):
            cost = sums[end] - sums[start]
            if cost <= limit:
                squares, other, bounds = most_even(end, stages - 1)
                options.append((squares + (end - start) ** 2, max(cost, other), (end, *bounds)))
        return min(options, default=(float("inf"), float("inf"), ()))

    return most_even(0, num_stages)[2]
