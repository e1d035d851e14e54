"""How a quantity grows with the number of ranks: a constant part, and a part that is a power of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FLAT = 0.15
"""What differs by less than this share does not grow."""
FEWEST = 4
"""Three values always have a curve of three numbers through them."""
STEPS, STEP = 61, 0.05
"""The powers that are tried: 0.05, 0.1, ..., 3.05."""


@dataclass(frozen=True)
class Growth:
    """`constant + part * ranks ** power`."""

    constant: float
    part: float
    power: float

    def at(self, ranks: float) -> float:
        """What it comes to."""
        return self.constant + self.part * ranks**self.power


def fit(values: Mapping[int, float]) -> Growth | None:
    """The growth that is nearest to these values by number of ranks, in shares of them; neither part is negative.

    None where that cannot be told: with fewer than four numbers of ranks, or where a value is 0 or less.
    """
    if len(values) < FEWEST or min(values.values()) <= 0:
        return None
    if max(values.values()) < (1 + FLAT) * min(values.values()):
        return Growth(sum(values.values()) / len(values), 0.0, 0.0)
    tried = [_with_power(values, STEP * (number + 1)) for number in range(STEPS)]
    return min(tried, key=lambda growth: _error(values, growth))


def _error(values: Mapping[int, float], growth: Growth) -> float:
    return sum((growth.at(ranks) / value - 1) ** 2 for ranks, value in values.items())


def _with_power(values: Mapping[int, float], power: float) -> Growth:
    """Least squares of the shares: `constant / value + part * ranks ** power / value` should be 1."""
    rows = [(1 / value, ranks**power / value) for ranks, value in values.items()]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    both = [
        Growth((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant, power) if determinant > 0 else None,
        Growth(0.0, b / bb, power),
    ]
    possible = [growth for growth in both if growth is not None and growth.constant >= 0 and growth.part >= 0]
    return min(possible, key=lambda growth: _error(values, growth))
