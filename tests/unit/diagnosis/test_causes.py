"""Why a rank that others wait for does not come."""

import pytest

from lockstep.diagnosis.causes import Why, cause, kept_from_running, stays_in_one_line
from lockstep.diagnosis.movement import Sample
from lockstep.diagnosis.stack import Frame, Stack, Thread, native_call
from lockstep.machine.blocked import Blocked, OtherProcess
from lockstep.machine.effort import Effort
from lockstep.machine.held_back import HeldBack

PYTHON = (OtherProcess(4711, "python train.py"),)
DATALOADER = "/v/site-packages/torch/utils/data/dataloader.py"


def stack(*threads):
    """Each thread: (line, whether it holds the lock); the first one is the main thread."""
    return Stack(
        7,
        tuple(
            Thread(7 + number, f"thread {number}", held, (Frame("load", "/home/me/data.py", line),))
            for number, (line, held) in enumerate(threads)
        ),
    )


def samples(*blocked, seen=None, worker=None, held_back=None, native=""):
    """One of each, 0.2 s apart."""
    return tuple(
        Sample(0.2 * number, Effort(), seen, (), one, worker, held_back and held_back(0.2 * number), native)
        for number, one in enumerate(blocked)
    )


@pytest.mark.parametrize(
    ("blocked", "why", "text"),
    [
        (
            Blocked("S", "flock", "/data/x.lock", "/data (ext4)", PYTHON),
            Why.FILE_LOCK,
            "it waits for the lock of /data/x.lock, which process 4711 (python train.py) holds",
        ),
        (
            Blocked("S", "flock", others=PYTHON),
            Why.FILE_LOCK,
            "it waits for the lock of a file, which process 4711 (python train.py) holds",
        ),
        (
            Blocked("S", "fcntl", "/nfs/x.lock"),
            Why.FILE_LOCK,
            "it waits for the lock of /nfs/x.lock, which somebody else holds",
        ),
        (Blocked("S", "read", "/dev/pts/3"), Why.READS, "it waits for input from the terminal /dev/pts/3"),
        (
            Blocked("S", "read", "pipe:[1]", others=PYTHON),
            Why.READS,
            "it reads from a pipe into which nobody writes; process 4711 (python train.py) has its other end",
        ),
        (Blocked("S", "write", "pipe:[1]"), Why.WRITES, "it writes into a pipe that is full"),
        (
            Blocked("S", "recvfrom", "socket:[1]", peer="10.0.0.1:443"),
            Why.READS,
            "it waits for data from a socket (10.0.0.1:443)",
        ),
        (Blocked("S", "wait4", others=PYTHON), Why.CHILD, "it waits for its child process 4711 (python train.py)"),
        (Blocked("S", "clock_nanosleep"), Why.SLEEPS, "it sleeps"),
        (
            Blocked("D", "openat", "/mnt/a/b", "/mnt (nfs4)"),
            Why.KERNEL,
            "it is in a call of the kernel that cannot be interrupted (state D), openat of /mnt/a/b on /mnt (nfs4)",
        ),
        (Blocked("S", "poll", "pipe:[1]", others=PYTHON), Why.READS, "it waits for a file or socket to become ready"),
    ],
)
def test_what_a_rank_sleeps_in_is_its_cause(blocked, why, text):
    found = cause(samples(*[blocked] * 8))
    assert found.why is why
    assert found.sentence.startswith(text)


def test_what_only_some_samples_show_is_no_cause():
    sleeps, computes = Blocked("S", "read", "pipe:[1]"), Blocked("R")
    assert cause(samples(*[computes] * 4, *[sleeps] * 4)) is None
    assert cause(samples(*[sleeps] * 7, computes)) is None
    assert cause(samples(sleeps)) is None
    assert cause(()) is None


def test_a_thread_that_has_the_interpreters_lock_is_named():
    futex = Blocked("S", "futex")
    found = cause(samples(*[futex] * 8, seen=stack((3, False), (41, True))))
    assert (
        found.sentence
        == "it waits for another thread (thread 1), which holds the interpreter's lock at data.py:41 in load"
    )
    assert cause(samples(*[futex] * 8)).sentence == "it waits for a lock, or for another of its threads"


def test_a_loader_worker_has_its_own_cause():
    waits = Stack(7, (Thread(7, "", False, (Frame("_try_get_data", DATALOADER, 9),)),))
    poll = Blocked("S", "poll", "pipe:[1]")
    lock = Blocked("S", "flock", "/data/x.lock", others=PYTHON)
    assert cause(samples(*[poll] * 8, seen=waits, worker=lock)).sentence.startswith(
        "its loader worker waits for the lock of /data/x.lock"
    )
    assert cause(samples(*[poll] * 8, seen=waits)).why is Why.WORKER


@pytest.mark.parametrize(
    ("blocked", "native", "why", "text"),
    [
        (Blocked("R"), "", Why.LOOP, "it stays in one line and holds the interpreter's lock"),
        (
            Blocked("S", "clock_nanosleep"),
            "nanosleep (libc.so.6)",
            Why.NATIVE,
            "it stays in native code (nanosleep (libc.so.6))",
        ),
        (Blocked("S", "flock", "/data/x.lock"), "flock (libc.so.6)", Why.FILE_LOCK, "it waits for the lock of"),
    ],
)
def test_one_line_with_the_interpreters_lock_is_a_cause(blocked, native, why, text):
    taken = samples(*[blocked] * 8, seen=stack((41, True)), native=native)
    assert stays_in_one_line(taken)
    found = cause(taken)
    assert found.why is why
    assert found.sentence.startswith(text)
    assert not stays_in_one_line(samples(*[blocked] * 8, seen=stack((41, False))))


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (HeldBack(throttled_s=8.0, quota=0.05), Why.THROTTLED),
        (HeldBack(throttled_s=8.0), None),  # a quota that is gone
        (HeldBack(memory_s=4.0, major_faults=900), Why.MEMORY),
        (HeldBack(memory_s=4.0), None),  # somebody else's
        (HeldBack(stolen_s=3.0), Why.STOLEN),
        (HeldBack(run_delay_s=6.0), Why.CROWDED),
        (HeldBack(run_delay_s=6.0, throttled_s=5.0, quota=1.0), Why.THROTTLED),
        (HeldBack(run_delay_s=1.0, throttled_s=1.0, quota=1.0, stolen_s=1.0), None),
    ],
)
def test_what_kept_a_rank_from_running_for_much_of_the_time_is_a_cause(now, why):
    found = kept_from_running(HeldBack(), now, 10.0)
    assert (found.why if found is not None else None) is why


def test_a_loop_is_told_before_the_crowd_and_a_quota_before_the_loop():
    crowded = samples(*[Blocked("R")] * 8, seen=stack((41, True)), held_back=lambda at: HeldBack(run_delay_s=at / 2))
    throttled = samples(
        *[Blocked("R")] * 8, seen=stack((41, True)), held_back=lambda at: HeldBack(throttled_s=at, quota=0.05)
    )
    assert cause(crowded).why is Why.LOOP
    assert cause(throttled).sentence == (
        "it is held back by its control group, 100% of the time: it may use 0.05 cores (cpu.max)"
    )


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([("sre_match", "libpython3.11.so"), ("match", "/usr/re.py")], "sre_match (libpython3.11.so)"),
        ([("0x7f51abe4524a", ""), ("dgemm_", "/v/libopenblas.so.0")], "dgemm_ (libopenblas.so.0)"),
        ([("match", "/usr/re.py"), ("sre_match", "libpython3.11.so")], ""),
        ([], ""),
    ],
)
def test_the_native_function_in_which_a_stack_ends_is_told(frames, expected):
    assert native_call([Frame(function, file, 1) for function, file in frames]) == expected
