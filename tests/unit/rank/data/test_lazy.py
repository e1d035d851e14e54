"""Items of a lazy sequence are made when they are come to."""

from __future__ import annotations

from samebits.rank.data.order import LazyIterable, LazyList


def test_items_are_made_when_they_are_come_to() -> None:
    made: list[int] = []
    pairs = LazyList(lambda number: (made.append(number), [number, number * 10])[1], 1000)
    flat = LazyIterable(lambda: (item for pair in pairs for item in pair), 2000)
    items = iter(flat)
    assert [next(items) for _ in range(5)] == [0, 0, 1, 10, 2]
    assert made == [0, 1, 2]
    assert (len(flat), len(flat[3:]), len(flat[3:][2:])) == (2000, 1997, 1995)
    assert list(flat[3:][2:])[:3] == [20, 3, 30]
    assert (flat[3], pairs[2:4]) == (10, [[2, 20], [3, 30]])
