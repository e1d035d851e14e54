"""Least squares in plain Python, and what the row `plain` concludes from the lanes' gradients."""

import json
import math
import random
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.protocol.run_folder import RunFolder
from samebits.verify.plain import (
    Agreement,
    Lanes,
    combination,
    compare_gradients,
    distance,
    elements_for,
    fit,
    norm,
    read_lanes,
    sentence,
)

SHARES = st.lists(st.floats(0.1, 10.0), min_size=2, max_size=5)


def vectors(count: int, size: int = 60, seed: int = 0) -> list[list[float]]:
    generator = random.Random(seed)
    return [[generator.gauss(0, 1) for _ in range(size)] for _ in range(count)]


def verdict(weights: list[float], whole: list[float], lanes: list[list[float]], **facts: bool) -> Agreement:
    return compare_gradients(Lanes(lanes, weights, **facts), Lanes([whole], [1.0])).agreement


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.integers(0, 100))
def test_the_fit_finds_the_coefficients_of_a_combination(coefficients: list[float], seed: int) -> None:
    lanes = vectors(len(coefficients), seed=seed)
    assert fit(combination(lanes, coefficients), lanes) == pytest.approx(coefficients, abs=1e-6)


def test_the_fit_of_parallel_vectors_explains_the_target_all_the_same() -> None:
    first = vectors(1)[0]
    lanes = [first, [2 * value for value in first], [0.0] * len(first)]
    target = [3 * value for value in first]
    assert distance(target, combination(lanes, fit(target, lanes))) < 1e-6 * norm(target)


def test_the_fit_of_zeros_is_zero() -> None:
    assert fit([0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]) == [0.0, 0.0]


@given(SHARES, st.integers(0, 100))
def test_the_weighted_mean_of_the_lanes_agrees(weights: list[float], seed: int) -> None:
    lanes = vectors(len(weights), seed=seed)
    whole = combination(lanes, [weight / sum(weights) for weight in weights])
    assert verdict(weights, [value * (1 + 1e-6) for value in whole], lanes) is Agreement.AGREES


def test_rounding_of_lanes_that_cancel_is_rounding() -> None:
    first = vectors(1)[0]
    assert verdict([1.0, 1.0], [1e-6] * len(first), [first, [-value for value in first]]) is Agreement.AGREES


@given(st.integers(2, 6))
def test_a_loss_that_grows_with_the_samples_is_a_sum(count: int) -> None:
    lanes = vectors(count)
    plain = compare_gradients(Lanes(lanes, [1.0] * count), Lanes([combination(lanes, [1.0] * count)], [1.0]))
    assert plain.agreement is Agreement.SUM
    assert plain.relative == pytest.approx((count - 1) / count)
    assert "reduction='mean'" in sentence(plain)


def test_a_sum_over_uneven_lanes_is_a_sum() -> None:
    lanes = vectors(3)
    assert verdict([1.0, 1.0, 0.5], combination(lanes, [1.0, 1.0, 1.0]), lanes) is Agreement.SUM


def test_a_whole_gradient_that_is_a_multiple_of_the_mean_is_named_like_a_sum() -> None:
    lanes = vectors(2)
    assert verdict([1.0, 1.0], combination(lanes, [1.5, 1.5]), lanes) is Agreement.SUM


def test_other_shares_than_the_samples_are_found_and_told() -> None:
    lanes = vectors(3)
    plain = compare_gradients(Lanes(lanes, [1.0, 1.0, 1.0]), Lanes([combination(lanes, [0.5, 0.3, 0.2])], [1.0]))
    assert plain.agreement is Agreement.WEIGHTS
    assert plain.found == pytest.approx((0.5, 0.3, 0.2))
    assert "should count 0.500, 0.300, 0.200, but count 0.333, 0.333, 0.333" in sentence(plain)
    assert "weight=number" in sentence(plain)


def test_a_wrong_weight_that_the_script_passes_is_told_as_such() -> None:
    lanes = vectors(2)
    plain = compare_gradients(Lanes(lanes, [10.0, 20.0], explicit=True), Lanes([combination(lanes, [0.5, 0.5])], [1.0]))
    assert plain.agreement is Agreement.WEIGHTS
    assert "what is passed as weight= is not" in sentence(plain)


def test_a_whole_gradient_outside_of_what_the_lanes_span_is_coupled() -> None:
    *lanes, stranger = vectors(4)
    plain = compare_gradients(Lanes(lanes, [1.0] * 3), Lanes([stranger], [1.0]))
    assert plain.agreement is Agreement.COUPLED
    assert not plain.agrees
    assert "compares samples of a batch" in sentence(plain)


@pytest.mark.parametrize("whole", [[0.0, 0.0], [math.nan, 1.0]])
def test_a_gradient_that_is_zero_or_not_finite_shows_nothing(whole: list[float]) -> None:
    assert verdict([1.0, 1.0], whole, [[0.0, 0.0], [0.0, 0.0]]) is Agreement.NO_GRADIENT


def test_sixteen_bit_gradients_may_differ_by_their_own_rounding() -> None:
    lanes = vectors(2)
    whole = [value * 1.005 for value in combination(lanes, [0.5, 0.5])]
    assert compare_gradients(Lanes(lanes, [1.0, 1.0], dtype="bfloat16"), Lanes([whole], [1.0])).agrees
    assert not compare_gradients(Lanes(lanes, [1.0, 1.0]), Lanes([whole], [1.0])).agrees


@given(st.integers(1, 512))
def test_the_work_of_least_squares_is_bounded(num_lanes: int) -> None:
    elements = elements_for(num_lanes)
    assert elements >= 1000
    assert elements * num_lanes * num_lanes <= max(40_000_000, 1000 * num_lanes * num_lanes)


def test_lanes_are_read_with_their_weights_and_the_coarsest_dtype(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    assert read_lanes(folder, 100) is None
    words = {"explicit": True, "dtypes": ["float32"]}
    lanes = {"0": {"weight": 3.0, **words}, "2": {"weight": 1.0, **words}, "1": {"weight": 0.0, **words}}
    told = {"lanes": lanes, "batch_norms": 2, "autocast": ["bfloat16"]}
    (evidence / "lanes.json").write_text(json.dumps(told))
    for lane in (0, 1, 2):
        (evidence / f"lane-{lane:05d}.f32").write_bytes(array("f", [lane, 1, 2, 3]).tobytes())
    read = read_lanes(folder, 2)
    assert read is not None
    assert [list(gradient) for gradient in read.gradients] == [[0.0, 2.0], [2.0, 2.0]]
    assert read.shares == [0.75, 0.25]
    assert (read.explicit, read.batch_norms, read.dtype) == (True, 2, "bfloat16")


@pytest.mark.parametrize("size", [60, 3000])
def test_lanes_that_all_have_one_gradient_show_nothing(size: int) -> None:
    one, other = vectors(2, size)
    almost = [value * (1 + 1e-7) for value in one]
    assert verdict([2.0, 1.0], one, [one, almost]) is Agreement.SAME_LANES
    late = [*one[:-1], one[-1] + 1.0]
    mean = [(a + b) / 2 for a, b in zip(one, late, strict=True)]
    assert verdict([1.0, 1.0], mean, [one, late]) is Agreement.AGREES
    assert verdict([1.0, 1.0], [2 * value for value in one], [one, one]) is Agreement.SUM
    found = compare_gradients(Lanes([one, almost], [1.0, 1.0]), Lanes([one], [1.0]))
    assert not found.agrees
    assert "--accept plain" in sentence(found)
    assert verdict([1.0], other, [other]) is Agreement.AGREES
