"""Rank 0 dies before, after and in the middle of a line that it prints: every line is on the screen once."""

import pytest

from tests.support.launching import run_script

pytestmark = pytest.mark.ranks

TRAIN = '''
import os, signal, sys
from pathlib import Path
import torch
from torch import nn
import lockstep

kills = sys.argv[1:]


def here(place):
    """End rank 0 here; once."""
    if run.is_main and place in kills and not Path(place).exists():
        Path(place).touch()
        os.kill(os.getpid(), signal.SIGKILL)


run = lockstep.init(seed=3, lanes=4, threads=1)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 4))
model, optimizer, loader = run.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
for _ in run.epochs(1):
    for step in run.steps(loader):
        for number, (x, y) in enumerate(step):
            run.backward((model(x) - y).square().mean())
            place = f"{step.number}-{number}"
            here(f"before-{place}")
            run.print("forward", place)
            here(f"after-{place}")
            run.print("half a line,", end="", flush=True)
            here(f"middle-{place}")
            run.print(" and the rest of", place)
            run.print("a warning", place, file=sys.stderr)
        optimizer.step()
        optimizer.zero_grad()
        here(f"update-{step.number}")
        run.print("updated", step.number)
run.print("done")
here("end")
'''


def lines(first=1):
    """Standard output from a step on."""
    found = []
    for step in range(first, 9):
        for place in (f"{step}-0", f"{step}-1"):
            found += [f"forward {place}", f"half a line, and the rest of {place}"]
        found.append(f"updated {step}")
    return [*found, "done"]


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(["before-2-0", "middle-3-1", "after-5-0", "before-6-1"], id="middle"),
        pytest.param(["after-1-0", "before-7-1", "end"], id="ends", marks=pytest.mark.thorough),
    ],
)
def test_a_rank_that_is_replaced_prints_every_line_once(tmp_path, kills):
    finished = run_script(tmp_path, TRAIN, "-n", "2", "--max-restarts", "9", args=tuple(kills))
    assert finished.code == 0, finished.err
    assert finished.err.count("nothing recomputed") == len(kills), finished.err
    assert finished.out.splitlines() == lines()
    warnings = [line for line in finished.err.splitlines() if line.startswith("a warning")]
    assert warnings == [f"a warning {step}-{number}" for step in range(1, 9) for number in (0, 1)]
    assert finished.log(0).count("forward") == 16, "as in the log, where the two streams may tear each other's lines"


@pytest.mark.thorough
def test_a_script_that_reads_its_last_step_behind_the_loop_starts_again(tmp_path):
    script = TRAIN.replace('run.print("done")', 'run.print("done", step.number)')
    finished = run_script(tmp_path, script, "-n", "2", args=("end",))
    assert finished.code == 0, finished.err
    assert "the script reads step behind the loop" in finished.err
    assert finished.out.count("done 8") == 2


def test_what_rank_0_had_still_to_do_after_a_step_is_done(tmp_path):
    finished = run_script(tmp_path, TRAIN, "-n", "2", args=("update-3",))
    assert finished.code == 0, finished.err
    assert "rank 0 died between two steps" in finished.err
    assert "updated 3" in finished.out
