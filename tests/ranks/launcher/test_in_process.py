"""`launch` from a program: several silent runs in turn, with one nursery, as `samebits verify` uses it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from samebits.errors import UsageError
from samebits.launcher.launcher import launch
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.request import EntryPoint, LaunchRequest, Output, Placement
from samebits.protocol.journal.failure import FailureKind
from tests.support.launching import run_script, write_script

pytestmark = pytest.mark.ranks

SCRIPT = """
    import os, sys, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print("total", int(total))
    assert int(total) == int(os.environ["WORLD_SIZE"])
    if "fail" in sys.argv:
        raise ValueError("as asked")
"""


def request_in(place: Path, ranks: int, name: str, *args: str) -> LaunchRequest:
    return LaunchRequest(
        EntryPoint(place / "script.py", args=args), Placement(ranks, 1, "cpu"), Output(place / "runs" / name)
    )


@pytest.mark.thorough
def test_several_runs_share_one_nursery_and_say_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_script(tmp_path, SCRIPT)
    with NurseryHandle(threads=1) as nursery:
        outcomes = [
            launch(request_in(tmp_path, ranks, name, *args), nursery=nursery)
            for ranks, name, args in ((1, "one", ()), (2, "two", ()), (2, "bad", ("fail",)), (3, "three", ()))
        ]
        process = nursery.process
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 1, 0]
    assert [outcome.joined for outcome in outcomes] == [True] * 4
    failed = outcomes[2]
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.error) == (FailureKind.SCRIPT, "ValueError: as asked")
    assert failed.block.startswith("FAILED    rank ")
    assert (outcomes[1].run_folder / "logs" / "rank-00001.log").read_text() == "total 2\n"
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_nursery_with_other_threads_is_refused(tmp_path: Path) -> None:
    write_script(tmp_path, SCRIPT)
    with NurseryHandle(threads=1, modules=()) as nursery, pytest.raises(UsageError, match="1 thread per rank"):
        launch(replace(request_in(tmp_path, 1, "two"), placement=Placement(1, 2, "cpu")), nursery=nursery)


@pytest.mark.thorough
def test_an_import_that_starts_a_thread_means_fresh_ranks(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    thread = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    write_script(tmp_path / "path", thread, "sitecustomize.py")
    path = f"{tmp_path / 'path'}:{Path(__file__).parents[3] / 'src'}"
    ended = run_script(tmp_path, "print('still runs')", "-n", "1", env={"PYTHONPATH": path})
    assert (ended.code, ended.out) == (0, "still runs\n"), ended.err
    assert ended.err.count("so each rank starts its own interpreter (--start-method spawn)") == 1
