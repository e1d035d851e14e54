"""The numbers by which ranks compare their models: they change whatever a script does to a value."""

import pytest
import torch

from samebits.rank.strategy.agreement import COLUMNS, SUMMED, bit_sums

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


@pytest.mark.parametrize("size", [3, 2 * COLUMNS, 20 * COLUMNS + 5, SUMMED + 2 * COLUMNS + 3])
def test_any_two_elements_that_change_places_change_the_number(size):
    values = torch.arange(size, dtype=torch.float32)
    before = bit_sums([values])
    for first, second in ((0, 1), (0, size - 1), (size % COLUMNS, COLUMNS * (size // COLUMNS - 1) + size % COLUMNS)):
        if first != second and 0 <= second < size:
            changed = values.clone()
            changed[first], changed[second] = values[second], values[first]
            assert bit_sums([changed]) != before


@pytest.mark.parametrize("size", [1, 20 * COLUMNS + 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_any_flipped_bit_changes_the_number(dtype, size):
    values = torch.randn(size).to(dtype)
    values[0] = torch.nan
    before, raw = bit_sums([values]), values.view(torch.uint8)
    for byte in (0, raw.numel() // 2, raw.numel() - 1):
        for bit in range(8):
            raw[byte] ^= 1 << bit
            assert bit_sums([values]) != before
            raw[byte] ^= 1 << bit
    assert bit_sums([values]) == before


def test_zeros_of_either_sign_and_nans_of_other_payloads_differ():
    nan, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert bit_sums([torch.tensor([0.0])]) != bit_sums([torch.tensor([-0.0])])
    assert bit_sums([nan]) != bit_sums([other])
