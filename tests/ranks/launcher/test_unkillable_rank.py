"""A rank that SIGKILL does not end, because the kernel holds it as a driver does whose GPU is gone: the run ends without it."""

import os
from pathlib import Path

import pytest

from tests.support.launching import start, until, write_script
from tests.support.promises import promise
from tests.support.slurm import FREEZER

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]

SCRIPT = """
    import os, pathlib, sys, time
    pathlib.Path("begun" + os.environ["RANK"]).touch()
    if os.environ["RANK"] == "1":
        while not os.path.exists("go"):
            time.sleep(0.01)
        raise ValueError("my own")
    time.sleep(600)
"""


@pytest.fixture
def frozen():
    """A group of processes that are frozen, and let go when the test is over."""
    if not (FREEZER.is_dir() and os.access(FREEZER, os.W_OK)):
        pytest.skip("Only the freezer of cgroups, version 1, holds a process against SIGKILL.")
    folder = FREEZER / f"samebits-{os.getpid()}"
    folder.mkdir()
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    until(lambda: not (folder / "cgroup.procs").read_text(), "the end of the frozen processes")
    folder.rmdir()


@promise(
    "never-stuck-nothing-left-behind",
    "A rank that SIGKILL does not end, and a nursery that is stopped, hold up neither the end nor the "
    "report of a failure",
    also=[
        "test_a_nursery_that_is_stopped_does_not_keep_a_run_from_ending",
        "test_a_nursery_that_is_stopped_does_not_keep_a_failure_from_being_told",
    ],
)
def test_a_run_ends_without_a_rank_that_the_kernel_holds(tmp_path, frozen: Path):
    run = start(tmp_path, "-n", "3", "-v", write_script(tmp_path, SCRIPT))
    until(lambda: len(list(tmp_path.glob("begun?"))) == 3, "the ranks")
    held = run.pid_of(2)
    (frozen / "cgroup.procs").write_text(str(held))
    (frozen / "freezer.state").write_text("FROZEN")
    (tmp_path / "go").touch()
    ended = run.finish()
    assert ended.code == 1
    assert f"stuck     rank 2 (process {held}) did not end 30 s after SIGKILL: the kernel holds it" in ended.err
    assert "FAILED    rank 1: ValueError: my own" in ended.err
    (frozen / "freezer.state").write_text("THAWED")
    until(lambda: not Path(f"/proc/{held}").exists(), "the end of the rank that was held")
