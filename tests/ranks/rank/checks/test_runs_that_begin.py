"""A look at what a script keeps never holds a run up, wherever its libraries lie."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.support.launching import run_script

pytestmark = pytest.mark.ranks

LOOP = """
import sys, site, torch, torch.nn.functional as F, samebits
from torch.utils.data import DataLoader, TensorDataset
if {pth!r}: site.addsitedir({pth!r})
from bars import tqdm
run = samebits.init(seed=0, lanes=2, threads=1)
x = torch.randn(16, 8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
bar = tqdm(total=4, file=sys.stdout)
for epoch in run.epochs(2):
    for step in tqdm(run.steps(loader), disable=True):
        for a, b in step: run.backward(F.mse_loss(model(a), b))
        optimizer.step(); optimizer.zero_grad()
        bar.update(1); bar.set_postfix(loss=step.loss)
"""


def a_library(folder):
    """tqdm under another name, whose source is deep and wide, where no environment has installed it."""
    folder.mkdir()
    shutil.copytree(Path(importlib.util.find_spec("tqdm").origin).parent, folder / "bars")
    return str(folder)


@pytest.mark.parametrize("place", ["elsewhere", "below the script"])
def test_a_library_on_the_path_of_python(tmp_path, place):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    path = a_library((tmp_path if place == "elsewhere" else scripts) / "lib")
    done = run_script(scripts, LOOP.format(pth=""), "-n", "1", env={"PYTHONPATH": path})
    assert done.bits
    assert "no state holds" not in done.err, done.err


def test_a_library_that_a_path_file_names_as_editable_installs_do(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "__editable__.bars.pth").write_text(a_library(tmp_path / "checkout") + "\n")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    assert run_script(scripts, LOOP.format(pth=str(tmp_path / "site")), "-n", "1").bits


@pytest.mark.thorough
def test_a_script_in_the_root_of_a_repository_with_two_thousand_files(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for number in range(2000):
        others = [(number * 7 + k) % 2000 for k in range(1, 9)]
        calls = "".join(f"        from own.m{one} import kept, go\n        x += go(x) + kept\n" for one in others)
        text = f"kept = 0\ndef go(x):\n    global kept\n    kept += 1\n    if x < 0:\n{calls}    return x\n"
        (own / f"m{number}.py").write_text(text)
    imports = "from tqdm import tqdm\nfrom own.m0 import go\nimport " + ", ".join(f"own.m{n}" for n in range(2000))
    script = LOOP.format(pth="").replace("from bars import tqdm", imports)
    assert run_script(tmp_path, script.replace("bar.update(1)", "bar.update(go(1))"), "-n", "1").bits
