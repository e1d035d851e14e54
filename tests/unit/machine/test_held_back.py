"""What keeps a process from running: counters of the kernel, of real processes."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from samebits.launcher.diagnosis.causes import Why, kept_from_running
from samebits.machine.effort import HeldBack, held_back
from samebits.machine.processes import process_state
from tests.support.launching import until

SPIN = "while True: pass"


def cause_after(pid: int, seconds_of_work: float) -> Why | None:
    """Why a process did not run, over the time in which it had so much processor time."""
    before, began_s = held_back(pid), uptime_s()
    used = process_state(pid).processor_s
    until(lambda: process_state(pid).processor_s - used >= seconds_of_work, "some work")
    found = kept_from_running(before, held_back(pid), uptime_s() - began_s)
    return found.why if found is not None else None


def uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def spinning(stack: ExitStack, count: int) -> list[int]:
    started = [stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", SPIN])) for _ in range(count)]
    for one in started:
        stack.callback(one.kill)
    return [one.pid for one in started]


def test_other_processes_on_the_same_core_are_told():
    core = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        pids = spinning(stack, 4)
        for pid in pids:
            os.sched_setaffinity(pid, {core})
        assert cause_after(pids[0], 0.3) is Why.CROWDED


def test_a_quota_of_the_control_group_is_told():
    root = next(place for place in map(Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup", "/sys")) if place.exists())
    group = root / f"samebits-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    with ExitStack() as stack:
        stack.callback(group.rmdir)
        try:
            if (group / "cpu.cfs_quota_us").exists():
                (group / "cpu.cfs_quota_us").write_text("10000")
            else:
                (group / "cpu.max").write_text("10000 100000")
        except OSError as error:
            pytest.skip(f"there are no quotas here: {error}")
        (pid,) = spinning(stack, 1)
        (group / "cgroup.procs").write_text(str(pid))
        assert held_back(pid).quota == pytest.approx(0.1)
        assert cause_after(pid, 0.1) is Why.THROTTLED


def test_the_second_version_of_control_groups_is_read_too(tmp_path):
    """Its files as kernels with it show them; here the first version may be mounted."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("0::/job/step\n")
    (proc / "7" / "schedstat").write_text("1000000 2500000000 12\n")
    (root / "job" / "step").mkdir(parents=True)
    (root / "job" / "cpu.max").write_text("5000 100000\n")
    (root / "job" / "cpu.stat").write_text("usage_usec 1\nnr_periods 9\nnr_throttled 8\nthrottled_usec 7600000\n")
    (root / "job" / "step" / "cpu.max").write_text("max 100000\n")
    assert held_back(7, proc, root) == HeldBack(2.5, 7.6, 0.05, 0)


def test_a_process_that_is_gone_has_no_counters(tmp_path):
    assert held_back(7, tmp_path, tmp_path) == HeldBack()
