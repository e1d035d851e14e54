"""For whom ranks wait in the end."""

import pytest

from samebits.launcher.diagnosis.scene import Life, RankScene, Wait
from samebits.launcher.diagnosis.stalls import holdups


def scenes(*behind, ended=()):
    """Rank r waits for `behind[r]`; None: it does not wait."""
    return {
        rank: RankScene(
            rank,
            Life.ENDED if rank in ended else Life.RUNS,
            None,
            None if ranks is None else Wait(10.0 + rank, frozenset(ranks), "a barrier"),
        )
        for rank, ranks in enumerate(behind)
    }


@pytest.mark.parametrize(
    ("behind", "culprits", "waiting", "is_circle"),
    [
        (([1], None), {1}, {0}, False),
        (([3], [3], [3], None), {3}, {0, 1, 2}, False),
        (([1], [2], None, None), {2}, {0, 1}, False),  # a chain; rank 3 is nobody's business
        (([], None, None), {1, 2}, {0}, False),  # nobody knows for whom
        (([1], [0]), {0, 1}, {0, 1}, True),
        (([1], [2], [1]), {1, 2}, {0, 1, 2}, True),  # rank 0 waits for the circle, and is not in it
        (([2], [2], []), {0, 1, 2}, {0, 1, 2}, True),  # all wait, and rank 2 may wait for both
    ],
)
def test_a_chain_of_waits_ends_at_the_culprits(behind, culprits, waiting, is_circle):
    (found,) = holdups(scenes(*behind))
    assert (found.culprits, found.waiting, found.is_circle) == (culprits, waiting, is_circle)


def test_pairs_that_wait_apart_are_told_apart_and_the_longest_wait_comes_first():
    found = holdups(scenes([1], None, [3], None))
    assert [sorted(holdup.culprits) for holdup in found] == [[3], [1]]
    assert [holdup.waited_s for holdup in found] == [12.0, 10.0]


def test_a_circle_lasts_since_its_last_member_waits_and_not_since_others_wait_for_it():
    assert [holdup.waited_s for holdup in holdups(scenes([1], [2], [1]))] == [11.0]


def test_nobody_is_held_up_where_nobody_waits_or_only_for_ranks_that_have_ended():
    assert holdups(scenes(None, None)) == []
    assert holdups(scenes([1], None, ended={1})) == []
