"""Ranks of plain scripts: idle, and in a function of torch.distributed."""

import pytest

from samebits.launcher.diagnosis.scene import Idleness, Wait, wait_of
from samebits.launcher.diagnosis.stack import Frame, Stack, Thread, read_dump

C10D, LOGGER = (
    "/v/site-packages/torch/distributed/distributed_c10d.py",
    "/v/site-packages/torch/distributed/c10d_logger.py",
)
SCRIPT = Frame("<module>", "/home/me/train.py", 11)
ALL_REDUCE = (Frame("all_reduce", C10D, 3252), Frame("_exception_logger.<locals>.wrapper", LOGGER, 83), SCRIPT)
BACKWARD = (Frame("_engine_run_backward", "/v/site-packages/torch/autograd/graph.py", 869), SCRIPT)


def stack(frames):
    return Stack(7, (Thread(7, "MainThread", False, frames),))


@pytest.mark.parametrize(
    ("frames", "idle_s", "expected"),
    [
        (ALL_REDUCE, 4.0, "all_reduce (train.py:11)"),
        (ALL_REDUCE, 0.0, "all_reduce (train.py:11)"),
        (BACKWARD, 4.0, "the backward pass (train.py:11)"),
        (BACKWARD, 0.5, None),  # it computes
        ((SCRIPT,), 4.0, None),
    ],
)
def test_the_stack_tells_whether_a_rank_waits_for_others(frames, idle_s, expected):
    found = wait_of(stack(frames), idle_s, "/home/me/train.py")
    assert found == (None if expected is None else Wait(idle_s, frozenset(), expected))


def test_ticks_of_the_clock_do_not_end_idleness_and_work_does():
    idle = Idleness()
    told = [
        idle.note(now_s, used_s) for now_s, used_s in [(0, 1.0), (0.25, 1.0), (0.5, 1.01), (0.75, 1.01), (1.0, 1.2)]
    ]
    assert told == [0, 0.25, 0.5, 0.75, 0.0]


def test_a_loop_of_short_steps_and_pauses_is_not_idle_and_a_rank_that_is_asked_for_its_stack_is():
    loop, asked = Idleness(), Idleness()
    moments = [0.25 * number for number in range(40)]
    assert [loop.note(now_s, 1.0, int(40 * now_s)) for now_s in moments][-1] == 0.0
    assert [asked.note(now_s, 1.0, int(2 * now_s)) for now_s in moments][-1] == moments[-1]


@pytest.mark.parametrize("text", ["", "7", "[1]", '[{"frames": [{"name": "f"}]}]', "[null]"])
def test_what_is_no_dump_is_refused(text):
    with pytest.raises(ValueError):
        read_dump(text, 7)


def test_the_first_thread_comes_first():
    frames = '[{"name": "f", "filename": "a.py", "line": 3}]'
    text = f'[{{"os_thread_id": 9, "frames": []}}, {{"os_thread_id": 7, "owns_gil": true, "frames": {frames}}}]'
    found = read_dump(text, 7)
    assert found.main == (Frame("f", "a.py", 3),)
    assert [thread.number for thread in found.threads] == [7, 9]
