"""What nodes tell each other about ranks that wait."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.launcher.diagnosis.scene import Doing, Life, RankScene, Wait
from samebits.launcher.diagnosis.stalls import judge
from samebits.launcher.diagnosis.wait_reports import WaitReporter, scenes_of, spans, unspan
from samebits.protocol.journal.ring import Phase


def exchanges(rank, seconds, *behind, usual_s=None):
    doing = Doing(Phase.EXCHANGE, "gradients", 7, "train.py:31", seconds, usual_s)
    return RankScene(rank, Life.RUNS, doing, Wait(seconds, frozenset(behind), "all_reduce (train.py:31)"))


def works(rank):
    return RankScene(rank, Life.RUNS, None, None)


def by_rank(*scenes):
    return {scene.rank: scene for scene in scenes}


def tells(teller, *scenes, at_s=0.0, are_asked=False):
    return teller.next(by_rank(*scenes), at_s, are_asked=are_asked)


@pytest.mark.parametrize(
    ("waited_s", "usual_s", "stall_after_s", "is_asked", "expected"),
    [
        (1.5, None, None, False, False),
        (1.8, None, None, False, True),  # early enough for the other node to look at its rank before the limit
        (1.5, None, None, True, True),  # others wait already: all arrows count
        (0.5, None, None, True, False),
        (1.8, 2.0, None, False, False),  # it waits so long in each step
        (4.1, 2.0, None, False, True),
        (1.1, None, 2.0, False, True),
    ],
)
def test_a_wait_is_told_when_others_may_have_to_look(waited_s, usual_s, stall_after_s, is_asked, expected):
    told = tells(WaitReporter(stall_after_s), exchanges(0, waited_s, 1, usual_s=usual_s), are_asked=is_asked)
    assert bool(told) == expected


def test_the_same_is_told_once_and_its_end_at_once():
    teller = WaitReporter()
    assert tells(teller, works(0), at_s=0.0) is None
    assert tells(teller, exchanges(0, 2.0, 1, 2), at_s=10.0)
    assert tells(teller, exchanges(0, 9.0, 1, 2), at_s=17.0) is None
    assert tells(teller, exchanges(0, 10.0, 2), at_s=18.0)  # rank 1 has come
    assert tells(teller, exchanges(0, 10.2), at_s=18.2) is None  # later
    assert tells(teller, works(0), at_s=18.4) == {}
    assert tells(teller, works(0), at_s=19.0) is None


def test_a_node_whose_ranks_do_not_wait_tells_nothing_but_who_has_ended_or_is_at_a_prompt_if_others_wait():
    ended, teller = replace(works(3), life=Life.ENDED), WaitReporter()
    assert tells(teller, works(2), works(4), are_asked=True) is None
    assert tells(teller, works(2), ended) is None
    assert tells(teller, works(2), ended, are_asked=True) == {"ended": [3]}
    paused = replace(works(2), doing=Doing(Phase.PAUSED, "", 0, "", 1.0, None))
    assert tells(teller, paused, at_s=5.0, are_asked=True) == {"is_paused": True}


def test_what_one_node_tells_is_judged_on_the_other_as_if_it_were_its_own():
    told = json.loads(json.dumps(tells(WaitReporter(), exchanges(0, 2.0, 2), exchanges(1, 1.9, 2))))
    stopped = replace(works(2), life=Life.STOPPED)
    early = {**scenes_of(told, range(2), 0.5), 2: stopped}
    late = {**scenes_of(told, range(2), 3.0), 2: stopped}
    assert [one.standing for one in judge(early, here=[2])] == ["suspected"]
    (judgement,) = judge(late, here=[2])
    assert (judgement.standing, judgement.suspects, judgement.holdup.waited_s) == ("stalled", {2}, 5.0)
    assert late[0].wait.what == "the exchange of gradients of step 7 (train.py:31)"


def test_a_node_that_told_nothing_has_ranks_that_work_and_one_at_a_prompt_stops_all_judging():
    assert scenes_of({}, [1], 0.0) == {1: works(1)}
    paused = scenes_of({"is_paused": True}, [1], 0.0)
    assert judge({0: exchanges(0, 60.0, 1), **paused}, here=[0, 1]) == []


@given(st.sets(st.integers(0, 300)))
def test_ranks_are_told_in_stretches(ranks):
    told = spans(ranks)
    assert unspan(told) == ranks
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(told))
