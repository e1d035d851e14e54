"""A value that is infinite or no number is found in every dtype; whole numbers are always finite."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from samebits.rank.checkpoint.format.finite import PIECE_BYTES, is_finite, may_be_infinite
from samebits.rank.checkpoint.format.tensor_file import CODES
from samebits.rank.position.model_state import infinite_parts

FLOATS = [dtype for dtype in CODES if dtype.is_floating_point or dtype.is_complex]


def data_of(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().data


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(bits=st.binary(min_size=16, max_size=64).map(lambda text: text[: len(text) // 16 * 16]))
def test_any_bits_are_judged_as_torch_judges_them(dtype, bits):
    tensor = torch.frombuffer(bytearray(bits), dtype=dtype)
    wide = tensor if dtype.itemsize > 1 else tensor.float()
    assert is_finite(CODES[dtype], bits) == bool(torch.isfinite(wide).all())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, PIECE_BYTES // 4, -1])
def test_one_value_is_found_wherever_it_lies(value, at):
    tensor = torch.full((PIECE_BYTES // 4 + 3,), 3e38)  # their sum is infinite, they are not
    assert is_finite("F32", data_of(tensor))
    tensor[at] = value
    assert not is_finite("F32", data_of(tensor))


def test_whole_numbers_are_finite():
    assert not any(may_be_infinite(code) for dtype, code in CODES.items() if dtype not in FLOATS)
    assert is_finite("I64", b"\xff" * 16)


def test_what_is_not_finite_from_the_beginning_is_buffers_and_frozen_parameters():
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.0, -float("inf")]))
    model.register_buffer("smallest", torch.tensor(float("inf")), persistent=False)
    model.register_buffer("seen", torch.tensor(0))
    model.limit = nn.Parameter(torch.tensor(float("inf")), requires_grad=False)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    assert infinite_parts(model) == ["limit", "mask", "smallest"]
