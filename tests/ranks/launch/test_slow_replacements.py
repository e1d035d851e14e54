"""A replacement that takes long to start is waited for by name, and is not taken for a stalled rank."""

from __future__ import annotations

import time

import pytest

from lockstep.handover.run_folder import RunFolder
from lockstep.journal.ring import JournalReader
from tests.support.launching import start, until, write_script

pytestmark = pytest.mark.ranks

STALL_AFTER_S = 1.5
SCRIPT = """
import os, time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep

died, go = Path("died"), Path("go")
while died.exists() and not go.exists():  # a slow disk
    time.sleep(0.02)
run = lockstep.init(seed=1, lanes=2)
model = torch.nn.Linear(4, 1)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), 8)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if run.rank == 1 and step.number == 5 and not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)
"""


def test_a_replacement_that_is_still_starting_is_waited_for_by_name_and_left_alone(tmp_path):
    run = start(
        tmp_path,
        "-n",
        "2",
        "--on-stall",
        "replace",
        "--stall-after",
        str(STALL_AFTER_S),
        write_script(tmp_path, SCRIPT),
    )
    try:
        until((tmp_path / "died").exists, "the death")
        (folder,) = (tmp_path / "lockstep-runs").glob("*")
        survivor = JournalReader(RunFolder(folder).journal(0))

        def waits_long():
            wait = survivor.waiting()
            return (
                wait is not None
                and (wait.what, wait.behind) == ("the replacement of rank 1", {1})
                and time.monotonic_ns() - wait.since_ns > 3 * STALL_AFTER_S * 1e9
            )

        until(lambda: waits_long() or run.process.poll() is not None, "a wait for the replacement")
        (tmp_path / "go").touch()
        done = run.finish()
    finally:
        run.clean_up()
    assert done.code == 0, done.err
    assert "stalled" not in done.err
    assert done.err.count("replaced in") == 1, done.err
