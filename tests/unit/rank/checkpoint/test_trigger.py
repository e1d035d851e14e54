"""When and where a state is taken, and whether there is room for one in memory: pure decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.protocol.saving import Keeping, Schedule, kept_in, newest_kept
from samebits.rank.checkpoint.when.pace import FIRST_S, SHARE, OnSchedule, Pace, SavePoint, steps_between
from samebits.rank.checkpoint.when.snapshots import no_room
from tests.support.promises import promise


@promise(
    "never-stuck-nothing-left-behind",
    "Snapshots cost one hundredth of the time; `--shrink`, or a rank killed twice at one step where "
    "memory may be short, goes on with one rank less; kills from outside use up restarts only",
    also=[
        "test_ranks_become_fewer_and_go_on_from_memory_with_the_same_bits",
        "test_how_many_ranks_go_on",
        "test_kills_from_outside_at_one_step_use_restarts_up_and_no_rank",
    ],
)
@given(cost_s=st.floats(1e-6, 1e3), step_s=st.floats(1e-5, 1e3))
def test_snapshots_cost_one_hundredth_of_the_time_at_most_and_are_no_rarer_than_that(
    cost_s: float, step_s: float
) -> None:
    steps = steps_between(cost_s, step_s)
    assert cost_s <= SHARE * steps * step_s * 1.001
    assert steps == 1 or cost_s >= SHARE * (steps - 1) * step_s * 0.99


def test_the_first_one_comes_after_two_seconds_and_later_ones_as_they_cost() -> None:
    pace = Pace(0, 0, 0.0)
    assert not pace.is_due(50, FIRST_S - 0.1)
    assert not pace.is_due(0, FIRST_S), "no step is over"
    assert pace.is_due(1, FIRST_S)
    pace.took(10, 10.0, stall_s=0.5)
    assert not pace.is_due(11, 15.0)
    assert pace.is_due(60, 60.1)
    pace.cost_s = 0.001  # what it was, once it was written
    assert pace.is_due(11, 10.2)


def test_a_state_on_the_disk_counts_as_one_and_is_waited_for_where_it_comes_soon() -> None:
    pace = Pace(0, 0, 0.0, waits=True)
    assert not pace.is_due(3, 100.0)
    pace.took(3, 1.0, stall_s=0.5)  # it is on the disk
    assert not pace.is_due(4, 2.0)
    assert pace.is_due(53, 51.1)


def test_a_number_of_steps_is_kept_to() -> None:
    pace = Pace(3, 4, 0.0)
    assert [step for step in range(4, 9) if pace.is_due(step, 99.0)] == [7, 8]


@pytest.mark.parametrize(
    ("state", "shared", "available", "why"),
    [
        (1 << 20, 1 << 30, 1 << 34, ""),
        (1 << 20, 1 << 20, 1 << 34, "shared memory has 1.0 MB free, and a state has 1.0 MB"),
        (1 << 30, 1 << 36, 1 << 32, "4.3 GB of memory are available, and 3 copies of the state need 3.2 GB"),
    ],
)
def test_a_state_that_does_not_fit_is_not_kept(state: int, shared: int, available: int, why: str) -> None:
    assert no_room(state, shared, available) == why


def test_words_of_the_option() -> None:
    assert (Keeping.parse("auto"), Keeping.parse("off")) == (Keeping(), Keeping(is_on=False))
    assert Keeping.parse("20steps") == Keeping(steps=20)
    with pytest.raises(UsageError, match="Write auto, off or 20steps"):
        Keeping.parse("0steps")


def test_the_newest_snapshot_is_that_of_the_last_run_of_a_script(tmp_path) -> None:
    assert newest_kept(tmp_path) is None
    (kept_in(tmp_path, 1) / "step-00000090").mkdir(parents=True)
    assert newest_kept(tmp_path) == 90
    (kept_in(tmp_path, 2) / ".step-00000004.saving").mkdir(parents=True)
    assert newest_kept(tmp_path) is None, "its first run comes once more, before its second"
    (kept_in(tmp_path, 2) / "step-00000004").mkdir()
    assert newest_kept(tmp_path) == 4


def test_a_state_that_would_let_a_body_run_twice_waits_for_its_end():
    trigger = OnSchedule(Schedule(steps=4), 0.0)
    assert trigger.place(in_body=True, is_first=True, ends_epoch=False) is SavePoint.HERE
    assert trigger.place(in_body=False, is_first=True, ends_epoch=True) is SavePoint.BEFORE
    assert trigger.place(in_body=False, is_first=True, ends_epoch=False) is SavePoint.HERE
    assert trigger.place(in_body=False, is_first=False, ends_epoch=False) is SavePoint.NOWHERE
    assert not trigger.settle()
    for is_first, ends_epoch in ((True, True), (False, False), (False, True)):
        assert trigger.place(in_body=True, is_first=is_first, ends_epoch=ends_epoch) is SavePoint.AFTER_BODY
        assert (trigger.settle(), trigger.settle()) == (True, False)
    trigger.leave_steps(6, is_asked=False)
    assert not trigger.owed
    trigger.leave_steps(8, is_asked=False)
    assert trigger.owed, "the loop was left before anybody looked at step 8"
