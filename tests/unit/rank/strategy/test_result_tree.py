"""What models return: every tensor is found in one order and can be replaced, whatever holds it."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from samebits.rank.strategy.stages.results import built, form_of, tensors_of, with_tensors


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclass(frozen=True)
class Output:
    logits: Any
    rest: Any = None


class Own:
    """A result of a model's own class."""

    def __init__(self, logits):
        self.logits, self.words = logits, "kept"


leaves = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.builds(lambda: torch.zeros(1)))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Output, inner, inner),
        st.lists(inner, max_size=2).map(lambda values: OrderedDict(enumerate(values))),
    ),
    max_leaves=8,
)


@given(trees)
def test_every_tensor_is_found_once_and_replaced_in_its_place(tree):
    found = tensors_of(tree)
    numbers = {id(tensor): torch.tensor([float(number)]) for number, tensor in enumerate(found)}
    other = with_tensors(tree, lambda tensor: numbers[id(tensor)])
    assert [float(tensor) for tensor in tensors_of(other)] == list(map(float, range(len(found))))
    assert type(other) is type(tree)
    assert with_tensors(tree, lambda tensor: tensor) is tree


@given(trees)
def test_words_say_the_form_of_plain_results_only(tree):
    form = form_of(tree)
    if form is not None:
        tensors = tensors_of(tree)
        same = built(form, iter(tensors))
        assert [id(tensor) for tensor in tensors_of(same)] == list(map(id, tensors))
        assert repr(same) == repr(tree)


def test_an_object_of_an_own_class_is_looked_into_when_it_is_the_result_itself():
    own, cache = Own(torch.ones(2)), Own(torch.zeros(2))
    assert tensors_of(own) == [own.logits]
    other = with_tensors(own, lambda tensor: tensor + 1)
    assert (other.words, float(other.logits.sum()), float(own.logits.sum())) == ("kept", 4.0, 2.0)
    assert tensors_of({"cache": cache, "logits": own.logits}) == [own.logits]
    assert form_of(own) is None


@pytest.mark.parametrize("value", [torch.ones(1), None, 3, "text"])
def test_a_result_may_be_one_thing(value):
    assert tensors_of(value) == ([value] if isinstance(value, Tensor) else [])
