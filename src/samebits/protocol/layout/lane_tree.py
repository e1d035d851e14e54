"""The lane tree: a fixed binary tree over the lanes, whose root is the step's gradient.

The node [a, b) splits at a + the largest power of two below b - a. Float addition is not associative, so *where* the
tree splits decides the bits; which rank computes a node does not. So a rank that carries the lanes [s, e) hands over
the values of the maximal subtrees inside [s, e), and any rank that holds the values of a disjoint cover by subtrees can
finish the sum with the same bits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")
Node = tuple[int, int]
"""A half-open range of lanes that is a node of the tree."""


def split(node: Node) -> int:
    """Where a node of two or more lanes splits: start + the largest power of two below its size."""
    start, end = node
    return start + (1 << (end - start - 1).bit_length() - 1)


def children(node: Node) -> tuple[Node, Node]:
    """The two halves of a node of two or more lanes."""
    middle = split(node)
    return (node[0], middle), (middle, node[1])


@cache
def maximal_subtrees(num_lanes: int, start: int, end: int) -> tuple[Node, ...]:
    """The fewest nodes of the tree over `num_lanes` lanes that cover exactly [start, end), in order.

    Invariant: they are disjoint, in order, and cover [start, end); none is inside a larger node that is itself inside
    [start, end).
    """

    def cover(node: Node) -> tuple[Node, ...]:
        if start <= node[0] and node[1] <= end:
            return (node,)
        if node[1] <= start or end <= node[0]:
            return ()
        left, right = children(node)
        return cover(left) + cover(right)

    return cover((0, num_lanes)) if start < end else ()


def fold(node: Node, values: Mapping[Node, T], add: Callable[[T, T], T]) -> T:
    """Compute the value of `node` from the values of any disjoint cover of it by nodes.

    Invariant: for a fixed `add` and given lane values, the result does not depend on the cover.
    """
    if node in values:
        return values[node]
    left, right = children(node)
    return add(fold(left, values, add), fold(right, values, add))


def merges_after(lane: int, subtrees: Sequence[Node], finished: Container[Node]) -> list[tuple[Node, Node]]:
    """Which pairs of nodes, left and right, merge into one after `lane` is computed, smallest first.

    A node is there when both its children are, so lanes may be computed in any order. Doing all merges of all lanes
    leaves exactly `subtrees`; in ascending or descending order at most log2 of the lanes are waiting at any time.

    Args:
        lane: the one that is computed now.
        subtrees: the nodes to leave.
        finished: the nodes that are there and not merged, without `lane` or with it.
    """
    merges = []
    for left, right in _above(lane, tuple(subtrees)):
        if (right if lane < left[1] else left) not in finished:
            break
        merges.append((left, right))
    return merges


@cache
def _above(lane: int, subtrees: tuple[Node, ...]) -> list[tuple[Node, Node]]:
    """The halves of each node that has `lane` in one of them, the smallest node first."""
    node = next(node for node in subtrees if node[0] <= lane < node[1])
    pairs = []
    while node[1] - node[0] > 1:
        pairs.append(children(node))
        node = pairs[-1][lane >= pairs[-1][0][1]]
    return pairs[::-1]


def merged(lanes: Mapping[int, T], subtrees: Sequence[Node], add: Callable[[T, T], T] = operator.add) -> list[T]:
    """The sums of consecutive lanes, which are those of `subtrees`; one for each subtree."""
    values: dict[Node, T] = {}
    for lane, value in lanes.items():
        values[lane, lane + 1] = value
        for left, right in merges_after(lane, subtrees, values):
            values[left[0], right[1]] = add(values.pop(left), values.pop(right))
    return [values[node] for node in subtrees]


def tree_sum(values: Sequence[float]) -> float:
    """The sum of one float per lane in the tree's order; 0.0 for no lanes."""
    if not values:
        return 0.0
    sums = list(values)
    for left, right in _merges(len(sums)):
        sums[left] += sums[right]
    return sums[0]


@cache
def _merges(size: int) -> list[tuple[int, int]]:
    """The first lanes of each two nodes that are added up, children before parents, of a tree over so many lanes."""
    nodes = [(0, size)]
    for node in nodes:
        if node[1] - node[0] > 1:
            nodes += children(node)
    return [(node[0], split(node)) for node in reversed(nodes) if node[1] - node[0] > 1]
