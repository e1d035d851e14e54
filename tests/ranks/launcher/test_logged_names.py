"""Names of `run.log` that the launcher has a use for too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import run_script

SCRIPT = """
    import torch, samebits
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
        run.log(result=0.5)
    raise ValueError("by the script")
"""


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_metric_called_result_is_no_result_of_a_run_that_failed(tmp_path: Path, ranks: str) -> None:
    done = run_script(tmp_path, SCRIPT, "-n", ranks)
    assert done.code == 1
    assert "ValueError: by the script" in next(line for line in done.err.splitlines() if "FAILED" in line)
    assert "launcher.py" not in done.err
