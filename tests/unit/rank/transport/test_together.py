"""Each rank does its part, all tell, all raise the first trouble."""

import pytest

from samebits.errors import EnvironmentFailure, InternalError, PeerLost, SamebitsError, UsageError
from samebits.rank.transport.together import Together, decode, encode
from samebits.testing.fake_transport import FakeWorld

LATER = object()


def failing(error):
    raise error


def run(troubles):
    """What each of the ranks ends with; `troubles` by rank."""

    def rank(transport):
        together = Together(transport, "save", "x.py:1")
        trouble = troubles.get(transport.rank)
        first = together.do(lambda: failing(trouble) if trouble else transport.rank)
        then = together.do(lambda: LATER)
        assert (first is None, then is None) == (trouble is not None,) * 2
        try:
            return together.agree(first)
        except SamebitsError as error:
            return type(error), str(error)

    return FakeWorld(3).run(rank)


def test_what_each_rank_tells_arrives_when_nothing_is_wrong():
    assert run({}) == [[0, 1, 2]] * 3


@pytest.mark.parametrize("trouble", [UsageError("It is wrong.", "Use x."), EnvironmentFailure("The disk is full.")])
def test_the_first_trouble_is_raised_on_every_rank_as_what_it_is(trouble):
    ended = run({1: trouble, 2: EnvironmentFailure("Another one.")})
    assert ended == [(type(trouble), str(trouble))] * 3


def test_a_lost_peer_is_not_told_to_it():
    with pytest.raises(PeerLost):
        Together(None, "save", "x.py:1").do(lambda: failing(PeerLost("Rank 1 ended.")))


def test_an_earlier_trouble_stays():
    together = Together(None, "save", "x.py:1")
    together.refuse(None)
    together.refuse(EnvironmentFailure("first"))
    together.refuse(EnvironmentFailure("second"))
    assert encode(together._trouble) == ["EnvironmentFailure", "first"]


@pytest.mark.parametrize(
    "trouble", [UsageError("It is wrong.", "Use x."), EnvironmentFailure("full"), InternalError("odd")]
)
def test_a_trouble_travels(trouble):
    arrived = decode(encode(trouble))
    assert (type(arrived), arrived.args) == (type(trouble), trouble.args)
    assert encode(None) is None
