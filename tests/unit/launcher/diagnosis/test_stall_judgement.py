"""Stuck is not slow."""

from dataclasses import replace

import pytest

from samebits.launcher.diagnosis.movement import Sample
from samebits.launcher.diagnosis.scene import Doing, Life, RankScene, Wait
from samebits.launcher.diagnosis.stack import Frame, Stack, Thread
from samebits.launcher.diagnosis.stalls import Standing, judge, sentence
from samebits.machine.effort import Effort, HeldBack
from samebits.protocol.journal.ring import Phase

ALL_REDUCE = "all_reduce(sum) of [4] float32 (train.py:88)"


def waits(rank, seconds, *behind):
    return RankScene(rank, Life.RUNS, None, Wait(seconds, frozenset(behind), ALL_REDUCE))


def works(rank, *, lasts_s=60.0, usual_s=None, life=Life.RUNS, samples=(), phase=Phase.COMPUTE):
    return RankScene(rank, life, Doing(phase, "lane 0", 730, "train.py:31", lasts_s, usual_s), None, samples)


def stack(*lines, held=True):
    return Stack(
        7, (Thread(7, "MainThread", held, tuple(Frame("load", "/home/me/dataset.py", line) for line in lines)),)
    )


def samples(*lines, cores=0.0, bytes_per_s=0, wakes=0, held=True, letter="R", delayed=0.0, pages=0):
    """A sample each second; `held`: with the interpreter's lock; `delayed`: the share of the time without a core."""
    return tuple(
        Sample(
            at_s=float(n),
            effort=Effort(cores * n, int(bytes_per_s * n), {9: wakes * n}),
            stack=stack(line, held=held),
            letter=letter,
            held_back=HeldBack(run_delay_s=delayed * n, major_faults=pages * n),
        )
        for n, line in enumerate(lines)
    )


def by_rank(*scenes):
    return {scene.rank: scene for scene in scenes}


def standings(*scenes, stall_after_s=None, here=None):
    return [judgement.standing for judgement in judge(by_rank(*scenes), stall_after_s, here)]


STILL, MOVING = samples(*[41] * 8), samples(*range(41, 49), cores=1.0)


@pytest.mark.parametrize(
    ("waited_s", "usual_s", "expected"),
    [
        (1.6, None, []),
        (2.5, None, [Standing.SUSPECTED]),
        (5.5, None, [Standing.STALLED]),
        (5.5, 10.0, []),  # eight times what it usually takes
        (78.0, 10.0, [Standing.SUSPECTED]),
        (81.0, 10.0, [Standing.STALLED]),
    ],
)
def test_the_limit_fits_what_the_rank_does(waited_s, usual_s, expected):
    assert standings(waits(0, waited_s, 1), works(1, usual_s=usual_s, samples=STILL)) == expected


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (STILL, Standing.STALLED),  # sleeps, or waits for a lock
        (MOVING, Standing.SLOW),
        (samples(*[41] * 8, cores=1.0), Standing.SLOW),  # native code, or a loop: nobody knows whether it ends
        (samples(*[41] * 8, cores=0.9, held=False, letter="S"), Standing.SLOW),  # another thread, a child, a compiler
        (samples(*[41] * 8, cores=0.009), Standing.STALLED),  # it looks for something ten times a second
        (samples(*[41] * 8, bytes_per_s=2000), Standing.SLOW),  # a state is written, slowly
        (samples(*[41] * 8, bytes_per_s=500), Standing.STALLED),  # a connection is kept alive
        (samples(*[41] * 8, wakes=20), Standing.SLOW),  # it receives over a Unix socket
        (samples(*[41] * 8, wakes=2), Standing.STALLED),  # it is asked for its stack
        (samples(*[41] * 8, cores=0.004, delayed=0.9), Standing.SLOW),  # it takes what it gets
        (samples(*[41] * 8, cores=0.0005, delayed=0.9), Standing.STALLED),
        (samples(*[41] * 8, pages=50, letter="D"), Standing.SLOW),  # page by page
        (samples(41, 41), Standing.SUSPECTED),  # looked at too short
    ],
)
def test_what_moves_is_slow_and_what_does_not_is_stalled(taken, expected):
    assert standings(waits(0, 20.0, 1), works(1, samples=taken)) == [expected]


def test_a_counter_that_falls_because_a_child_ended_hides_no_work():
    ends = [replace(one, effort=Effort(n if n < 5 else 1.0)) for n, one in enumerate(STILL)]
    assert standings(waits(0, 20.0, 1), works(1, samples=tuple(ends))) == [Standing.SLOW]


def test_what_a_rank_writes_when_it_is_asked_for_its_stack_is_no_work():
    asked = tuple(replace(one, answer_bytes=6000 * n) for n, one in enumerate(samples(*[41] * 8, bytes_per_s=6000)))
    assert standings(waits(0, 20.0, 1), works(1, samples=asked)) == [Standing.STALLED]


def test_a_stopped_rank_needs_no_second_look():
    assert standings(waits(0, 5.1, 1), works(1, life=Life.STOPPED)) == [Standing.STALLED]


def test_a_rank_that_comes_from_one_thing_to_the_next_is_slow():
    assert standings(waits(0, 60.0, 1), works(1, lasts_s=0.2, samples=STILL)) == [Standing.SLOW]


def test_a_limit_of_the_person_counts_alone():
    assert standings(waits(0, 1.9, 1), works(1, samples=MOVING), stall_after_s=2.0) == [Standing.SUSPECTED]
    assert standings(waits(0, 2.1, 1), works(1, samples=MOVING), stall_after_s=2.0) == [Standing.STALLED]
    assert standings(waits(0, 50.0, 1), works(1, samples=STILL), stall_after_s=100.0) == []


def test_nobody_is_judged_while_somebody_is_at_the_debuggers_prompt():
    assert standings(waits(1, 600.0, 0), works(0, phase=Phase.PAUSED)) == []


def test_a_circle_is_stalled_without_a_culprit():
    scenes = by_rank(waits(0, 9.0, 1), waits(1, 8.0, 0), waits(2, 7.0, 0))
    (judgement,) = judge(scenes)
    assert judgement.standing is Standing.STALLED
    assert sentence(judgement, scenes, {}) == (
        f"8 s: ranks wait for each other; rank 0 waits for rank 1 in {ALL_REDUCE}; rank 1 waits for rank 0 in {ALL_REDUCE}; "
        "rank 2 waits for them"
    )


def test_the_sentence_names_who_is_missing_where_and_since_when():
    scenes = by_rank(waits(0, 62.0, 3), waits(1, 61.0, 3), waits(2, 60.0, 3), works(3, lasts_s=63.0, samples=STILL))
    (judgement,) = judge(scenes)
    line = Frame("__getitem__", "/home/me/dataset.py", 41)
    assert sentence(judgement, scenes, {3: line}) == (
        f"62 s: rank 3 has not reached {ALL_REDUCE}; ranks 0-2 wait for it; rank 3 is at dataset.py:41 in __getitem__ "
        "(forward and backward of step 730, for 63 s) and uses no processor time"
    )


def test_without_a_stack_the_journals_last_line_is_told():
    scenes = by_rank(waits(0, 9.0, 1), works(1, life=Life.STOPPED, lasts_s=9.0))
    (judgement,) = judge(scenes)
    assert sentence(judgement, scenes, {1: None}).endswith(
        "rank 1 is stopped by a signal (SIGCONT resumes it), it was at train.py:31 "
        "(forward and backward of step 730, for 9 s)"
    )


@pytest.mark.parametrize(
    ("scenes", "expected"),
    [
        ([works(0, lasts_s=14.0, samples=STILL)], [Standing.SUSPECTED]),
        ([works(0, lasts_s=16.0, samples=STILL)], [Standing.STALLED]),
        ([works(0, lasts_s=16.0, samples=MOVING)], []),  # nobody waits for its work
        ([works(0, lasts_s=600.0, samples=STILL, phase=Phase.UPDATE)], []),  # behind the optimizer all is the script's
        ([works(0, lasts_s=16.0, usual_s=10.0, samples=STILL)], []),
        ([works(0, lasts_s=600.0, samples=STILL, phase=Phase.SCRIPT)], []),  # it may wait for a person
        ([works(0, lasts_s=600.0, samples=STILL, phase=Phase.EVALUATE)], []),
        ([works(0, samples=STILL), works(1, samples=STILL, phase=Phase.DATA)], [Standing.STALLED]),
        ([works(0, samples=STILL), works(1, samples=STILL, phase=Phase.EVALUATE)], []),
        ([works(0, samples=STILL), works(1, lasts_s=1.0)], []),
    ],
)
def test_ranks_for_which_nobody_waits_are_stalled_if_all_stand_still_in_a_step(scenes, expected):
    assert standings(*scenes) == expected


def test_a_standstill_is_told_without_anybody_who_waits():
    scenes = by_rank(works(0, samples=STILL), works(1, samples=MOVING))
    (judgement,) = judge(scenes)
    assert judgement.suspects == {0}
    said = sentence(judgement, scenes, {0: Frame("load", "/home/me/dataset.py", 41)})
    assert said.startswith("60 s: rank 0 does not move, in the middle of a step; rank 0 is at dataset.py:41 in load")


def test_each_node_judges_its_own_ranks_only():
    scenes = by_rank(waits(0, 9.0, 1, 3), works(1, samples=STILL), waits(2, 9.0, 1, 3), works(3, samples=STILL))
    assert [judgement.suspects for judgement in judge(scenes)] == [{1, 3}]
    assert [judgement.suspects for judgement in judge(scenes, here=range(2))] == [{1}]
    assert [judgement.suspects for judgement in judge(scenes, here=range(2, 4))] == [{3}]
    assert judge(scenes, here=[0]) == []


def test_a_circle_over_nodes_is_told_by_the_node_of_its_lowest_rank_once_all_are_known_to_stand_still():
    def circle(told):
        return waits(1, 9.0, 2), replace(waits(2, 9.0, 1), told_moves=told)

    here = replace(circle(None)[0], samples=STILL)
    assert standings(here, circle(False)[1], here=range(2)) == [Standing.STALLED]
    assert standings(here, circle(None)[1], here=range(2)) == [Standing.SUSPECTED]
    assert standings(here, circle(True)[1], here=range(2)) == [Standing.SUSPECTED]
    elsewhere = replace(waits(1, 9.0, 2), told_moves=False), replace(circle(None)[1], samples=STILL)
    assert standings(*elsewhere, here=range(2, 4)) == [Standing.SUSPECTED]  # the other node says it


def test_ranks_that_wait_for_anybody_while_bytes_come_are_in_a_long_exchange_and_in_no_circle():
    still = [replace(waits(rank, 9.0), samples=samples(*[41] * 8, cores=0.01)) for rank in range(2)]
    assert standings(*still) == [Standing.STALLED]
    receives = tuple(replace(one, socket_bytes=n * 10**6) for n, one in enumerate(samples(*[41] * 8)))
    assert standings(still[0], replace(still[1], samples=receives)) == [Standing.SUSPECTED]


def test_a_slow_download_is_slow():
    fetched = tuple(replace(one, socket_bytes=n * 10**5) for n, one in enumerate(STILL))
    assert standings(waits(0, 20.0, 1), works(1, samples=fetched)) == [Standing.SLOW]


def test_a_standstill_is_that_of_one_node():
    assert standings(works(0, lasts_s=16.0, samples=STILL), works(3, lasts_s=1.0), here=[0]) == [Standing.STALLED]


def test_the_sentence_names_the_node():
    scenes = by_rank(waits(0, 9.0, 1), works(1, life=Life.STOPPED, lasts_s=9.0))
    (judgement,) = judge(scenes, here=[1])
    said = sentence(judgement, scenes, {1: None}, {0: "node 0 (host a)", 1: "node 1 (host b)"})
    assert said.startswith(f"9 s: rank 1 has not reached {ALL_REDUCE}; rank 0 waits for it; ")
    assert "rank 1 on node 1 (host b) is stopped by a signal" in said
