"""The numbers by which ranks compare their models: they change whatever a script does to a value."""

import pytest
import torch

from lockstep.strategy.replica.arena import COLUMNS, SUMMED, bit_sums

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, COLUMNS + 5, SUMMED + 2 * COLUMNS + 3])
def test_one_changed_element_changes_the_number(dtype, size):
    values = torch.ones(size, dtype=dtype)
    before = bit_sums([values])
    for place in (0, size // 2, size - 1):
        changed = values.clone()
        changed[place] = 0
        assert bit_sums([changed]) != before
    assert bit_sums([values.clone()]) == before


@pytest.mark.parametrize("rows", [3, 400])
def test_rows_that_change_places_change_the_number(rows):
    values = torch.randn(rows, 80)
    assert bit_sums([values.flip(0).reshape(-1)]) != bit_sums([values.reshape(-1)])
    assert bit_sums([values.roll(1, 0)]) != bit_sums([values])


def test_any_shape_has_a_number():
    odd = [torch.tensor(3.0), torch.zeros(0), torch.randn(300, 40).t(), torch.zeros(2, 0)]
    assert bit_sums(odd) == bit_sums([one.contiguous().reshape(-1) for one in odd])
