"""The row `plain`: is the gradient over L lanes the gradient of the whole batch?

Equal bits on any number of ranks cannot show that a loss is not a mean over samples: every rank makes the same mistake.
So the first step is computed twice on one rank, with L lanes and with one, with dropout, batch statistics and random
numbers switched off; the weighted mean of the lanes' gradients must be the whole gradient up to rounding. If it is not,
least squares finds which combination of the lanes' gradients gives the whole one, and that separates the mistakes.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import mul

from samebits.protocol.run_folder import RunFolder

PLAIN, SCRIPT = "plain", "script"
ACCEPTABLE = {PLAIN: "a `plain` row that does not agree", SCRIPT: "an --against file from another script"}
"""What `--accept` can name, and what that means."""
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


TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "tfloat32": 3e-3, "float16": 3e-3, "bfloat16": 2e-2}
"""The largest distance that counts as rounding, relative to the lanes' gradients. Measured with 4 lanes: in float32
1.7e-7 for the digits CNN and 1.3e-7 for the small GPT; in float64 4e-8, because gradients are handed over as float32;
in bfloat16, model or autocast, 2e-3, because each lane rounds its sums. "tfloat32": float32 whose products round to it.
Mistakes give 1e-2 and more."""
MAX_WORK = 40_000_000
"""How many multiplications the comparison may cost; of longer gradients only every k-th element is looked at."""
SAME = 0.1
"""Lanes closer than this fraction of a tolerance have the same gradient: different samples are never so close."""
GLANCE = 1000
"""This many elements nearly always distinguish lanes."""
EXPLAINED = 1e-2
"""A combination that leaves less than this fraction of the whole gradient explains it."""


class Agreement(StrEnum):
    """What the row `plain` found."""

    AGREES = "agrees"
    ONE_LANE = "one lane"
    """The run has one lane, so there is nothing to compare."""
    NO_GRADIENT = "no gradient"
    """The first gradient is zero or not finite, so there is nothing to compare."""
    SAME_LANES = "same lanes"
    """All lanes have the same gradient, because their samples are drawn inside them; the row shows nothing."""
    SUM = "sum"
    WEIGHTS = "weights"
    COUPLED = "coupled"
    """The whole gradient is not a combination of the lanes' gradients."""


@dataclass(frozen=True)
class Lanes:
    """The gradients of the first step."""

    gradients: Sequence[Sequence[float]]
    """Of each lane that has samples, every k-th element."""
    weights: Sequence[float]
    """The weight of each of these lanes, not normalised."""
    explicit: bool = False
    """Whether the script passed `weight=`."""
    batch_norms: int = 0
    """BatchNorm layers in the model."""
    dtype: str = "float32"
    """The coarsest dtype in which gradients were computed."""

    @property
    def shares(self) -> list[float]:
        """The weights, adding up to 1."""
        total = math.fsum(self.weights)
        return [weight / total for weight in self.weights]


@dataclass(frozen=True)
class Plain:
    """The verdict."""

    agreement: Agreement
    num_lanes: int
    relative: float = 0.0
    """‖whole − mean of lanes‖ / ‖whole‖."""
    tolerance: float = 0.0
    used: tuple[float, ...] = ()
    """The lanes' shares as samebits used them."""
    found: tuple[float, ...] = ()
    """The shares by which the lanes' gradients give the whole one."""
    explicit: bool = False
    batch_norms: int = 0

    @property
    def agrees(self) -> bool:
        """Whether nothing speaks against the script."""
        return self.agreement in (Agreement.AGREES, Agreement.ONE_LANE)


def read_lanes(folder: RunFolder, budget: int) -> Lanes | None:
    """What a run with evidence `plain` wrote, about `budget` elements of each lane; None if it never came that far."""
    description = folder.path / "evidence" / "lanes.json"
    if not description.exists():
        return None
    record = json.loads(description.read_text())
    lanes = {int(lane): words for lane, words in record["lanes"].items() if words["weight"] > 0}
    dtypes = {dtype for words in lanes.values() for dtype in words["dtypes"]} | set(record["autocast"])
    return Lanes(
        gradients=[_gradient(folder, lane, budget) for lane in sorted(lanes)],
        weights=[lanes[lane]["weight"] for lane in sorted(lanes)],
        explicit=any(words["explicit"] for words in lanes.values()),
        batch_norms=record["batch_norms"],
        dtype=max(dtypes, key=lambda dtype: TOLERANCES.get(dtype, 0.0), default="float32"),
    )


def _gradient(folder: RunFolder, lane: int, budget: int) -> array[float]:
    values: array[float] = array("f")
    values.frombytes((folder.path / "evidence" / f"lane-{lane:05d}.f32").read_bytes())
    return values[:: max(len(values) // budget, 1)]


def elements_for(num_lanes: int) -> int:
    """How many elements of each gradient to look at, so that least squares over `num_lanes` stays within `MAX_WORK`."""
    return max(MAX_WORK // (num_lanes * (num_lanes + 5)), 1000)


def compare_gradients(lanes: Lanes, whole: Lanes) -> Plain:
    """Compare the mean over lanes with the gradient of the whole batch.

    Args:
        lanes: the run with L lanes.
        whole: the same step with one lane.
    """
    target, shares = whole.gradients[0], lanes.shares
    mean = combination(lanes.gradients, shares)
    gap, size = distance(target, mean), norm(target)
    # Where the lanes' gradients cancel out, the whole one is small and consists of rounding: so both are looked at.
    scale = max(size, math.fsum(share * norm(lane) for share, lane in zip(shares, lanes.gradients, strict=True)))
    tolerance = TOLERANCES.get(max((lanes.dtype, whole.dtype), key=lambda dtype: TOLERANCES.get(dtype, 0.0)), 1e-4)
    relative = gap / size if size else math.inf if gap else 0.0
    found: list[float] = []
    if not math.isfinite(gap) or scale == 0.0:
        agreement = Agreement.NO_GRADIENT
    elif gap <= tolerance * scale:
        agreement = Agreement.SAME_LANES if _all_the_same(lanes.gradients, SAME * tolerance) else Agreement.AGREES
    else:
        agreement, found = _explain(target, lanes.gradients, shares)
    return Plain(
        agreement,
        num_lanes=len(shares),
        relative=relative,
        tolerance=tolerance,
        used=tuple(shares),
        found=tuple(found),
        explicit=lanes.explicit,
        batch_norms=lanes.batch_norms,
    )


def _all_the_same(gradients: Sequence[Sequence[float]], tolerance: float) -> bool:
    """Whether several lanes have the same gradient, up to `tolerance` of its norm."""
    first, *others = gradients
    allowed = tolerance * norm(first)
    # A glance first: it spares most scripts the comparison of whole gradients.
    return bool(others) and all(
        distance(first[:GLANCE], other[:GLANCE]) <= allowed and distance(first, other) <= allowed for other in others
    )


def _explain(
    target: Sequence[float], gradients: Sequence[Sequence[float]], shares: Sequence[float]
) -> tuple[Agreement, list[float]]:
    """Whether it is a sum over samples, other weights, or no combination at all; with the coefficients found."""
    size = norm(target)
    ones = [1.0] * len(gradients)
    # The commonest mistake first; it needs no fit.
    if distance(target, combination(gradients, ones)) <= EXPLAINED * size:
        return Agreement.SUM, ones
    found = fit(target, gradients)
    left = distance(target, combination(gradients, found))
    total = math.fsum(found)
    # Weights of a mean are not negative and add up to 1, up to what the fit leaves.
    if left <= EXPLAINED * size and min(found) > -0.02 and abs(total - 1.0) < 0.05:
        return Agreement.WEIGHTS, [coefficient / total for coefficient in found]
    mean = combination(gradients, shares)
    # A sum over samples is a multiple of the mean, also where lanes have different numbers of samples.
    factor = dot(target, mean) / dot(mean, mean) if norm(mean) else 0.0
    if factor > 0 and distance(target, [factor * value for value in mean]) <= EXPLAINED * size:
        return Agreement.SUM, [factor * share for share in shares]
    return Agreement.COUPLED, found


_NOTHING_COMPARED = {
    Agreement.ONE_LANE: "The run has one lane, so there is nothing to compare with the whole batch.",
    Agreement.NO_GRADIENT: (
        "The first step's gradient is zero or not finite, so the lanes cannot be compared with the whole batch."
    ),
    Agreement.SAME_LANES: (
        "It shows nothing: all lanes have the same gradient. Random numbers are the same in all lanes here, and the "
        "lanes' samples seem to be drawn from them (get_batch or an environment inside a lane). Let a data set give "
        "the samples, so that lanes can be compared with the whole batch; or accept it with --accept plain."
    ),
}


def sentence(plain: Plain) -> str:
    """What the row says, with the fix if something is wrong."""
    lanes = f"{plain.num_lanes} lanes"
    apart = f"relative difference {plain.relative:.2g}"
    if plain.agreement is Agreement.AGREES:
        return f"{lanes} give the gradient of the whole batch ({apart})."
    if plain.agreement in _NOTHING_COMPARED:
        return _NOTHING_COMPARED[plain.agreement]
    if plain.agreement is Agreement.SUM:
        return (
            f"{lanes} do not give the gradient of the whole batch ({apart}): the loss grows with the number of samples "
            f"or lanes, as a sum does. Use the mean over the lane's samples (reduction='mean'), and do not "
            f"divide by the number of lanes. To train with the sum over the batch, multiply that mean by "
            f"step.num_samples."
        )
    if plain.agreement is Agreement.WEIGHTS:
        return _weights(plain, f"{lanes} do not give the gradient of the whole batch ({apart})")
    norms = " A custom batch norm may be the cause." if not plain.batch_norms else ""
    return (
        f"{lanes} do not give the gradient of the whole batch ({apart}), and no lane weights would: the loss "
        f"compares samples of a batch with each other (as a contrastive loss does), normalizes over the batch, or "
        f"draws random numbers that are not one per sample, or from NumPy or `random`.{norms} A lane sees only its own "
        f"samples, so results differ by the number of lanes, not by that of ranks: see step.backward(..., over_batch=), or accept what is intended with --accept plain."
    )


def _weights(plain: Plain, begin: str) -> str:
    used, found = (", ".join(f"{share:.3f}" for share in shares[:8]) for shares in (plain.used, plain.found))
    fix = (
        "what is passed as weight= is not what the loss is a mean over"
        if plain.explicit
        else "pass that number: run.backward(loss, weight=number)"
    )
    return (
        f"{begin}: the loss is a mean over something other than samples (tokens that are not padding?). The lanes "
        f"should count {found}, but count {used}; {fix}."
    )
