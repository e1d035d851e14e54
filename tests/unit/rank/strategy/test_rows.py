"""Tables by rows: every sum has the bits of the same sum over whole tables."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits.protocol.layout.placement import place
from samebits.rank.strategy.replica.arena import Segment
from samebits.rank.strategy.replica.sparse_embedding import Rows, added_over_ranks, agreed, around, is_rows, sum_of
from samebits.rank.transport.alone import AloneTransport

NUM_ROWS, WIDTH = 12, 3
VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, 1e-45, -1e-45, 3e38, float("inf"), float("nan"), 1 / 3])


@st.composite
def touched(draw, most=9):
    """Indices of a look-up, and the gradient of what it returned."""
    index = draw(st.lists(st.integers(0, NUM_ROWS - 1), max_size=most))
    values = draw(st.lists(VALUES, min_size=len(index) * WIDTH, max_size=len(index) * WIDTH))
    return torch.tensor(index, dtype=torch.int64), torch.tensor(values).view(len(index), WIDTH)


def whole(index, values):
    """The gradient as torch makes it without `sparse`."""
    return torch.ops.aten.embedding_dense_backward(values, index, NUM_ROWS, -1, False)


def table_of(rows):
    table = torch.full((NUM_ROWS, WIDTH), 7.0)
    rows.fill(table)
    return table


def same_bits(left, right):
    """NaNs may differ in what nobody reads."""
    same = left.view(torch.int32) == right.view(torch.int32)
    return bool((same | (left.isnan() & right.isnan())).all())


@given(touched())
def test_the_rows_of_a_look_up_are_those_of_the_whole_gradient(look_up):
    rows = Rows.summed(*look_up)
    assert same_bits(table_of(rows), whole(*look_up))
    assert same_bits(rows.sparse(whole(*look_up)).to_dense(), whole(*look_up))
    assert rows.index.tolist() == sorted(set(look_up[0].tolist()))


@given(touched(), touched(), st.sampled_from([0.5, 1 / 3, 1e-30, 2.0]))
def test_sums_and_weights_are_those_of_whole_gradients(first, second, weight):
    one, other = Rows.summed(*first).times(weight), Rows.summed(*second).times(weight)
    assert same_bits(table_of(one.plus(other)), whole(*first).mul_(weight).add_(whole(*second).mul_(weight)))


def test_a_weight_of_nothing_leaves_zeros_whatever_was_there():
    rows = Rows(torch.tensor([1]), torch.tensor([[float("nan")] * WIDTH])).times(0.0)
    assert table_of(rows).tolist() == torch.zeros(NUM_ROWS, WIDTH).tolist()


@given(st.lists(touched(), min_size=4, max_size=4), st.sampled_from([1.0, 0.25, 1 / 3]))
def test_over_ranks_too_only_some_rows_are_added(look_ups, scale):
    """One rank that holds four lanes: the transport adds what it is given, in the tree's order."""
    parameters = [torch.nn.Parameter(torch.ones(NUM_ROWS, WIDTH))]
    left, right = (Rows.summed(*a).plus(Rows.summed(*b)) for a, b in (look_ups[:2], look_ups[2:]))
    whole_sum = (whole(*look_ups[0]) + whole(*look_ups[1])) + (whole(*look_ups[2]) + whole(*look_ups[3]))
    counts = {0: left.plus(right).index.numel()}
    ranks = AloneTransport(), place(1, 1)
    found = added_over_ranks({0: [left.plus(right)]}, counts, parameters, ranks, ({}, scale))
    expected = whole_sum if scale == 1.0 else whole_sum * scale
    assert same_bits(table_of(found[0]), expected)


def test_ranks_agree_on_rows_only_where_nobody_has_a_whole_gradient():
    assert agreed([{0: 5, 1: 2}, {0: 7, 1: 0}]) == {0: 7, 1: 2}
    assert agreed([{0: 5, 1: 2}, {0: 7}]) == agreed([{0: 7}, {0: 5, 1: 2}]) == {0: 7}
    assert agreed([{0: 5}, {}]) == agreed([{}, {0: 5}]) == agreed([{}]) == {}


@given(st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(0, 20), max_size=6))
def test_what_is_around_holes_is_everything_else_once(start, length, edges):
    end, edges = start + length, sorted(edges)
    holes = [Segment(0, a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=False) if a < b]
    pieces = around(start, end, holes)
    left = [place for a, b in pieces for place in range(a, b)]
    inside = {place for hole in holes for place in range(hole.offset, hole.offset + hole.size)}
    assert left == [place for place in range(start, end) if place not in inside]
    assert all(a < b for a, b in pieces)


def test_a_gradient_with_rows_is_sparse_in_its_first_dimension():
    assert is_rows(torch.eye(3).to_sparse(1))
    assert not any(map(is_rows, (None, torch.eye(3), torch.eye(3).to_sparse(2))))


def test_a_sparse_and_a_dense_gradient_add_up_in_either_order():
    dense, sparse = torch.ones(3, 2), torch.eye(3, 2).to_sparse(1)
    for before, gradient in ((dense.clone(), sparse), (sparse, dense.clone()), (sparse.clone(), sparse)):
        total = sum_of(before, gradient)
        assert total.to_dense().equal(before.to_dense() if total is before else gradient.to_dense())
    assert sum_of(sparse, torch.ones(3, 2)).tolist() == (torch.eye(3, 2) + 1).tolist()
