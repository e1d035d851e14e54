"""What goes into a state comes back with its type and its bits, or is refused, naming its path."""

import json
import math
import struct
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.rank.position.exact_json import decode, encode
from samebits.rank.position.tally import Agreed


def round_trip(value):
    kept = {}

    def keep(path, tensor):
        kept[path] = tensor
        return path

    text = json.dumps(encode(value, "x", keep), allow_nan=False)
    return decode(json.loads(text), kept.__getitem__)


def same(one, other):
    """Equal types, values and bits, deep down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other)
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


keys = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
leaves = keys | st.floats(width=64) | st.complex_numbers(allow_nan=False) | st.binary() | st.frozensets(st.integers())
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.just("$"), inner)
        | st.dictionaries(keys, inner)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(values)
def test_every_value_comes_back_exactly(value):
    assert same(round_trip(value), value)


@pytest.mark.parametrize(
    "value",
    [
        Counter({3: 2, 1: 1}),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cuda:1"),
        range(3, 9, 2),
        {1, 2},
        np.float32(0.1),
        np.int64(-3),
        np.bool_(True),
        2**80,
    ],
    ids=repr,
)
def test_types_of_torch_and_numpy_come_back(value):
    back = round_trip({"a": [value]})["a"][0]
    assert type(back) is type(value)
    assert back == value


def test_tensors_and_arrays_are_kept_beside_the_json():
    tensor = torch.tensor([math.nan, -0.0, math.inf], dtype=torch.bfloat16)
    back = round_trip({"t": tensor, "zero": torch.tensor(3), "array": np.arange(6.0).reshape(2, 3).T})
    assert torch.equal(back["t"].view(torch.int16), tensor.view(torch.int16))
    assert back["zero"].shape == ()
    assert isinstance(back["array"], np.ndarray)
    assert np.array_equal(back["array"], np.arange(6.0).reshape(2, 3).T)


def test_a_number_that_was_agreed_on_is_a_float():
    assert type(round_trip(Agreed(0.5))) is float


Point = namedtuple("Point", "x")  # noqa: PYI024 - what a script may have
Color = IntEnum("Color", "RED")


@pytest.mark.parametrize(
    "value",
    [object(), len, lambda: 1, Point(1), Color.RED, Path("a"), np.array(["a"]), np.datetime64("2026-01-01")],
    ids=lambda value: type(value).__name__,
)
def test_what_needs_pickle_is_refused_by_its_path(value):
    with pytest.raises(UsageError, match=r"x\.a\[1\].* is .*, which cannot be saved without pickle"):
        round_trip({"a": [0, value]})


def test_what_is_nested_too_deeply_is_refused():
    value = []
    for _ in range(3000):
        value = [value]
    with pytest.raises(UsageError, match="deep is nested too deeply"):
        encode(value, "deep", lambda name, tensor: name)


def test_what_contains_itself_is_refused():
    value = {}
    value["again"] = [value]
    with pytest.raises(UsageError, match=r"x\.again\[0\] contains itself"):
        round_trip(value)


@pytest.mark.parametrize(
    "text",
    [
        '{"$": "os.system"}',
        '{"$": []}',
        '{"$": "dtype", "name": "load"}',
        '{"$": "float"}',
        '{"$": "device", "name": "somewhere"}',
        '{"$": "size", "items": [1e400]}',
        '{"$": "dict", "items": [1]}',
    ],
)
def test_what_samebits_does_not_write_is_refused(text):
    with pytest.raises(UsageError, match="which samebits does not write"):
        decode(json.loads(text), {}.__getitem__)
