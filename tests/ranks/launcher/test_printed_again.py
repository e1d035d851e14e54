"""Rank 0 dies before, after and in the middle of a line that it prints: its step's lines come again, and none is missing."""

import pytest

from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

TRAIN = '''
import os, signal, sys
from pathlib import Path
import torch
from torch import nn
import samebits

kills = sys.argv[1:]


def here(place):
    """End rank 0 here; once."""
    if run.is_main and place in kills and not Path(place).exists():
        Path(place).touch()
        os.kill(os.getpid(), signal.SIGKILL)


run = samebits.init(seed=3, lanes=4, threads=1)
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


@promise(
    "never-stuck-nothing-left-behind",
    "After a restart what rank 0 prints comes again from its step on, none of it is missing, and what "
    "it had still to do itself is named",
    also=["test_what_rank_0_had_still_to_do_behind_the_lanes_is_named"],
)
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(["before-2-0", "middle-3-1", "after-5-0", "before-6-1"], id="middle"),
        pytest.param(["after-1-0", "before-7-1", "end"], id="ends", marks=pytest.mark.thorough),
    ],
)
def test_every_line_of_rank_0_is_printed_again_with_its_step(tmp_path, kills):
    finished = run_script(tmp_path, TRAIN, "-n", "2", "--max-restarts", "9", args=tuple(kills))
    assert finished.code == 0, finished.err
    places = [f"{step}-{number}" for step in range(1, 9) for number in (0, 1)]
    wanted = {f"forward {place}" for place in places} | {f"half a line, and the rest of {place}" for place in places}
    wanted |= {f"updated {step}" for step in range(1, 9)} | {"done"}
    printed = finished.out.splitlines()
    assert wanted <= set(printed)
    assert len(printed) <= len(wanted) + 4 * len(kills), "a step has five lines"
    assert {f"a warning {place}" for place in places} <= set(finished.err.splitlines())


def test_what_rank_0_had_still_to_do_behind_the_lanes_is_named(tmp_path):
    finished = run_script(tmp_path, TRAIN, "-n", "2", args=("update-3",))
    assert finished.code == 0, finished.err
    assert "rank 0 was lost behind the lanes of step 3: what it still had to print or write" in finished.err
    assert [line for line in finished.out.splitlines() if "updated" in line] == [
        f"updated {step}" for step in range(1, 9) if step != 3
    ]
