"""`samebits.spawn` from scripts and from cells: both styles inside, one exception outside, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import kill, marked_processes, start_python, stretched, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
    import json, os, sys
    import torch, torch.distributed as dist, torch.nn.functional as F
    import samebits

    class Mine:
        def __eq__(self, other): return type(self) is type(other)

    def as_in_the_note(rank, world_size, results):
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
        for _ in range(2):
            dist.init_process_group("gloo", rank=rank, world_size=world_size)
            found = [None] * world_size
            dist.all_gather_object(found, Mine())
            assert found == [Mine()] * world_size
            total = torch.tensor([rank + 1.0])
            dist.all_reduce(total)
            dist.destroy_process_group()
        results[rank] = total[0]
        print("from rank", rank)

    def as_a_run(rank, where):
        run = samebits.init(seed=3, lanes=2, threads=1)
        assert (run.rank, run.world_size) == (rank, int(os.environ["WORLD_SIZE"]))
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        pairs = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
        model, loader = run.prepare(model, torch.utils.data.DataLoader(pairs, batch_size=16))
        for step in run.steps(loader):
            for x, y in step:
                run.backward(F.mse_loss(model(x), y))
        if run.is_main:
            with open(f"{where}-{run.world_size}.txt", "w") as file:
                file.write(" ".join(value.hex() for value in model.weight.grad.flatten().tolist()))

    print("before")
    results = torch.zeros(2)
    samebits.spawn(as_in_the_note, args=(2, results), nprocs=2)
    assert results.tolist() == [3, 3]
    print("between")
    samebits.spawn(as_a_run, args=("gradient",), nprocs=2)
    samebits.spawn(as_a_run, args=("gradient",), nprocs=1, quiet=True)
    print("after")
"""
CELL = """
import io, os, sys, time
import samebits

class Cell(io.StringIO):
    pass

real, sys.stdout = sys.stdout, Cell()

def train(rank):
    run = samebits.init()
    print("rank", rank, "of", run.world_size, os.path.basename(os.getcwd()), os.environ.get("SET_IN_A_CELL"), os.getppid())

samebits.spawn(train, quiet=True)
os.mkdir("elsewhere"), os.chdir("elsewhere")
os.environ["SET_IN_A_CELL"] = "yes"
samebits.spawn(train, nprocs=1)
def train(rank):
    raise ValueError("in the new version of the cell")
try:
    samebits.spawn(train, quiet=True)
except samebits.RankFailed as error:
    print(error)
real.write(sys.stdout.getvalue())
"""
FAILURES = """
    import json, os, signal, sys
    import samebits

    def fails(rank, how):
        run = samebits.init()
        if how == "usage":
            samebits.init(lanes=1)
        if rank == 1 and how == "raise":
            raise ValueError("as asked")
        if rank == 1 and how == "exit":
            sys.exit(3)
        if rank == 1 and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raise":
            run.barrier()
        signal.pause()

    sys.ps1 = ">>> "  # as at a prompt, where the process that has imported torch is kept
    for how in ("raise", "usage", "exit", "kill"):
        try:
            samebits.spawn(fails, args=(how,), quiet=True)
        except samebits.RankFailed as error:
            usage = isinstance(error, samebits.UsageError)
            print(json.dumps([how, error.rank, error.exit_code, usage, str(error), error.traceback]))
    context = samebits.spawn(fails, args=("never",), join=False, quiet=True)
    assert context.join(timeout=0.01) is False
    context.stop()
    assert context.join() is True
    context = samebits.spawn(fails, args=("exit",), join=False, quiet=True)
    try:
        context.join()
    except samebits.RankFailed as error:
        assert error.exit_code == 3
    assert context.join() is True, "a failure is raised once"
    samebits.spawn(fails, args=("exit",), join=False, quiet=True)
"""
WAITS = """
    import signal, sys
    import torch
    import samebits

    def waits(rank):
        run = samebits.init()
        loader = torch.utils.data.DataLoader(range(4), num_workers=1, persistent_workers=True)
        next(iter(loader))
        run.barrier()
        print("waiting", flush=True) if rank == 0 else None
        signal.pause()

    context = samebits.spawn(waits, join="now" in sys.argv)
    signal.pause() if "away" in sys.argv else context.join()
"""


@pytest.mark.thorough
def test_the_backend_of_a_spawn_is_what_its_groups_have(tmp_path: Path) -> None:
    script = """
        import samebits, torch.distributed as dist

        def over_another_backend(rank):
            dist.init_process_group("mpi")
            assert dist.get_backend() == "gloo"
            dist.barrier()  # Gloo still connects on one rank where the other has begun to leave
            dist.destroy_process_group()

        samebits.spawn(over_another_backend, nprocs=2, backend="gloo", quiet=True)
    """
    ended = start_python(tmp_path, write_script(tmp_path, script)).finish()
    assert ended.code == 0, ended.err


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "In `samebits.spawn` `samebits.init()` and `init_process_group` work, several calls in a row, with "
    "the same bits; a function of a notebook cell runs, and rank 0 prints into the cell",
    also=["test_functions_of_a_cell_run_and_print_into_the_cell"],
)
def test_both_styles_work_twice_in_a_row_with_the_same_bits_on_1_and_2_ranks(tmp_path: Path) -> None:
    ended = start_python(tmp_path, write_script(tmp_path, SCRIPT)).finish()
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == ["before", "from rank 0", "between", "after"]
    assert "from rank 1" in ended.err
    assert ended.err.count("2 ranks on c") == 2, "the last was quiet"
    assert (tmp_path / "gradient-1.txt").read_text() == (tmp_path / "gradient-2.txt").read_text() != ""


@pytest.mark.thorough
def test_functions_of_a_cell_run_and_print_into_the_cell(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=CELL, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first, _, parent = lines[0].rpartition(" ")
    assert first == f"rank 0 of 2 {tmp_path.name} None"
    assert lines[1] == f"rank 0 of 1 elsewhere yes {parent}", "forked from the same process, which has imported torch"
    assert lines[2].endswith("ValueError: in the new version of the cell")


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "`samebits.spawn` raises the first failure once, with rank and traceback; what cannot be sent is "
    "named before anything starts",
    also=["test_what_cannot_work_is_one_sentence_and_starts_nothing"],
)
@pytest.mark.thorough
def test_the_first_failure_is_raised_once_with_its_rank_and_traceback(tmp_path: Path) -> None:
    ended = start_python(tmp_path, write_script(tmp_path, FAILURES)).finish()
    assert ended.code == 0
    assert ended.err.startswith("samebits.spawn: rank 1"), "never joined, yet said"
    assert "the script ended with exit code 3" in ended.err
    told = {how: rest for how, *rest in map(json.loads, ended.out.splitlines())}
    rank, code, usage, message, traceback = told["raise"]
    assert (rank, code, usage) == (1, 1, False)
    assert message.startswith("rank 1, ")
    assert message.count("ValueError: as asked") == 2, "in the headline and at the traceback's end"
    assert 'raise ValueError("as asked")' in traceback
    assert "stopped because of this" in message
    _, code, usage, message, _ = told["usage"]
    assert (code, usage) == (2, True)
    assert "`lanes` must be at least the number of ranks, but is 1 with 2 ranks." in message
    assert told["exit"][:2] == [1, 3]
    assert told["kill"][:2] == [1, 137]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGINT, "now"),
        pytest.param(signal.SIGTERM, "now", marks=pytest.mark.thorough),
        pytest.param(signal.SIGKILL, "now", marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, "later", marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, "away", marks=pytest.mark.thorough),
        (signal.SIGKILL, "away"),
    ],
)
def test_a_signal_to_the_caller_leaves_nothing(tmp_path: Path, number: signal.Signals, how: str) -> None:
    run = start_python(tmp_path, write_script(tmp_path, WAITS), how)
    run.wait_for("waiting")
    assert len(run.processes()) >= 5, "the caller, the nursery, two ranks and their loader workers"
    if number == signal.SIGKILL:
        kill(run.process.pid)
    else:
        os.kill(run.process.pid, number)
    ended = run.finish()
    until(lambda: marked_processes(run.mark) == [], "the end of all processes", stretched(3.0))
    assert ended.code == -number if number != signal.SIGINT else "KeyboardInterrupt" in ended.err
