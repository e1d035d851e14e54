"""The arithmetic of `python -m benchmarks growth`, and what its command line refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # the benchmarks are beside the tests, and in no package that is installed

from benchmarks.__main__ import main  # noqa: E402
from benchmarks.growth.command import sizes  # noqa: E402
from benchmarks.growth.fitting import fit  # noqa: E402
from benchmarks.growth.quantities import QUANTITIES, Unit  # noqa: E402
from benchmarks.growth.table import amount, as_json, table_of_growth  # noqa: E402

RANKS = (1, 2, 4, 8, 16, 32, 64)


@given(st.floats(0.1, 1e6), st.floats(0.1, 10.0), st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]))
def test_the_power_of_what_grows_exactly_is_found(constant: float, share: float, power: float) -> None:
    values = {ranks: constant * (1 + share * ranks**power) for ranks in RANKS}
    growth = fit(values)
    assert growth is not None
    assert growth.power == pytest.approx(power, abs=0.051)
    assert all(growth.at(ranks) == pytest.approx(values[ranks], rel=0.01) for ranks in RANKS)


@given(st.floats(1e-6, 1e9), st.lists(st.floats(1.0, 1.14), min_size=4, max_size=7))
def test_what_differs_by_noise_does_not_grow(value: float, noise: list[float]) -> None:
    growth = fit({ranks: value * factor for ranks, factor in zip(RANKS, noise, strict=False)})
    assert growth is not None
    assert growth.power == 0.0


@pytest.mark.parametrize("values", [{}, {1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0, 4: 9.0}, {1: 0.0, 2: 1.0, 4: 2.0, 8: 3.0}])
def test_too_few_numbers_and_zeros_have_no_power(values: dict[int, float]) -> None:
    assert fit(values) is None


def test_a_row_that_grows_faster_than_it_may_is_marked() -> None:
    measured = {ranks: {"rank_files": 10.0 + ranks, "barrier_s": 1e-6 * ranks**2} for ranks in RANKS}
    barrier, files = table_of_growth(measured).splitlines()[1:]
    assert barrier.split()[-2:] == ["2.00!", "1"]
    assert files.split()[-2:] == ["1.00", "1"]
    assert {row["name"]: row["power"] for row in as_json(measured)} == {
        "barrier_s": pytest.approx(2.0),
        "rank_files": pytest.approx(1.0),
    }


def test_a_number_of_ranks_without_a_value_leaves_its_place_empty() -> None:
    header, row = table_of_growth({1: {}, 2: {"ring_s": 0.5}}).splitlines()
    assert header.split() == ["ranks", "1", "2", "power", "may", "be"]
    assert row.split() == ["a", "message", "to", "the", "next", "rank", "500", "ms", "1"]


def test_names_of_quantities_are_different() -> None:
    assert len({each.name for each in QUANTITIES}) == len(QUANTITIES)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0012, Unit.SECONDS, "1.2 ms"),
        (35e6, Unit.BYTES, "35 MB"),
        (78.0, Unit.COUNT, "78"),
        (0.02, Unit.COUNT, "0.020"),
    ],
)
def test_an_amount_has_a_unit_of_its_size(value: float, unit: Unit, text: str) -> None:
    assert amount(value, unit) == text


def test_each_number_of_ranks_is_twice_the_one_before_up_to_the_greatest() -> None:
    assert sizes(64) == [1, 2, 4, 8, 16, 32, 64]
    assert sizes(6) == [1, 2, 4, 6]
    assert sizes(1) == [1]


@pytest.mark.parametrize("words", [["--most", "0"], ["--most", "129"], ["--most", "x"], ["much"]])
def test_a_wrong_option_is_refused_in_one_sentence(words, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "growth", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
