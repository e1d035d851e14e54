"""However a run ends, nothing of it is left: no process, no listener, no shared memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launching import Running, kill, start, stretched, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

ENDLESS = """
    import os, sys, time
    import torch, torch.distributed as dist
    from pathlib import Path
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        def __len__(self):
            return 10_000_000
        def __getitem__(self, index):
            Path(f"/dev/shm/torch_{os.getpid()}_1_1").touch()     # what a worker killed in the middle leaves
            return torch.full((4,), float(index))

    dist.init_process_group("gloo")
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2)  # of which the launcher makes a process
    for number, batch in enumerate(DataLoader(Numbers(), batch_size=4, num_workers=1)):
        dist.all_reduce(batch.sum())
        if number == 5:
            print("under way", flush=True)
"""
PER_RANK = 2
"""A rank and its loader worker."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Two ranks with a loader worker each, in the middle of training."""
    run = start(tmp_path, "-n", "2", "-v", write_script(tmp_path, ENDLESS))
    try:
        run.wait_for("under way")
        until(lambda: len(run.processes()) >= 3 + 2 * PER_RANK, "launcher, nursery, store, ranks and workers")
        yield run
    finally:
        run.clean_up()


def nothing_left(run: Running, limit_s: float = 1.0) -> None:
    """Within the limit no process and no shared memory is left; ports go with the processes."""
    until(lambda: not run.processes(), "the end of all processes", stretched(limit_s))
    assert [path for pid in run.seen for path in Path("/dev/shm").glob(f"torch_{pid}_*")] == []


@promise(
    "never-stuck-nothing-left-behind",
    "Without restarts a killed rank takes the run down within a second, one among 64 is reported within 2",
    also=["test_a_rank_killed_among_64_is_told_within_two_seconds"],
)
def test_a_killed_rank_takes_the_run_down_within_a_second(running: Running) -> None:
    kill(running.pid_of(1))
    began = time.monotonic()
    running.process.wait(10)
    took = time.monotonic() - began
    ended = running.finish()
    print(f"a killed rank took the run down in {took:.2f} s")
    assert took < stretched(1.0)
    assert ended.code == 128 + signal.SIGKILL
    block = ended.err[ended.err.index("FAILED") :]
    assert block.startswith("FAILED    rank 1: killed by signal 9 (SIGKILL)")
    assert "was stopped because of this" in block
    nothing_left(running)


@promise(
    "never-stuck-nothing-left-behind",
    "Ctrl-C, SIGTERM, a closed terminal, `kill -9` of the launcher, of a rank, and of the caller of "
    "`samebits.spawn` leave no process, listener, socket or shared memory",
    also=[
        "test_a_killed_launcher_leaves_nothing",
        "test_a_signal_to_the_caller_leaves_nothing",
        "test_a_killed_rank_and_its_loader_worker_leave_no_socket",
        "test_a_killed_process_leaves_its_socket_in_the_folder_that_is_removed",
        "test_a_launcher_that_ends_leaves_no_process_no_shared_memory_and_no_socket",
        "test_a_kill_leaves_no_process_and_no_file",
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_leaves_nothing(running: Running, number: signal.Signals) -> None:
    running.process.send_signal(number)
    ended = running.finish()
    assert ended.code == 128 + number
    assert ended.err.rstrip().splitlines()[-1].startswith(f"stopped   by signal {number.value} ({number.name})")
    assert "FAILED" not in ended.err
    nothing_left(running)


def test_the_second_signal_ends_a_run_that_ignores_the_first_at_once(tmp_path: Path) -> None:
    script = """
        import signal, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        while True:
            signal.pause()
    """
    run = start(tmp_path, "-n", "1", "--start-method=spawn", write_script(tmp_path, script))
    run.wait_for("deaf")
    run.process.send_signal(signal.SIGTERM)
    run.process.send_signal(signal.SIGHUP)
    began = time.monotonic()
    assert run.finish().code in (128 + signal.SIGTERM, 128 + signal.SIGHUP)
    assert time.monotonic() - began < stretched(1.0)
    nothing_left(run)


def test_a_killed_launcher_leaves_nothing(running: Running) -> None:
    kill(running.process.pid)
    running.process.wait(10)
    nothing_left(running)


def test_a_killed_nursery_ends_the_run(running: Running) -> None:
    kill(nursery_of(running))
    ended = running.finish()
    assert ended.code == 1
    assert ended.err.rstrip().endswith("was killed from outside, and the ranks with it.")
    nothing_left(running)


WAITING = """
    import signal, subprocess, sys
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print("under way", flush=True)
    signal.pause()
"""


def nursery_of(run: Running) -> int:
    return next(pid for pid in run.processes() if b"rank.start.nursery" in Path(f"/proc/{pid}/cmdline").read_bytes())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_nursery_that_is_stopped_does_not_keep_a_run_from_ending(tmp_path: Path, number: signal.Signals) -> None:
    run = start(tmp_path, "-n", "2", "--start-method=spawn", write_script(tmp_path, WAITING))
    try:
        run.wait_for("under way")
        until(lambda: len(run.processes()) == 2 + 2 * 2, "launcher, nursery, ranks and their children")
        os.kill(nursery_of(run), signal.SIGSTOP)
        run.process.send_signal(number)
        began = time.monotonic()
        code = run.process.wait(10)
        nothing_left(run, 2.0 - (time.monotonic() - began))
        print(f"all gone {time.monotonic() - began:.2f} s after {number.name}")
    finally:
        run.clean_up()
        for process in run.processes():
            kill(process)
    assert code == (128 + signal.SIGINT if number == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in run.err


def test_a_nursery_that_is_stopped_does_not_keep_a_failure_from_being_told(tmp_path: Path) -> None:
    script = """
        import os, signal
        nursery = os.getppid()
        if os.environ["RANK"] == "1":
            os.kill(nursery, signal.SIGSTOP)
            raise ValueError("told in spite of it")
        signal.pause()
    """
    run = start(tmp_path, "-n", "2", "--start-method=spawn", write_script(tmp_path, script))
    try:
        ended = run.finish()
        nothing_left(run)
    finally:
        for process in run.processes():
            kill(process)
    assert ended.code == 1
    assert "FAILED    rank 1: ValueError: told in spite of it" in ended.err


@pytest.mark.thorough
def test_a_rank_killed_among_64_is_told_within_two_seconds(tmp_path: Path) -> None:
    script = """
        import os, signal, time
        from pathlib import Path
        import torch, torch.distributed as dist
        dist.init_process_group("samebits")
        for number in range(10**9):
            dist.all_reduce(torch.ones(100))
            if number == 3 and dist.get_rank() == 40:
                Path("killed").write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = start(tmp_path, "-n", "64", "--threads", "1", "-q", write_script(tmp_path, script)).finish()
    took = time.monotonic() - float((tmp_path / "killed").read_text())
    print(f"told {took:.2f} s after the kill")
    assert ended.code == 128 + signal.SIGKILL
    assert ended.err.startswith("FAILED    rank 40: killed by signal 9 (SIGKILL)")
    assert took < stretched(2.0)


def test_a_stray_grandchild_ends_with_the_run(tmp_path: Path) -> None:
    script = """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
        print("left one behind")
    """
    run = start(tmp_path, "-n", "1", "--start-method=spawn", write_script(tmp_path, script))
    assert run.finish().code == 0
    nothing_left(run)
