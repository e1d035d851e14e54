"""A failing run prints one block, last and once, and ends with the documented exit code."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.launching import run_script, start, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


@promise(
    "never-stuck-nothing-left-behind",
    "The first failure is the last thing printed, once, with rank, step, line and traceback; a script "
    "without `samebits run` has the same help",
    also=[
        "test_an_operation_without_a_deterministic_form_in_a_plain_script_is_followed_by_the_way_out",
        "test_a_keyboard_interrupt_of_the_scripts_own_keeps_its_traceback",
    ],
)
def test_an_exception_in_one_rank_is_one_block_and_the_last_thing_printed(tmp_path: Path) -> None:
    script = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            raise ValueError("the second rank has had enough")
        dist.all_reduce(torch.ones(3))
    """
    ended = run_script(tmp_path, script, "-n", "2")
    block = ended.err[ended.err.index("FAILED") :].splitlines()
    assert ended.code == 1
    assert block[0] == "FAILED    rank 1: ValueError: the second rank has had enough"
    assert block[1].endswith('script.py:5  raise ValueError("the second rank has had enough")')
    assert block[-2:] == ["  others  rank 0 was stopped because of this", f"  log     {_shown_log(ended.folder, 1)}"]
    assert (ended.out + ended.err).count("Traceback (most recent call last)") == 1
    assert "samebits/launch" not in ended.err
    assert "the second rank has had enough" in ended.log(1)


def _shown_log(folder: Path | None, rank: int) -> str:
    assert folder is not None
    return f"samebits-runs/{folder.name}/logs/rank-{rank:05d}.log"


def test_the_same_exception_on_every_rank_is_said_once(tmp_path: Path) -> None:
    script = """
        import os, pathlib, time
        pathlib.Path("here-" + os.environ["RANK"]).touch()
        while len(list(pathlib.Path().glob("here-*"))) < 2:  # else the first one may be noticed before the other is there
            time.sleep(0.01)
        raise KeyError('missing')
    """
    ended = run_script(tmp_path, script, "-n", "2", "--start-method=spawn")
    assert ended.code == 1
    assert ended.err.count("KeyError: 'missing'") == 2, "in the headline and at the end of the traceback"
    assert "the same on rank" in ended.err


def test_a_mistake_in_the_use_of_samebits_has_the_line_and_the_fix_and_no_traceback(tmp_path: Path) -> None:
    script = """
        from samebits.errors import UsageError
        raise UsageError("`lanes` must be at least 1, but is 0.", "Set lanes=1.")
    """
    ended = run_script(tmp_path, script, "-n", "2", "-q", "--start-method=spawn")
    assert ended.code == 2
    headline, where, others, fix, _log = ended.err.splitlines()
    assert headline.endswith(": `lanes` must be at least 1, but is 0.")
    assert "script.py:3  raise UsageError(" in where
    assert (others[:10], fix) == ("  others  ", "  help    Set lanes=1.")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import os; os._exit(9)", 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGUSR1)", 128 + signal.SIGUSR1),
        ("raise KeyboardInterrupt", 130),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                ("import sys; sys.exit(7)", 7),
                ("import sys; sys.exit('no luck')", 1),
                ("1 +", 2),
                ("import sys; sys.exit(0)", 0),
            )
        ),
    ],
)
def test_the_exit_code_is_the_scripts_own(tmp_path: Path, text: str, code: int) -> None:
    assert run_script(tmp_path, text, "-n", "1", "--start-method=spawn").code == code


def test_a_keyboard_interrupt_of_the_scripts_own_keeps_its_traceback(tmp_path: Path) -> None:
    script = """
        def inner():
            raise KeyboardInterrupt("mine")
        inner()
    """
    ended = run_script(tmp_path, script, "-n", "1", "--start-method=spawn")
    assert ended.code == 130
    assert "FAILED    rank 0: KeyboardInterrupt: mine" in ended.err
    assert 'script.py", line 3, in inner' in ended.err


def test_exit_handlers_run_and_buffered_output_arrives(tmp_path: Path) -> None:
    script = """
        import atexit, sys, threading
        atexit.register(lambda: sys.stdout.write("handler ran"))
        threading.Thread(target=lambda: print("thread ended")).start()
        sys.exit(4)
    """
    ended = run_script(tmp_path, script, "-n", "1")
    assert ended.code == 4
    assert ended.out == "thread ended\nhandler ran"


def test_a_crash_in_native_code_shows_its_stack(tmp_path: Path) -> None:
    script = """
        import ctypes
        def crash():
            ctypes.string_at(0)
        crash()
    """
    ended = run_script(tmp_path, script, "-n", "1", "--start-method=spawn")
    assert ended.code == 128 + signal.SIGSEGV
    block = ended.err[ended.err.index("FAILED") :]
    assert "killed by signal 11 (SIGSEGV)" in block
    assert 'script.py", line 4 in crash' in block
    assert block.count("Fatal Python error") == 1


def test_the_step_and_line_of_a_killed_rank_come_from_its_journal(tmp_path: Path) -> None:
    script = """
        import os, signal
        from samebits.protocol.journal.ring import Phase
        from samebits.protocol.journal.ring import JournalWriter
        from samebits.protocol.environment import decode
        from samebits.protocol.run_folder import RunFolder
        place = decode(os.environ)
        journal = JournalWriter(RunFolder(place.settings.run_folder).journal(place.position.rank))
        journal.write(Phase.EXCHANGE, "all_reduce", step=12, epoch=1, file=__file__, line=11)
        os.kill(os.getpid(), signal.SIGKILL)
        # the line that the journal names
    """
    ended = run_script(tmp_path, script, "-n", "1", "--start-method=spawn", "--recover", "off")
    block = ended.err[ended.err.index("FAILED") :]
    assert block.startswith(
        "FAILED    rank 0, in step 12 (11 done), exchange, all_reduce: killed by signal 9 (SIGKILL)"
    )
    assert f"last seen at {tmp_path / 'script.py'}:11" in block
    assert "why     sent by another process; the kernel reports no shortage of memory" in block


def test_torch_that_cannot_be_imported_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise ImportError('no torch today')")
    path = f"{tmp_path / 'broken'}:{Path(__file__).parents[2] / 'src'}"
    run = start(tmp_path, "-n", "2", write_script(tmp_path, "print('never')"), env={"PYTHONPATH": path})
    ended = run.finish()
    assert ended.code == 1
    assert "error: torch cannot be imported here:" in ended.err
    assert ended.err.rstrip().endswith("ImportError: no torch today")
    assert ended.out == ""


DRIFTING = """
    import samebits, torch
    run = samebits.init(lanes=2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + run.rank))
    data = torch.utils.data.TensorDataset(torch.randn(8, 2), torch.randn(8, 1))
    model, optimizer, loader = run.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
    for step in run.steps(loader):
        for x, y in step:
            run.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""


@promise(
    "never-a-silent-wrong-gradient",
    "Models that drift apart are found within 50 steps, at the next epoch, before a state or at the end; "
    "all ranks start again, and the second time the run ends with exit code 2",
)
def test_models_that_drift_apart_a_second_time_at_the_same_step_are_the_scripts_mistake(tmp_path: Path) -> None:
    ended = run_script(tmp_path, DRIFTING, "-n", "2")
    assert ended.code == 2
    again, stop, failed = (line for line in ended.err.splitlines() if "no longer hold" in line)
    assert again.endswith("(they did at the start)")
    assert "  back    all ranks start again (restart 1 of 3), from the beginning" in ended.err
    assert stop.startswith("stop      rank 0 and rank 1 no longer hold the same bits in 'Linear.weight', ")
    assert failed.startswith("FAILED    rank 0 and rank 1 no longer hold the same bits in 'Linear.weight', ")
    assert "or the script does something on some ranks only, outside the lanes" in ended.err
    assert "sha256" not in ended.err


def test_an_exit_code_of_one_rank_is_the_runs(tmp_path: Path) -> None:
    script = """
        import samebits, sys
        run = samebits.init()
        if run.rank == 1:
            sys.exit(5)
        run.barrier()
    """
    assert run_script(tmp_path, script, "-n", "2").code == 5
