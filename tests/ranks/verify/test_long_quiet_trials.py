"""What `verify` says while its runs last, where nobody sees a terminal: lines on standard error, none among the JSON."""

import json
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ranks

IMPATIENT = "from lockstep.cli import main, under_way; under_way.PLAIN_S = under_way.FIRST_S = 0.3; main.main()"
SCRIPT = """
import torch, lockstep

run = lockstep.init(seed=0, lanes=1)
loader = torch.utils.data.DataLoader(torch.randn(8, 4), 4)
model = torch.nn.Linear(4, 1)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
for epoch in run.epochs(1):
    for step in run.steps(loader):
        for x in step:
            run.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.thorough
def test_a_run_that_lasts_is_told_of_on_standard_error_alone(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["verify", "--json", "--ranks", "1", "--steps", "2", "--save", "bits.json", "train.py"]
    done = subprocess.run([sys.executable, "-c", IMPATIENT, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 0
    assert re.match(r"(plain … \d+ s so far\n)+plain … \d+\.\d s\n", done.stderr), done.stderr
    words.insert(1, "-q")
    done = subprocess.run([sys.executable, "-c", IMPATIENT, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
