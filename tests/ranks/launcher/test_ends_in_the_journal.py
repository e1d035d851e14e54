"""What the launcher knows of a run's end from the journal: also where somebody removed the run's folder, and under any names of `run.log`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.launching import run_script

TRAINING = """
    import os, shutil, torch, samebits
    run = samebits.init(lanes=2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 2)), 4)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        for (x,) in step:
            run.backward(model(x).mean())
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss, result=0.5)
        if step.number == 2 and run.is_main and os.environ.get("REMOVE"):
            os.rename("samebits-runs/exp1", "away")
            shutil.rmtree("away")
"""


def test_a_run_whose_folder_is_removed_ends_with_its_bits_and_one_warning(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    kept = run_script(tmp_path / "kept", TRAINING, "-n", "2", "--name", "exp1")
    gone = run_script(tmp_path, TRAINING, "-n", "2", "--name", "exp1", env={"REMOVE": "1"})
    assert (gone.code, kept.code) == (0, 0), gone.err
    assert not os.path.lexists(tmp_path / "samebits-runs" / "exp1")
    lines = {label: [line for line in gone.err.splitlines() if line.startswith(label)] for label in ("warning", "done")}
    assert [len(found) for found in lines.values()] == [1, 1], gone.err
    assert "was removed: the run goes on" in lines["warning"][0]
    assert [line for line in gone.err.splitlines() if line.startswith("bits ")] == [
        line for line in kept.err.splitlines() if line.startswith("bits ")
    ]
    shutil.rmtree(tmp_path / "kept")


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_metric_called_result_is_no_result_of_a_run_that_failed(tmp_path: Path, ranks: str) -> None:
    done = run_script(tmp_path, f"{TRAINING}    raise ValueError('by the script')", "-n", ranks)
    assert done.code == 1
    assert "ValueError: by the script" in next(line for line in done.err.splitlines() if "FAILED" in line)
    assert "launcher.py" not in done.err
