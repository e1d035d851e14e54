"""Where nothing was compiled, everything works over Gloo, with the same bits, and one notice says so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

SCRIPT = """
import torch
import torch.nn.functional as F
import lockstep

run = lockstep.init(seed=0, lanes=4, threads=1)
model = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
"""


def started(folder, environment):
    (folder / "train.py").write_text(SCRIPT)
    command = Path(sys.executable).parent / "lockstep"
    done = subprocess.run(
        [command, "run", "-n", "2", "--strategy", "zero1", "train.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def bits(output):
    return re.search(r"sha256:\w+", output)[0]


def test_a_run_without_the_compiled_part_has_the_same_bits_and_says_once_that_it_is_slower(tmp_path, monkeypatch):
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    shared = started(tmp_path / "with", None)
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text('import sys\nsys.modules["lockstep._native"] = None\n')
    monkeypatch.setenv("PYTHONPATH", str(blocker), prepend=":")
    over_gloo = started(tmp_path / "without", None)
    assert bits(over_gloo) == bits(shared)
    assert over_gloo.count("the ranks talk over Gloo, not through shared memory") == 1
    assert "C++20 compiler" in over_gloo
