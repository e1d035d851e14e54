"""Sums that cross between nodes: who carries what, how many bytes leave a node, and lanes that make nodes whole subtrees."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.protocol.layout.mesh import Form, choose_mesh
from samebits.protocol.layout.placement import Crossing, choose_crossing, nodes_of, place, place_shares, sized

SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=6)


@given(SIZES, st.integers(0, 20), st.integers(0, 3000), st.booleans())
def test_every_element_is_carried_by_one_rank_of_each_node_and_added_up(sizes, more_lanes, size, is_small):
    nodes = sized(sizes)
    placement = place(nodes.num_ranks + more_lanes, nodes.num_ranks, nodes)
    way = choose_crossing(nodes, placement, is_small=is_small)
    for node in range(nodes.num_nodes):
        carried = [way.carried(rank, size) for rank in nodes.ranks(node)]
        assert sorted(itertools.chain(*(range(one.start, one.stop) for one in carried))) == list(range(size))
    parts = [slice(part * size // way.num_parts, (part + 1) * size // way.num_parts) for part in range(way.num_parts)]
    shares = [way.share(part, node) for part in parts for node in range(nodes.num_nodes)]
    assert list(itertools.chain(*(range(one.start, one.stop) for one in shares))) == list(range(size))
    subtrees = list(itertools.chain(*(way.subtrees(node) for node in range(nodes.num_nodes))))
    assert list(itertools.chain(*(range(*subtree) for subtree in subtrees))) == list(range(placement.num_lanes))


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4), (2, 2, 2, 2), (4, 2), (1, 1), (8,) * 16])
def test_whole_subtrees_send_what_a_ring_of_nodes_would(sizes):
    nodes = sized(sizes)
    way = choose_crossing(nodes, place(nodes.num_ranks, nodes.num_ranks, nodes), is_small=False)
    ring = 2 * (len(sizes) - 1) / len(sizes)
    assert [way.sent(node) for node in range(len(sizes))] == [ring] * len(sizes)


def test_ten_thousand_nodes_of_eight_ranks_send_no_more_each_than_two():
    nodes = sized([8] * 10_000)
    way = choose_crossing(nodes.among(range(800)), place(800, 800, sized([8] * 100)), is_small=False)
    assert max(way.sent(node) for node in range(100)) < 2 * 2
    assert place(nodes.num_ranks, nodes.num_ranks, nodes).num_ranks == 80_000


@given(SIZES, st.integers(0, 20))
def test_lanes_are_placed_evenly_on_any_nodes(sizes, more_lanes):
    nodes = sized(sizes)
    placement = place(nodes.num_ranks + more_lanes, nodes.num_ranks, nodes)
    shares = [len(placement.lanes(rank)) for rank in range(nodes.num_ranks)]
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == placement.num_lanes


def test_lanes_are_placed_so_that_nodes_are_whole_subtrees_where_even_shares_allow_it():
    nodes = sized([2, 2])
    assert place(6, 4, nodes).bounds == (0, 2, 4, 5, 6)
    assert place(6, 4).subtrees(0) == ((0, 2),)
    for num_lanes, sizes in ((12, [4, 2]), (8, [2, 2]), (8, [1, 1]), (24, [4, 4, 4])):
        placement = place(num_lanes, sum(sizes), sized(sizes))
        way = choose_crossing(sized(sizes), placement, is_small=False)
        assert [len(way.subtrees(node)) for node in range(len(sizes))] == [1] * len(sizes)


def key(placement, nodes):
    """What the best placement has least of: subtrees of the worst node, of nodes, of the worst rank, of ranks."""
    way = choose_crossing(nodes, placement, is_small=True)
    of_nodes = [len(way.subtrees(node)) for node in range(nodes.num_nodes)]
    of_ranks = [len(placement.subtrees(rank)) for rank in range(placement.num_ranks)]
    return max(of_nodes), sum(of_nodes), max(of_ranks), sum(of_ranks)


@pytest.mark.parametrize("sizes", [(3,), (1, 2), (2, 1, 2), (2, 3)])
@pytest.mark.parametrize("more_lanes", range(8))
def test_no_even_placement_is_better_than_the_one_that_is_chosen(sizes, more_lanes):
    nodes = sized(sizes)
    num_lanes = nodes.num_ranks + more_lanes
    size, larger = divmod(num_lanes, nodes.num_ranks)
    others = [
        place_shares(num_lanes, [size + (rank in chosen) for rank in range(nodes.num_ranks)])
        for chosen in itertools.combinations(range(nodes.num_ranks), larger)
    ]
    assert key(place(num_lanes, nodes.num_ranks, nodes), nodes) == min(key(one, nodes) for one in others)


def test_a_sum_takes_the_way_on_which_the_worst_node_sends_least():
    nodes = sized([1, 1, 1])
    placement = place(3, 3, nodes)
    one_step, two_steps = (Crossing(nodes, placement, 1, in_one_step=one) for one in (True, False))
    assert [one_step.sent(0), two_steps.sent(0)] == [2, 2 * 2 / 3]
    assert choose_crossing(nodes, placement, is_small=False) == two_steps
    assert choose_crossing(nodes, placement, is_small=True) == one_step


def test_ranks_of_a_node_that_are_not_neighbours_are_no_nodes():
    assert nodes_of(["a", "a", "b"]) == sized([2, 1])
    assert nodes_of(["a", "b", "a"]) is None


def test_some_of_the_ranks_are_on_some_of_the_nodes():
    assert sized([2, 3, 1]).among([0, 3, 4]) == sized([1, 2])
    assert sized([2, 3, 1]).among([2, 4]) == sized([2])


def test_hogwild_and_dp_are_refused_over_nodes():
    with pytest.raises(UsageError, match="hogwild shares the parameters in the memory of one node"):
        choose_mesh(Form("hogwild"), 4).check_nodes(2)
    choose_mesh(Form("hogwild"), 4).check_nodes(4)
    choose_mesh(Form("zero1"), 4).check_nodes(2)
    with pytest.raises(UsageError, match="one process with one replica per device"):
        choose_mesh(Form("dp"), 4)
