"""Buffers that lanes write have one value on any number of ranks, whoever holds them, or are named."""

import pytest

from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import carried_buffers

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("script", carried_buffers.EQUAL, ids=lambda script: script.__name__)
def test_ranges_averages_and_tracked_modules_have_the_same_buffers_on_any_number_of_ranks(script):
    [alone] = run_ranks(script, Started(1))
    for ranks in (2, 3):
        assert run_ranks(script, Started(ranks)) == [alone] * ranks


def test_an_averages_buffer_without_a_rule_is_named():
    with pytest.raises(RankFailed, match=r"different values in the buffer 'average\.module\.0\.low'"):
        run_ranks(carried_buffers.average_without_a_rule, Started(2))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("script", carried_buffers.IN_A_LANE, ids=lambda script: script.__name__)
def test_a_buffer_that_gets_its_size_in_a_lane_is_one_sentence(script, ranks):
    with pytest.raises(RankFailed) as caught:
        run_ranks(script, Started(ranks))
    assert f"The buffer {carried_buffers.IN_A_LANE[script]} got its size inside a lane" in caught.value.message


@pytest.mark.thorough
def test_a_module_that_nobody_prepared_is_named_once_where_a_lane_writes_its_buffers():
    for ranks in (1, 2):
        [[told], *others] = run_ranks(carried_buffers.unprepared_teacher, Started(ranks))
        assert (
            "a lane wrote to the buffer BatchNorm1d.running_mean (and 2 more) of a module that was not prepared" in told
        )
        assert others == [[]] * (ranks - 1)
    assert run_ranks(carried_buffers.unprepared_teacher, Started(2), False) == [[], []]
