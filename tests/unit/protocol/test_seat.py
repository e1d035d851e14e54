"""A node's place among the nodes of a round, and the numbers of its ranks."""

from hypothesis import given
from hypothesis import strategies as st

from samebits.protocol.meeting_place import Seat


def test_ranks_are_numbered_behind_those_of_lower_nodes() -> None:
    seats = [Seat(0, node, (4, 2, 1)) for node in range(3)]
    assert [seat.first_rank for seat in seats] == [0, 4, 6]
    assert {(seat.world_size, seat.num_nodes) for seat in seats} == {(7, 3)}


@given(st.lists(st.integers(1, 8), min_size=1, max_size=9))
def test_every_rank_is_on_exactly_one_node(sizes: list[int]) -> None:
    seats = [Seat(1, node, tuple(sizes)) for node in range(len(sizes))]
    ranks = [rank for seat in seats for rank in range(seat.first_rank, seat.first_rank + sizes[seat.node])]
    assert ranks == list(range(seats[0].world_size))
