"""A saved value replaces only one of its kind."""

import numpy as np
import pytest
import torch

from lockstep.rank.checkpoint.likeness import unlike


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


@pytest.mark.parametrize(
    ("own", "saved", "said"),
    [
        (1, "x\x1b[2J", r"lr is str 'x\x1b[2J', not int '1'"),
        (1, True, "lr is bool 'True', not int '1'"),
        (True, 1, "lr is int '1', not bool 'True'"),
        (1, 1 << 70, "lr is int"),
        (0.1, None, "lr is NoneType 'None', not float '0.1'"),
        ((0.9, 0.99), (0.8,), "lr has 1 items, not 2"),
        ((0.9, 0.99), (0.8, "x"), "lr[1] is str 'x', not float '0.99'"),
        ((0.9, 0.99), None, "lr is NoneType 'None', not a sequence"),
        ([1], [1, "x"], "lr[1] is str 'x', not int '1'"),
        ({"a": {"b": 1}}, {"a": {"b": []}}, "lr.a.b is list '[]', not int '1'"),
        ({"a": 1}, [1], "lr is list '[1]', not a dictionary"),
        (
            torch.ones(2),
            torch.ones(3),
            "lr is a Tensor of shape (3,) and float32, not a Tensor of shape (2,) and float32",
        ),
        (torch.ones(2), torch.ones(2, dtype=torch.int64), "lr is a Tensor of shape (2,) and int64, not"),
    ],
)
def test_what_is_not_is_named_by_its_path(own, saved, said):
    assert unlike(own, saved, "lr").startswith(said)


def test_rules():
    assert unlike({"a": 1}, {}, "the run") == ""
    assert unlike({"a": 1}, {}, "the run", all_keys=True) == "the run has no 'a'"
    assert unlike({"a": [{"b": 1}]}, {"a": [{}]}, "it", all_keys=True) == "it.a[0] has no 'b'"
    assert unlike([1], [None], "it", may_be_unset=True) == ""
