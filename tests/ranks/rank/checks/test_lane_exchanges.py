"""What a script exchanges itself inside a lane is refused at the call, with any number of ranks and over any back end."""

import pytest

from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import lane_exchanges
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

WAYS = {"one rank": Started(1), "shared memory": Started(2), "gloo": Started(2, nodes=(1, 1))}


@promise(
    "never-a-silent-wrong-gradient",
    "A collective of `torch.distributed` inside a lane is one sentence, over any back end and on one rank",
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("script", lane_exchanges.INSIDE, ids=lambda script: script.__name__)
def test_a_collective_inside_a_lane_is_one_sentence(script, way):
    with pytest.raises(RankFailed) as caught:
        run_ranks(script, WAYS[way])
    assert caught.value.error_type == "UsageError"
    told = f"{lane_exchanges.INSIDE[script]} exchanges with other ranks, and was called inside a lane ("
    assert told in caught.value.message


def test_a_call_of_the_group_itself_is_noticed_in_shared_memory():
    with pytest.raises(RankFailed, match="allreduce exchanges with other ranks, and was called inside a lane"):
        run_ranks(lane_exchanges.of_the_group_itself, Started(2))


def test_questions_in_lanes_and_exchanges_outside_are_free():
    [alone] = run_ranks(lane_exchanges.outside_lanes, Started(1))
    assert run_ranks(lane_exchanges.outside_lanes, Started(2)) == [alone] * 2


def test_what_another_thread_exchanges_beside_lanes_is_free():
    [alone] = run_ranks(lane_exchanges.beside_lanes, Started(1))
    assert run_ranks(lane_exchanges.beside_lanes, Started(2)) == [alone] * 2
