"""`samebits verify` under a strategy that promises no equal bits: it says so, names why, and blames nobody."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.trials.trials import PRELOADED, Program, Trials
from samebits.protocol.arithmetic import why_not_exact
from samebits.protocol.layout.mesh import Form
from samebits.verify.report import show
from samebits.verify.verify import Proof, verify
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=0, lanes=2)
inputs = torch.randn(44, 6)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=22, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
"""


def text_of(result: object) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=1000))  # type: ignore[arg-type]
    return out.getvalue()


@promise(
    "strategies-that-promise-no-equal-bits",
    "`samebits verify` says of both that they are not exact and why, blames nobody, and ends with 1 when bits differ",
)
@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["hogwild", "dp"])
def test_a_strategy_that_is_not_exact_is_no_fault_of_the_script(tmp_path: Path, strategy: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    program = Program(script, None, (), threads=1, device="cpu", form=Form(strategy))
    with NurseryHandle(1, PRELOADED) as nursery, Trials(program, lambda *_: None, nursery) as trials:
        try:
            result = verify(Proof(program, (1, 2), None, 2), trials)
            made = sorted(path.name for path in trials.base.iterdir())
        finally:
            trials.remove()
    assert result.failed is None, result.failed
    assert result.difference is not None
    assert result.exit_code == 1
    assert not [name for name in made if "again" in name]  # nothing is run again to find a cause
    text = text_of(result)
    assert f"Note: {why_not_exact(strategy)}" in text
    assert "So the bits differ (first: step 1, " in text
    assert "this is not the script's fault" in text
    assert "Usual cause" not in text
    assert "First difference" not in text
    assert result.as_json()["not_exact"] == why_not_exact(strategy)
    result.difference, result.rows = None, []
    assert "They were equal here; another run may differ." in text_of(result)


def test_exact_forms_have_no_reason_and_fast_numerics_have_one() -> None:
    assert [why_not_exact(name) for name in ("single", "ddp", "model_parallel", "pipeline")] == [""] * 4
    assert why_not_exact("ddp", "fast").startswith('numerics="fast" leaves the order of sums')


def test_the_command_refuses_what_does_not_fit_on_some_number_of_ranks_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "samebits", "verify", "--json", "train.py", "--steps", "1", "--ranks"]
    refused = subprocess.run(
        [*command, "1,2,4", "--mesh", "pipeline=2,ddp=2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert "needs 4 ranks, but there are 2" in refused.stderr
