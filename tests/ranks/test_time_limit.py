"""A test that hangs shows where: the Python stack of every rank, of the test kit and under the launcher."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HANGING = """
import threading
from lockstep.testing.ranks import Started, run_ranks
from tests.support.launching import start, write_script

def wait_for_ever():
    threading.Event().wait()

def test_in_the_kit():
    run_ranks(wait_for_ever, Started(2))

def test_under_the_launcher(tmp_path):
    script = write_script(tmp_path, "import threading\\ndef wait_in_the_script():\\n  threading.Event().wait()\\nwait_in_the_script()")
    start(tmp_path, "-n", "2", script).process.wait()
"""


def long_enough_to_begin():
    """Seconds after which a test's ranks are surely in its code: several times what importing torch takes now."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return max(5, round(5 * (time.monotonic() - begin)))


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "stack"),
    [("kit", "wait_for_ever"), pytest.param("launcher", "wait_in_the_script", marks=pytest.mark.thorough)],
)
def test_a_test_that_hangs_shows_the_stack_of_every_rank(tmp_path, name, stack):
    (tmp_path / "test_hanging.py").write_text(HANGING)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-s",
        "--rootdir",
        str(tmp_path),
    ]
    limit_s = long_enough_to_begin()
    done = subprocess.run(
        [*command, "-k", name, f"--basetemp={tmp_path / 'base'}", str(tmp_path / "test_hanging.py")],
        env=os.environ | {"LOCKSTEP_TEST_LIMIT_S": str(limit_s)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100 + limit_s,
    )
    logs = "".join(log.read_text() for log in (tmp_path / "base").rglob("rank-*.log"))
    assert f"the test took longer than {limit_s} s" in done.stdout
    assert (done.stderr + logs).count(f"in {stack}") >= 2
