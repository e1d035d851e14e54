"""A saved value replaces only one of its kind."""

import numpy as np
import pytest
import torch

from lockstep.rank.checkpoint.load.likeness import unlike


@pytest.mark.parametrize(
    ("own", "saved"),
    [
        (1, 2.5), (0.1, torch.tensor(0.2)), (torch.tensor(0.1), 1), (True, False), (True, None), (None, [1]), ("a", "b"),
        ((0.9, 0.99), (0.8, 1)), ([1], [1, 2, 3]), ([], ["x"]), ({"a": 1, "b": 2}, {"a": 3, "c": "x"}),
        (torch.ones(2), torch.zeros(2, dtype=torch.float64)), (np.ones(3), np.zeros(3)),
    ],
)  # fmt: skip
def test_what_is_alike(own, saved):
    assert unlike(own, saved, "lr") == ""


def test_what_is_not_is_named_by_its_path():
    for own, saved, begin in (
        (1, "x\x1b[2J", r"lr is str 'x\x1b[2J', not int"), (1, True, "lr is bool"), (True, 1, "lr is int"),
        (1, 1 << 70, "lr is int"), (0.1, None, "lr is NoneType"), ((0.9, 0.99), (0.8,), "lr has 1 items, not 2"),
        ((0.9, 0.99), (0.8, "x"), "lr[1] is str"), ((0.9, 0.99), None, "lr is NoneType"), ([1], [1, "x"], "lr[1] is str"),
        ({"a": {"b": 1}}, {"a": {"b": []}}, "lr.a.b is list"), ({"a": 1}, [1], "lr is list"),
        (torch.ones(2), torch.ones(3), "lr is a Tensor of shape (3,)"),
        (torch.ones(2), torch.ones(2, dtype=torch.int64), "lr is a Tensor of shape (2,) and int64, not"),
    ):  # fmt: skip
        assert unlike(own, saved, "lr").startswith(begin)


def test_rules():
    assert unlike({"a": 1}, {}, "the run") == ""
    assert unlike({"a": 1}, {}, "the run", all_keys=True) == "the run has no 'a'"
    assert unlike({"a": [{"b": 1}]}, {"a": [{}]}, "it", all_keys=True) == "it.a[0] has no 'b'"
    assert unlike([1], [None], "it", may_be_unset=True) == ""
