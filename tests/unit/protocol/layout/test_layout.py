"""The arithmetic of who has what: invariants, each for every input that hypothesis finds."""

import math
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.protocol.layout.chunks import ALIGNMENT, aligned_offsets, chunks_of
from samebits.protocol.layout.cut import Cut, num_steps, steps_of
from samebits.protocol.layout.lane_tree import children, fold, maximal_subtrees, merged, merges_after, split, tree_sum
from samebits.protocol.layout.placement import place, place_shares
from samebits.protocol.layout.stream_key import Domain, stream_key

LANES = st.integers(1, 40)


@given(st.integers(1, 500), LANES, st.data())
def test_lanes_are_a_disjoint_cover_in_order(batch_size, num_lanes, data):
    num_samples = data.draw(st.integers(0, batch_size))
    samples = list(range(num_samples))
    lanes = Cut(batch_size, num_lanes).lanes_of(samples)
    assert list(chain.from_iterable(lanes)) == samples
    assert [len(lane) for lane in lanes] == list(Cut(batch_size, num_lanes).sizes(num_samples))


@given(st.integers(1, 500), LANES)
def test_a_full_step_is_cut_as_numpy_array_split_cuts(batch_size, num_lanes):
    expected = [len(part) for part in np.array_split(np.arange(batch_size), num_lanes)]
    assert list(Cut(batch_size, num_lanes).full_sizes()) == expected


@given(st.integers(1, 500), LANES, st.data())
def test_a_short_step_fills_early_lanes_first(batch_size, num_lanes, data):
    cut = Cut(batch_size, num_lanes)
    sizes, full = cut.sizes(data.draw(st.integers(0, batch_size))), cut.full_sizes()
    partial = [lane for lane in range(num_lanes) if sizes[lane] != full[lane]]
    assert all(size == 0 for lane, size in enumerate(sizes) if partial and lane > partial[0])


@given(st.integers(1, 500), LANES)
def test_full_lanes_of_an_even_cut_weigh_exactly_one(batch_size, num_lanes):
    cut = Cut(batch_size, num_lanes)
    weights = [cut.weight(size) for size in cut.full_sizes()]
    assert max(weights) == 1.0
    if batch_size % num_lanes == 0:
        assert set(weights) == {1.0}


@given(st.lists(st.integers()), st.integers(1, 9), st.booleans())
def test_steps_keep_the_order_and_only_drop_last_drops(order, batch_size, drop_last):
    steps = list(steps_of(order, batch_size, drop_last))
    kept = list(chain.from_iterable(steps))
    assert kept == order[: len(kept)]
    assert len(order) - len(kept) == (len(order) % batch_size if drop_last else 0)
    assert len(steps) == num_steps(len(order), batch_size, drop_last)


@given(st.integers(2, 2000), st.integers(0, 100))
def test_a_node_splits_at_the_largest_power_of_two_below_its_size(size, start):
    left = split((start, start + size)) - start
    assert math.log2(left).is_integer()
    assert left < size <= 2 * left


@given(LANES, st.data())
def test_maximal_subtrees_cover_a_range_in_order_and_none_could_be_larger(num_lanes, data):
    start = data.draw(st.integers(0, num_lanes))
    end = data.draw(st.integers(start, num_lanes))
    nodes = maximal_subtrees(num_lanes, start, end)
    assert list(chain.from_iterable(range(*node) for node in nodes)) == list(range(start, end))
    assert not any(is_sibling(num_lanes, left, right) for left, right in pairwise(nodes))


def is_sibling(num_lanes, left, right):
    def search(node):
        if node[1] - node[0] < 2:
            return False
        return children(node) == (left, right) or any(search(child) for child in children(node))

    return search((0, num_lanes))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40), st.data())
def test_the_trees_value_does_not_depend_on_the_placement(values, data):
    num_lanes = len(values)
    bounds = sorted({0, num_lanes, *data.draw(st.lists(st.integers(0, num_lanes), max_size=6))})
    partials = {}
    for start, end in pairwise(bounds):
        subtrees = maximal_subtrees(num_lanes, start, end)
        held = {}
        for lane in range(start, end):
            held[lane, lane + 1] = values[lane]
            for left, right in merges_after(lane, subtrees, held):
                held[left[0], right[1]] = held.pop(left) + held.pop(right)
        assert sorted(held) == [*subtrees]
        partials |= held
    assert fold((0, num_lanes), partials, lambda a, b: a + b) == tree_sum(values)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40), st.data())
def test_lanes_may_be_added_in_any_order(values, data):
    subtrees = maximal_subtrees(len(values), 0, data.draw(st.integers(1, len(values))))
    order = data.draw(st.permutations(range(subtrees[-1][1])))
    in_order = merged({lane: values[lane] for lane in sorted(order)}, subtrees)
    assert merged({lane: values[lane] for lane in order}, subtrees) == in_order


@given(LANES)
def test_a_rank_holds_few_unmerged_nodes(num_lanes):
    assert most_held(range(num_lanes)) <= math.log2(num_lanes) + 2
    assert most_held(range(num_lanes)[::-1]) <= math.log2(num_lanes) + 2


def most_held(lanes):
    """As the lanes of a whole tree are computed in this order."""
    num_lanes, held, most = len(lanes), set(), 0
    for lane in lanes:
        held.add((lane, lane + 1))
        most = max(most, len(held))
        for left, right in merges_after(lane, [(0, num_lanes)], held):
            held -= {left, right}
            held.add((left[0], right[1]))
    assert held == {(0, num_lanes)}
    return most


@given(LANES, st.data())
def test_every_rank_gets_lanes_in_order_and_the_shares_are_even(num_lanes, data):
    placement = place(num_lanes, data.draw(st.integers(1, num_lanes)))
    ranges = [placement.lanes(rank) for rank in range(placement.num_ranks)]
    assert list(chain.from_iterable(ranges)) == list(range(num_lanes))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    assert all(lane in placement.lanes(placement.rank_of(lane)) for lane in range(num_lanes))


def test_eight_lanes_on_three_ranks_hand_over_two_two_and_one_buffers():
    placement = place(8, 3)
    assert [len(placement.lanes(rank)) for rank in range(3)] == [3, 3, 2]
    assert [len(placement.subtrees(rank)) for rank in range(3)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("num_lanes", "num_ranks", "most"), [(1, 1, 1), (2, 2, 1), (2, 1, 2), (8, 1, 4), (7, 1, 3), (8, 3, 3)]
)
def test_a_rank_holds_at_most_a_gradient_for_each_level_of_its_tree(num_lanes, num_ranks, most):
    assert place(num_lanes, num_ranks).most_held() == most


def test_the_even_placement_prefers_aligned_ranges():
    assert place(6, 4).bounds == (0, 2, 4, 5, 6)
    assert max(len(place(5, 2).subtrees(rank)) for rank in range(2)) == 2


def test_uneven_shares_are_possible():
    assert [len(place_shares(8, [5, 0, 3]).lanes(rank)) for rank in range(3)] == [5, 0, 3]
    with pytest.raises(UsageError, match="add up to 8"):
        place_shares(8, [5, 5])


def test_more_ranks_than_lanes_is_one_sentence_with_the_way_out():
    with pytest.raises(
        UsageError, match=r"`lanes` must be at least .* 2 with 4 ranks. Start with -n 2, or set lanes=4."
    ):
        place(2, 4)


@given(st.lists(st.integers(0, 10_000), max_size=8), st.integers(1, 4))
def test_chunks_cover_every_element_once_and_never_cross_a_parameter(sizes, units):
    chunks = list(chunks_of(sizes, units * ALIGNMENT))
    covered = [(chunk.parameter, i) for chunk in chunks for i in (chunk.start, chunk.end)]
    assert covered == sorted(covered)
    assert all(chunk.start % ALIGNMENT == 0 and chunk.start < chunk.end for chunk in chunks)
    for parameter, size in enumerate(sizes):
        assert sum(chunk.end - chunk.start for chunk in chunks if chunk.parameter == parameter) == size


@given(st.lists(st.integers(0, 5000), max_size=20), st.sampled_from([1, 2, 4, 8, 16]))
def test_flat_offsets_do_not_overlap_and_start_where_a_gpu_would_put_tensors(sizes, element_size):
    offsets, length = aligned_offsets(sizes, element_size=element_size)
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    assert all(offset >= end for offset, end in zip(offsets[1:], ends, strict=False))
    assert all(offset * element_size % 512 == 0 for offset in offsets)
    assert length >= max(ends, default=0)


def test_stream_keys_are_fixed_for_ever():
    assert stream_key(0, Domain.LANE, 1, 2, 0) == 12327905093975613899
    assert stream_key(0, Domain.FETCH, 1, 2, 0) != stream_key(0, Domain.LANE, 1, 2, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 999), st.integers(0, 9)), unique=True, max_size=60))
def test_neighbouring_places_have_different_streams(places):
    assert len({stream_key(seed, Domain.LANE, step, lane) for seed, step, lane in places}) == len(places)
