"""The compiled part adds up partials in the lane tree's order: the program that says so, evaluated here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.protocol.layout.lane_tree import fold
from samebits.protocol.layout.placement import place, place_shares
from samebits.rank.transport.shared_memory import MOST_PARTS, program_of

COMBINE = 255


def evaluated(program, leaves):
    stack = []
    for byte in program:
        if byte == COMBINE:
            right, left = stack.pop(), stack.pop()
            stack.append(f"({left}+{right})")
        else:
            stack.append(leaves[byte])
    assert len(stack) == 1
    return stack[0]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
def test_a_program_adds_up_in_the_order_of_the_tree(shares):
    placement = place_shares(sum(shares), shares)
    program, counts = program_of(placement)
    nodes = [placement.subtrees(rank) for rank in range(placement.num_ranks)]
    assert [*counts] == [len(of_rank) for of_rank in nodes]
    names = {node: f"{node[0]}-{node[1]}" for of_rank in nodes for node in of_rank}
    in_order = [names[node] for of_rank in nodes for node in of_rank]
    assert evaluated(program, in_order) == fold((0, sum(shares)), names, lambda left, right: f"({left}+{right})")


def test_more_partials_than_a_program_can_name_are_one_sentence():
    assert program_of(place(200, 200))[1] == bytes([1] * 200)
    shares = [3, 4, 5] * 40
    with pytest.raises(UsageError, match=f"can add up at most {MOST_PARTS}"):
        program_of(place_shares(sum(shares), shares))
