"""Where two sides part, judged by what each operator read and wrote."""

import math

import pytest

from samebits.verify.lane_operators import BODY, Part, first_place
from samebits.verify.repeat.operators import Operator, Why, first_parting, ulps_apart


def op(number, name="aten.add.Tensor", inputs=("a",), outputs=("b",), line="train.py:1"):
    return Operator(number, name, line, False, (), tuple(inputs), tuple(outputs))


A, B, C, D, X = (letter * 32 for letter in "abcdf")
SAME = [op(0, inputs=(A,), outputs=(B,)), op(1, inputs=(B,), outputs=(C,))]


def test_sides_that_do_the_same_part_nowhere():
    assert first_parting(SAME, SAME, 3) is None


@pytest.mark.parametrize(
    ("theirs", "why", "number"),
    [
        ([SAME[0], op(1, inputs=(B,), outputs=(D,)), op(2, inputs=(D,))], Why.OPERATOR, 1),
        ([SAME[0], op(1, inputs=(X,), outputs=(D,))], Why.INPUT, 1),
        ([SAME[0], op(1, "aten.mul.Tensor", (B,), (D,))], Why.SEQUENCE, 1),
        ([SAME[0]], Why.SEQUENCE, 1),
        ([op(0, inputs=(A,), outputs=(X,)), op(1, inputs=(X,))], Why.OPERATOR, 0),
    ],
)
def test_the_first_place_is_named_with_what_it_is(theirs, why, number):
    parting = first_parting(SAME, theirs, 3)
    assert (parting.why, parting.number, parting.step) == (why, number, 3)


def test_an_argument_is_shown_as_it_is_on_both_sides():
    ours = [op(0, "aten.native_layer_norm.default", (A, (1e-5).hex()), (B,))]
    theirs = [op(0, "aten.native_layer_norm.default", (A, (1.5e-5).hex()), (C,))]
    parting = first_parting(ours, theirs, 1)
    assert (parting.why, parting.values) == (Why.ARGUMENT, ("1e-05", "1.5e-05"))


def test_random_numbers_in_another_state_are_no_operators_fault():
    ours = [op(0, "aten.bernoulli_.float", ("a", "generator 1"), ("b",))]
    theirs = [op(0, "aten.bernoulli_.float", ("a", "generator 2"), ("c",))]
    assert first_parting(ours, theirs, 1).why is Why.GENERATOR


def test_one_side_that_draws_nothing_is_in_another_state_too():
    ours = [op(0, "aten.bernoulli_.float", (A, "generator 1"), (B,))]
    assert first_parting(ours, [op(0, "aten.bernoulli_.float", (A,), (C,))], 1).why is Why.GENERATOR


def test_memory_that_nobody_wrote_to_may_be_equal_to_anything():
    ours = [op(0, inputs=("unwritten", A), outputs=(B,))]
    assert first_parting(ours, [op(0, inputs=(X, A), outputs=(B,))], 1) is None
    assert first_parting(ours, [op(0, inputs=(X, C), outputs=(D,))], 1).why is Why.INPUT


def lanes(**parts):
    """What a run wrote: `p1_lane0=(rank, operators)`; `p1_body=[(rank, operators), ...]`."""
    found = {}
    for word, part in parts.items():
        passes, lane = word[1:].split("_")
        at = int(passes), BODY if lane == "body" else int(lane.removeprefix("lane"))
        found[at] = [Part(rank, operators) for rank, operators in (part if isinstance(part, list) else [part])]
    return found


OTHER = [SAME[0], op(1, inputs=(B,), outputs=(D,))]
LATER = [op(0, inputs=(A,), outputs=(X,))]


@pytest.mark.parametrize(
    ("theirs", "place", "parted", "ranks"),
    [
        ({}, None, (), None),
        ({"p1_lane1": (1, OTHER)}, (1, 1), (1,), (0, 1)),
        ({"p1_lane0": (0, OTHER), "p1_lane1": (1, LATER)}, (1, 0), (0, 1), (0, 0)),
        ({"p1_lane1": (1, OTHER), "p0_body": [(0, SAME), (1, LATER)]}, (0, BODY), (), (0, 1)),
        ({"p1_lane1": (1, OTHER), "p1_body": [(0, LATER), (1, LATER)]}, (1, 1), (1,), (0, 1)),
        ({"p1_body": [(0, SAME), (1, OTHER)], "p2_lane0": (0, OTHER)}, (1, BODY), (), (0, 1)),
        ({"p2_lane0": (0, OTHER)}, (2, 0), (0,), (0, 0)),
    ],
)
def test_what_is_before_a_pass_comes_first_then_its_lanes_then_the_update(theirs, place, parted, ranks):
    same = {
        "p0_body": [(0, SAME), (1, SAME)],
        "p1_lane0": (0, SAME),
        "p1_lane1": (1, SAME),
        "p1_body": [(0, SAME), (1, SAME)],
        "p2_lane0": (0, SAME),
    }
    alone = {word: part[:1] if isinstance(part, list) else (0, SAME) for word, part in same.items()}
    found = first_place(lanes(**alone), lanes(**same | theirs), 4)
    assert (found.place if found else None) == place
    if found is not None:
        assert (found.parting.lanes, found.ranks, found.parting.step) == (parted, ranks, 4)
        assert found.parting.lane == (parted[0] if parted else None)


@pytest.mark.parametrize(
    ("one", "other", "dtype", "ulps"),
    [
        (1.0, 1.0, "float32", 0),
        (1.0, 1.0 + 2**-23, "float32", 1),
        (1.0, 1.0 - 2**-24, "float32", 1),
        (1.0, 1.0 + 2**-52, "float64", 1),
        (1.0, 1.0 + 3 * 2**-7, "bfloat16", 3),
        (-(2.0**-126), 2.0**-126, "float32", None),
        (math.nan, 1.0, "float32", 0),
        (1, 2, "int64", 0),
    ],
)
def test_how_many_numbers_lie_between(one, other, dtype, ulps):
    found = ulps_apart(one, other, dtype)
    assert found == ulps if ulps is not None else found > 2**23
