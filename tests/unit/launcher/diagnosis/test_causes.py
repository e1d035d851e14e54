"""Why a rank that others wait for does not come."""

import pytest

from samebits.launcher.diagnosis.causes import Why, call_help, cause, kept_from_running
from samebits.launcher.diagnosis.movement import Sample
from samebits.launcher.diagnosis.stack import Frame, Stack, Thread
from samebits.machine.effort import Effort, HeldBack
from tests.support.promises import promise

LINE = Frame("load", "/home/me/data.py", 3)
INNER = Frame("wait", "/usr/lib/python3.11/threading.py", 359)


def samples(letters, *threads, held_back=lambda _: HeldBack()):
    """One for each letter, 0.2 s apart; each thread: its frames, and whether it holds the interpreter's lock."""
    seen = Stack(7, tuple(Thread(7 + n, f"thread {n}", held, frames) for n, (frames, held) in enumerate(threads)))
    return tuple(
        Sample(0.2 * n, Effort(), seen, letter=letter, held_back=held_back(0.2 * n)) for n, letter in enumerate(letters)
    )


@promise(
    "never-stuck-nothing-left-behind",
    "A rank is said to wait for a call that cannot be interrupted (state D), another thread's lock of the "
    "interpreter, the quota of a control group, or others on its core",
    also=[
        "test_a_thread_that_has_the_interpreters_lock_is_named",
        "test_a_quota_of_the_control_group_is_told",
        "test_other_processes_on_the_same_core_are_told",
    ],
)
def test_a_call_that_cannot_be_interrupted_is_a_cause_where_most_samples_show_it():
    expected = "it is in a call of the kernel that cannot be interrupted (state D): a disk, or a mount"
    assert cause(samples("DRDDDDDD")).sentence == expected
    assert cause(samples("RRRRDDDD")) is cause(samples("DDDDDDDR")) is cause(samples("D")) is cause(()) is None


def test_a_thread_that_has_the_interpreters_lock_is_named():
    found = cause(samples("S" * 8, ((LINE,), False), ((Frame("spin", "/home/me/data.py", 41),), True)), LINE)
    expected = "waits for another thread (thread 1), which holds the interpreter's lock at data.py:41 in spin"
    assert found.sentence == f"it {expected}"


def test_the_library_is_named_in_which_the_line_of_the_script_waits():
    assert cause(samples("S" * 8, ((INNER, LINE), False)), LINE).sentence == "it is inside wait (threading.py:359)"
    assert cause(samples("S" * 8, ((LINE,), False)), LINE) is None
    assert cause(samples("S" * 8, ((INNER,), False)), LINE) is None  # the line is a loader worker's


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (HeldBack(throttled_s=8.0, quota=0.05), Why.THROTTLED),
        (HeldBack(throttled_s=8.0), None),  # a quota that is gone
        (HeldBack(run_delay_s=6.0), Why.CROWDED),
        (HeldBack(run_delay_s=6.0, throttled_s=5.0, quota=1.0), Why.THROTTLED),
        (HeldBack(run_delay_s=1.0, throttled_s=1.0, quota=1.0), None),
    ],
)
def test_what_kept_a_rank_from_running_for_much_of_the_time_is_a_cause(now, why):
    found = kept_from_running(HeldBack(), now, 10.0)
    assert (found.why if found is not None else None) is why


def test_what_keeps_a_rank_from_running_is_told_before_where_it_is():
    throttled = samples("R" * 8, ((INNER, LINE), True), held_back=lambda at: HeldBack(throttled_s=at, quota=0.05))
    assert cause(throttled, LINE).sentence == (
        "it is held back by its control group, 100% of the time: it may use 0.05 cores (cpu.max)"
    )


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("worker.join()", "waits for a child"),
        ("worker.join(timeout=600)", "waits for a child"),
        ("worker.join(600.0)", "waits for a child"),
        ('data = load(os.path.join(folder, "a.pt"))', ""),
        ('text = ", ".join(names)', ""),
    ],
)
def test_only_a_join_that_waits_is_named_as_what_keeps_a_rank(source, says):
    assert says in call_help(source)
    assert bool(call_help(source)) == bool(says)
