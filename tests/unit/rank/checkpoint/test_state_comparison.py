"""Tensors are compared by their bits, whatever their dtype; the largest difference is that of their numbers."""

import math

import pytest
import torch

from samebits.rank.checkpoint.format import comparison
from samebits.rank.checkpoint.format.comparison import difference
from samebits.rank.checkpoint.format.tensor_file import CODES


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_every_dtype_of_a_state_can_be_compared(dtype):
    left = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    right = left.clone()
    assert difference(left, right) == (0, 0.0)
    right[0, 1] = 0
    assert difference(left, right) == (1, 1.0)
    assert difference(left[0, 1], right[0, 1]) == (1, 1.0)
    assert difference(left[:0], right[:0]) == (0, 0.0)


def test_bits_count_and_not_numbers():
    assert difference(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])) == (1, 0.0)
    nan = torch.tensor([math.nan, math.inf])
    assert difference(nan, nan.clone()) == (0, 0.0)
    assert difference(torch.tensor([math.inf]), torch.tensor([-math.inf])) == (1, math.inf)
    assert difference(torch.tensor([math.inf, 1.0]), torch.tensor([math.inf, 3.0])) == (1, 2.0)
    count, largest = difference(torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 9.0]))
    assert count == 2
    assert math.isnan(largest)
    assert difference(torch.tensor([255, 0], dtype=torch.uint8), torch.tensor([0, 255], dtype=torch.uint8)) == (2, 255)


def test_a_tensor_of_several_pieces_is_compared_whole(monkeypatch):
    monkeypatch.setattr(comparison, "PIECE", 7)
    left = torch.arange(100.0)
    right = left.clone()
    right[[0, 50, 99]] += torch.tensor([1.0, 4.0, 2.0])
    assert difference(left, right) == (3, 4.0)
    assert difference(left.reshape(10, 10).T, right.reshape(10, 10).T) == (3, 4.0)


def test_values_differ_by_their_json_and_long_lists_are_one_value():
    def differing(left, right):
        leaves = comparison._leaves("", left, right)
        return [comparison._value(*leaf) for leaf in leaves if comparison._differs(*leaf[1:])]

    assert differing({"a": [1, {"b": 2}], "c": 0.0}, {"a": [1, {"b": 2}], "c": 0.0}) == []
    told = differing({"a": [1, {"b": 2}], "c": 0.0, "d": 1}, {"a": [1, {"b": 3}], "c": -0.0, "e": True})
    assert [tuple(one.values()) for one in told] == [
        ("a[1].b", "2", "3"), ("c", "0.0", "-0.0"), ("d", "1", ""), ("e", "", "true"),
    ]  # fmt: skip
    assert differing([1], [1.0])[0]["path"] == "[0]"
    tuples = [{"s": {"$": "tuple", "items": [*range(600), last]}} for last in (1, 2)]
    assert [(one["path"], one["left"]) for one in differing(*tuples)] == [("s", "1 of 601 items differ")]
