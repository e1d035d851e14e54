"""How far apart captured tensors are."""

import json
import math
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.protocol.run_folder import RunFolder
from samebits.verify.deviation import Captured, deviation, read_values

FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)


def captured(values: list[float], **facts: object) -> Captured:
    told = {"dtype": "float32", "shape": (len(values),), "stride": 1} | facts
    return Captured(array("d", values), array("q", array("d", values).tobytes()), **told)  # type: ignore[arg-type]


@given(st.lists(FINITE, max_size=20))
def test_a_tensor_does_not_deviate_from_itself(values: list[float]) -> None:
    found = deviation(captured(values), captured(values))
    assert found is not None
    assert (found.num_differing, found.max_absolute, found.ratio) == (0, 0.0, None)


@given(
    st.lists(FINITE.filter(lambda value: abs(value) > 1e-6), min_size=1, max_size=20), st.sampled_from([0.5, 2.0, 4.0])
)
def test_a_constant_ratio_is_found(values: list[float], factor: float) -> None:
    found = deviation(captured(values), captured([factor * value for value in values]))
    assert found is not None
    assert found.ratio == pytest.approx(factor)
    assert found.num_differing == found.num_elements == len(values)


def test_the_largest_difference_is_told_absolutely_and_relatively() -> None:
    found = deviation(captured([1.0, 4.0, 3.0]), captured([1.0, 3.5, 3.25]))
    assert found is not None
    assert (found.num_differing, found.max_absolute, found.max_relative) == (2, 0.5, 0.125)
    assert found.ratio is None


def test_minus_zero_differs_and_a_nan_equals_itself() -> None:
    found = deviation(captured([0.0, math.nan]), captured([-0.0, math.nan]))
    assert found is not None
    assert (found.num_differing, found.max_absolute) == (1, 0.0)


def test_a_nan_on_one_side_makes_the_largest_difference_a_nan() -> None:
    found = deviation(captured([1.0, 2.0]), captured([5.0, math.nan]))
    assert found is not None
    assert found.num_differing == 2
    assert math.isnan(found.max_absolute)


def test_what_a_rank_wrote_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_values(folder, 1) is None
    (tmp_path / "evidence").mkdir()
    told = {"dtype": "int32", "shape": [2, 1], "code": "q", "stride": 3}
    (tmp_path / "evidence" / "values-00001.json").write_text(json.dumps(told))
    (tmp_path / "evidence" / "values-00001.bin").write_bytes(array("q", [7, -8]).tobytes())
    read = read_values(folder, 1)
    assert read is not None
    assert (list(read.values), read.dtype, read.shape, read.stride) == ([7, -8], "int32", (2, 1), 3)
