"""Least squares over a few long vectors, in plain Python: which combination of the lanes' gradients is the whole?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import mul

Vector = Sequence[float]
_sumprod: Callable[[Vector, Vector], float] | None = getattr(math, "sumprod", None)
"""From Python 3.12 on: exact, and several times faster."""
RIDGE = 1e-12
"""Added to the diagonal, relative to its mean, so that lanes with parallel gradients have a solution too."""


def dot(left: Vector, right: Vector) -> float:
    """The scalar product."""
    return _sumprod(left, right) if _sumprod is not None else math.fsum(map(mul, left, right))


def norm(vector: Vector) -> float:
    """The Euclidean length."""
    return math.sqrt(dot(vector, vector))


def combination(vectors: Sequence[Vector], coefficients: Sequence[float]) -> list[float]:
    """Σ coefficients[i] · vectors[i]."""
    total = [0.0] * len(vectors[0])
    for vector, coefficient in zip(vectors, coefficients, strict=True):
        total = [sum_ + coefficient * value for sum_, value in zip(total, vector, strict=True)]
    return total


def distance(left: Vector, right: Vector) -> float:
    """The length of the difference."""
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(left, right, strict=True)))


def fit(target: Vector, vectors: Sequence[Vector]) -> list[float]:
    """The coefficients whose combination of `vectors` is closest to `target`.

    Invariant: for independent vectors, `fit(combination(vectors, c), vectors)` is c up to rounding.
    """
    count = len(vectors)
    gram = [[0.0] * count for _ in range(count)]
    for row in range(count):
        for column in range(row + 1):
            gram[row][column] = gram[column][row] = dot(vectors[row], vectors[column])
    ridge = RIDGE * sum(gram[row][row] for row in range(count)) / count
    for row in range(count):
        gram[row][row] += ridge
    return solve(gram, [dot(vector, target) for vector in vectors])


def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss with the largest pivot; a column without a pivot gets the coefficient 0. Overwrites its arguments."""
    count = len(right)
    rows = list(range(count))
    pivots: list[tuple[int, int]] = []
    for column in range(count):
        row = max(rows, key=lambda row: abs(matrix[row][column]), default=None)
        if row is None or matrix[row][column] == 0.0:
            continue
        rows.remove(row)
        pivots.append((row, column))
        for other in rows:
            factor = matrix[other][column] / matrix[row][column]
            right[other] -= factor * right[row]
            matrix[other] = [a - factor * b for a, b in zip(matrix[other], matrix[row], strict=True)]
    solution = [0.0] * count
    for row, column in reversed(pivots):
        known = math.fsum(matrix[row][other] * solution[other] for other in range(count) if other != column)
        solution[column] = (right[row] - known) / matrix[row][column]
    return solution
