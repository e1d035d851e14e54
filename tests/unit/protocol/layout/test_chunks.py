"""Which rank updates which chunk: pure arithmetic."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from samebits.protocol.layout.chunks import ALIGNMENT, Chunk, shares

SIZES = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 9 * ALIGNMENT), st.integers(0, 900_000)), max_size=30)


@given(SIZES, st.data(), st.integers(1, 9))
def test_every_element_is_updated_by_one_rank(sizes, data, world_size):
    may_cut = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    found = shares(sizes, may_cut, world_size)
    assert len(found) == world_size
    chunks = [chunk for mine in found for chunk in mine]
    assert chunks == sorted(chunks, key=lambda chunk: (chunk.parameter, chunk.start))
    for number, size in enumerate(sizes):
        mine = [chunk for chunk in chunks if chunk.parameter == number]
        assert mine[0].start == 0
        assert mine[-1].end == size
        assert all(left.end == right.start for left, right in pairwise(mine))
        assert all(chunk.start % ALIGNMENT == 0 for chunk in mine)
        assert len(mine) == 1 or may_cut[number]
        assert len(mine) == 1 or all(chunk.start < chunk.end for chunk in mine)
    for mine in found:
        assert len({chunk.parameter for chunk in mine}) == len(mine)


@given(SIZES, st.integers(1, 9))
def test_ranks_update_equally_much(sizes, world_size):
    mean = sum(sizes) / world_size
    for mine in shares(sizes, [True] * len(sizes), world_size):
        assert abs(sum(chunk.end - chunk.start for chunk in mine) - mean) <= ALIGNMENT


@given(SIZES, st.integers(1, 9))
def test_where_nothing_is_cut_a_rank_is_off_by_one_parameter_at_most(sizes, world_size):
    mean = sum(sizes) / world_size
    for mine in shares(sizes, [False] * len(sizes), world_size):
        assert abs(sum(chunk.end - chunk.start for chunk in mine) - mean) <= max(sizes, default=0) + 1


def test_the_shares_of_a_small_network():
    one, two = shares([2048, 32, 320, 0, 10], [True] * 5, 2)
    assert one == (Chunk(0, 0, 1024),)
    assert two == (Chunk(0, 1024, 2048), Chunk(1, 0, 32), Chunk(2, 0, 320), Chunk(3, 0, 0), Chunk(4, 0, 10))
    assert shares([10], [True], 3) == ((), (Chunk(0, 0, 10),), ())
    assert shares([], [], 2) == ((), ())
    assert shares([0], [True], 2) == ((), (Chunk(0, 0, 0),))
