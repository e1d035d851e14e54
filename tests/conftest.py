"""Every test has a time limit, after which the Python stacks of this process and of all that it started are shown.

Processes that tests start inherit PYTHONFAULTHANDLER, so SIGABRT makes them print their stacks before they die; ranks
of the test kit print theirs at SIGUSR1.
"""

import contextlib
import faulthandler
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from samebits.protocol.script_files import running_script
from samebits.testing.ranks import preload

MOST_OPENED = 32
LIMIT_S = int(os.environ.get("SAMEBITS_TEST_LIMIT_S", "120"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell sets it for background jobs, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup sets it, and `samebits run` respects that
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ["PYTHONFAULTHANDLER"] = "1"
os.environ["SAMEBITS_TIMES"] = "off"  # lines begin with their labels
os.environ["SAMEBITS_PROOFS"] = "off"  # what one test has proved, another does not expect
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["OPENBLAS_NUM_THREADS"] = "1"
preload("pytest", "sklearn.datasets")
running_script()  # remembers this folder, whatever a test that runs a script in this process changes to
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


def _too_late(_signal: int, _frame: object) -> None:
    faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
    for child in psutil.Process().children():
        server = "multiprocessing" in " ".join(child.cmdline())  # the fork server, and the resource tracker
        below = child.children(recursive=True)
        if server:
            for rank in below:  # they share one stderr, and would tear each other's lines
                _send([rank], signal.SIGUSR1)
        else:
            leaves = [process for process in below if not process.children()]
            _send(leaves, signal.SIGABRT)  # ranks first: when their parent dies they are killed in silence
            _send([process for process in [*below, child] if process not in leaves], signal.SIGABRT)
    raise TimeoutError(f"the test took longer than {LIMIT_S} s; the stacks of all its processes are above")


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that are still there, and wait until they have printed."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    select.select([], [], [], 0.7 if processes else 0.0)


@pytest.fixture(autouse=True)
def _time_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(LIMIT_S * (5 if request.node.get_closest_marker("compiles") else 1))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _same_surroundings() -> Iterator[None]:
    """What a test leaves of these fails a later test, so the test that leaves it is told.

    By folder and main file ranks of the test kit know which files are the user's. Kept processes of `tests.support` hold a few
    descriptors; a test that copies all it finds doubles them.
    """
    before, open_before = (Path.cwd(), getattr(sys.modules["__main__"], "__file__", None)), _open_files()
    yield
    assert (Path.cwd(), getattr(sys.modules["__main__"], "__file__", None)) == before
    assert _open_files() <= open_before + MOST_OPENED, "the test leaves files open"


def _open_files() -> int:
    return sum(1 for _ in os.scandir("/proc/self/fd"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that starts processes, `make test` runs the first row of its table; all rows where the test says `every_row`."""
    begun: set[str] = set()
    for item in items:
        name = item.nodeid.partition("[")[0]
        is_first = name not in begun
        if item.get_closest_marker("ranks") and not item.get_closest_marker("thorough"):
            begun.add(name)
            if not is_first and not item.get_closest_marker("every_row"):
                item.add_marker(pytest.mark.thorough)
