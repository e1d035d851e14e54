"""What a page says of ranks while some are lost and all start again: who was killed, and that no step is lost."""

import pytest

from samebits.launcher.watch.view import State
from samebits.protocol.events import Event, Kind
from samebits.show.ranks import rank_rows


def row(rank, step, state=State.WORKS, pid=100):
    return {"rank": rank, "pid": pid, "state": state, "step": step, "doing": "", "memory_bytes": 0}


def event(kind, at_s, step=0, **fields):
    return Event(kind, at_s, step, fields)


FIRST = [event(Kind.START, 10.0)]
AGAIN = [
    *FIRST,
    event(Kind.KILL, 20.0, 46, rank=1),
    event(Kind.RESTART, 20.1, 46, **{"from": 44, "steps_again": 2}),
    event(Kind.START, 20.2, 46),
]


def test_ranks_at_work_are_shown_as_they_are():
    (shown,) = rank_rows([row(0, 7) | {"doing": "exchange of step 8", "memory_bytes": 3 << 20}], FIRST, {}, 7)
    assert shown == {
        "rank": 0,
        "state": State.WORKS,
        "step": 7,
        "doing": "works · 3 MiB · exchange of step 8",
        "can_kill": True,
    }


@pytest.mark.parametrize("events", [FIRST, [*FIRST, event(Kind.KILL, 20.0, 46, rank=1)]])
def test_a_rank_that_is_killed_dies_and_the_others_start_again_with_it(events):
    """Before the launcher has noticed, and after it."""
    rows = [row(0, 45, State.ENDED, pid=0), row(1, 45, State.ENDED, pid=0)]
    first, second = rank_rows(rows, events, {1: 19.9}, 46)
    assert (first["state"], first["doing"]) == ("restarts", "restarting with the others")
    assert (second["state"], second["doing"]) == ("lost", "killed by you at step 46 · new process starts")
    assert {first["step"], second["step"]} == {46}
    assert not second["can_kill"]


@pytest.mark.parametrize("reached", [0, 46])
def test_while_all_start_again_the_step_is_the_newest_of_the_start_before(reached):
    """Also on a page that is opened only now, which knows no more than the events."""
    known = reached or 45
    first, second = rank_rows([row(0, 0), row(1, 0, pid=0)], AGAIN, {}, reached)
    assert (first["step"], second["step"]) == (known, known)
    assert second["doing"] == f"killed at step {known} · new process starts"
    assert (first["can_kill"], second["can_kill"]) == (True, False)
    (shown,) = rank_rows([row(0, 44)], AGAIN, {}, 46)
    assert (shown["step"], shown["state"], shown["doing"]) == (46, State.WORKS, "computes step 45 again")
    (shown,) = rank_rows([row(0, 47)], AGAIN, {}, 47)
    assert (shown["step"], shown["doing"]) == (47, "works")


def test_a_kill_of_an_earlier_start_says_nothing_of_this_one_and_nobody_starts_again_after_the_end():
    later = [*AGAIN, event(Kind.KILL, 30.0, 60, rank=0), event(Kind.START, 30.2, 60)]
    first, second = rank_rows([row(0, 0), row(1, 0)], later, {1: 19.9}, 60)
    assert (first["state"], second["state"]) == ("lost", "restarts")
    ended = [*FIRST, event(Kind.KILL, 20.0, 46, rank=0), event(Kind.END, 20.1, 46, exit_code=137)]
    (shown,) = rank_rows([row(0, 46, State.ENDED, pid=0)], ended, {}, 46)
    assert (shown["state"], shown["can_kill"]) == (State.ENDED, False)


@pytest.mark.parametrize("odd", [{"from": "x"}, {"steps_again": None}, {"from": None, "steps_again": 1e999}])
def test_odd_events_have_rows(odd):
    events = [*FIRST, event(Kind.KILL, 20.0, rank="x"), event(Kind.RESTART, 20.1, **odd), event(Kind.START, 20.2)]
    (shown,) = rank_rows([row(0, 0)], events, {}, 3)
    assert shown["step"] in (0, 3)
    assert rank_rows([row(0, 0)], [], {}, 0)[0]["step"] == 0
