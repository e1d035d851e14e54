"""The witness begins when torch is imported, however a script comes to it, and wherever its process ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.verify.repeat.started import SITE

TRAIN = """
import torch
def train():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        weight.grad = torch.ones(2)
        optimizer.step()
"""
ARRIVALS = {
    "asked for first": f"import importlib.util; assert importlib.util.find_spec('torch')\n{TRAIN}\ntrain()",
    "forked": f"import multiprocessing\n{TRAIN}\nmultiprocessing.get_context('fork').Process(target=train).start()",
}
CUSTOMIZED = {"failing": "raise RuntimeError('a sitecustomize that fails')", "with torch": "import torch"}


def last_of(folder: Path, text: str, *paths: Path):
    (folder / "train.py").write_text(text)
    environment = {
        **os.environ,
        "SAMEBITS_WITNESS": json.dumps({"folder": str(folder), "steps": 9}),
        "PYTHONPATH": os.pathsep.join(map(str, (SITE, *paths))),
    }
    subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment, check=True, capture_output=True, timeout=100
    )
    [path] = folder.glob("rank-*.jsonl")
    return json.loads(path.read_text().splitlines()[-1])


@pytest.mark.parametrize("how", ARRIVALS)
def test_a_script_is_heard_however_it_comes_to_torch(tmp_path, how):
    assert last_of(tmp_path, ARRIVALS[how]).items() >= {"end": 2, "cut": False}.items()


@pytest.mark.parametrize("how", CUSTOMIZED)
def test_a_sitecustomize_of_the_user_s_own_comes_first(tmp_path, how):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(CUSTOMIZED[how])
    assert last_of(tmp_path, f"{TRAIN}\ntrain()", own)["end"] == 2
