"""A saved value replaces only one of its kind."""

import numpy as np
import pytest
import torch

from samebits.rank.checkpoint.format.likeness import unlike


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
    for own, saved, path in (
        (1, "x\x1b[2J", "lr"), (1, True, "lr"), (True, 1, "lr"), (1, 1 << 70, "lr"), (0.1, None, "lr"), ((0.9, 0.99), (0.8,), "lr"),
        ((0.9, 0.99), (0.8, "x"), "lr[1]"), ((0.9, 0.99), None, "lr"), ([1], [1, "x"], "lr[1]"), ({"a": {"b": 1}}, {"a": {"b": []}}, "lr.a.b"),
        ({"a": 1}, [1], "lr"), (torch.ones(2), torch.ones(3), "lr"), (torch.ones(2), torch.ones(2, dtype=torch.int64), "lr"),
    ):  # fmt: skip
        assert unlike(own, saved, "lr") == f"{path} is of another kind than in this run"


def test_rules():
    assert unlike({"a": 1}, {}, "the run") == ""
    assert unlike({"a": 1}, {}, "the run", all_keys=True)
    assert unlike({"a": [{"b": 1}]}, {"a": [{}]}, "it", all_keys=True).startswith("it.a[0] ")
    assert unlike([1], [None], "it", may_be_unset=True) == ""
