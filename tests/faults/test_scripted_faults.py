"""Faults of `samebits.testing.faults` happen to real processes, once, and leave a file that says so."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.machine.leftovers import descendants
from samebits.machine.processes import process_state
from samebits.testing import faults
from tests.support.launching import killed_at_the_end, run_script, until
from tests.support.promises import promise

SCRIPT = """
import os, sys
from samebits.testing import faults
for step in range(1, 4):
    told = faults.at(step)
    print(step, told, flush=True)
    if step == 2:
        faults.sample(7)
"""
ENDS = {
    "kill": -signal.SIGKILL,
    "segfault": -signal.SIGSEGV,
    "raise": 1,
    "leave": 0,
    "out-of-memory": 1,
}
WAITS = {
    "stop": "T",
    "spin": "R",
    "hold-gil": "R",
    "sleep": "S",
    "deadlock": "S",
    "dead-thread": "S",
    "file-lock": "S",
    "full-pipe": "S",
    "input": "S",
    "blocked": "D",
}
"""What the kernel says about a process to which it happened."""


def variables(plan, folder, rank=1):
    return {**os.environ, "RANK": str(rank), **faults.variables(plan, folder)}


def run(plan, folder, rank=1):
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(
        command, env=variables(plan, folder, rank), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )


@promise(
    "never-stuck-nothing-left-behind",
    "Each fault of `samebits.testing.faults` happens once, to a real process, and a file proves it",
    also=[
        "test_a_process_waits_as_the_kernel_says_and_leaves_nothing",
        "test_fault_plans.py::test_a_mistake_is_one_sentence",
    ],
)
@pytest.mark.parametrize(("kind", "code"), ENDS.items())
def test_a_process_ends_once_and_a_replacement_goes_on(kind, code, tmp_path):
    plan = f"{kind} rank=1 step=2"
    done = run(plan, tmp_path)
    assert (done.returncode, done.stdout) == (code, "1 \n"), done.stderr
    (event,) = faults.assert_fired(plan, tmp_path)
    assert (event.fault, event.rank) == (plan, 1)
    again = run(plan, tmp_path)
    assert (again.returncode, again.stdout) == (0, "1 \n2 \n3 \n")
    assert faults.fired(tmp_path) == [event]


@pytest.mark.parametrize(("kind", "letter"), WAITS.items())
def test_a_process_waits_as_the_kernel_says_and_leaves_nothing(kind, letter, tmp_path):
    plan = f"{kind} rank=1 step=2"
    with killed_at_the_end(
        [sys.executable, "-c", SCRIPT], env=variables(plan, tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        until(lambda: bool(faults.fired(tmp_path)), "the fault")
        (event,) = faults.assert_fired(plan, tmp_path)
        assert event.pid == process.pid
        until(lambda: (state := process_state(process.pid)) is not None and state.letter == letter, f"state {letter}")
        children = descendants(process.pid)
        process.kill()
        process.wait(60)
    until(lambda: not any(Path(f"/proc/{child}/cmdline").read_bytes() for child in children if _is_there(child)), "end")


def _is_there(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("kind", ["skip", "break", "evaluate"])
def test_what_only_the_script_can_do_is_told_to_it_once(kind, tmp_path):
    plan = f"{kind} rank=1 step=2"
    assert run(plan, tmp_path).stdout == f"1 \n2 {kind}\n3 \n"
    assert run(plan, tmp_path, rank=0).stdout == "1 \n2 \n3 \n"
    faults.assert_fired(plan, tmp_path)


def test_a_fault_of_a_sample_happens_to_whoever_fetches_it(tmp_path):
    done = run("raise sample=7; leave rank=1 step=3", tmp_path, rank=0)
    assert (done.returncode, done.stdout) == (1, "1 \n2 \n")
    assert "a fault was asked for here" in done.stderr
    with pytest.raises(AssertionError, match="never happened: leave rank=1 step=3"):
        faults.assert_fired("raise sample=7; leave rank=1 step=3", tmp_path)


def test_what_would_harm_the_machine_is_refused(tmp_path):
    for kind, said in (("lo-down", "not a network of its own"), (f"disk-full path={tmp_path}", "1 GiB of room")):
        name, *words = kind.split()
        done = run(" ".join([name, "rank=1 step=2", *words]), tmp_path / name)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr


WITH_A_WORKER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import samebits
from samebits.testing import faults

run = samebits.init(seed=0, lanes=2)
model = torch.nn.Linear(4, 1)
loader = DataLoader(TensorDataset(torch.ones(64, 4)), 8, num_workers=1)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
for _ in run.epochs(2):
    for step in run.steps(loader):
        faults.at(step.number)
        for (vectors,) in step:
            run.backward(model(vectors).mean())
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.ranks
def test_a_killed_rank_and_its_loader_worker_leave_no_socket(tmp_path):
    plan, temporary = "kill rank=1 step=5", tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), **faults.variables(plan, tmp_path / "fired")}
    done = run_script(tmp_path, WITH_A_WORKER, "-n", "2", env=variables)
    assert (done.code, "all ranks start again" in done.err) == (0, True), done.err
    faults.assert_fired(plan, tmp_path / "fired")
    assert list(temporary.glob("sbmp-*")) == []


@pytest.mark.thorough
@pytest.mark.ranks
def test_the_line_where_a_rank_left_too_early_is_named(tmp_path):
    plan = "leave rank=1 step=5"
    done = run_script(tmp_path, WITH_A_WORKER, "-n", "2", env=faults.variables(plan, tmp_path / "fired"))
    faults.assert_fired(plan, tmp_path / "fired")
    assert (done.code, "rank 1 is at 'the end of the script' (script.py:13)" in done.err) == (2, True), done.err


TRAIN = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from samebits.testing import faults

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(1, 9):
    faults.at(step)
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
"""


@pytest.mark.ranks
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("kill", (), r"rank 1.*signal 9"),
        ("sleep", ("--on-stall", "stop"), r"rank 1 is at script.py:11 and uses no processor time"),
        ("mismatch", ("--backend", "samebits"), r"float64"),
    ],
)
def test_a_plain_script_under_the_launcher_is_hit_and_the_fault_is_said(tmp_path, kind, options, said):
    plan = f"{kind} rank=1 step=4"
    done = run_script(tmp_path, TRAIN, "-n", "2", *options, env=faults.variables(plan, tmp_path / "fired"))
    faults.assert_fired(plan, tmp_path / "fired")
    assert done.code, done.err
    assert re.search(said, done.err), done.err
