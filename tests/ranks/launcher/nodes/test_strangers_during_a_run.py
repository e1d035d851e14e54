"""A thousand strangers at the port of node 0 while ranks train: all are refused, and the run has the bits of a quiet one."""

import json
import subprocess
import sys

import pytest

from tests.scripts.flooding_strangers import STRANGERS
from tests.support.launching import until, write_script
from tests.support.several_nodes import free_port, start_nodes

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]

TRAIN = """
import hashlib, json, sys, time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import samebits

place, run = Path(sys.argv[1]), samebits.init(seed=1, lanes=4, threads=1)
data = TensorDataset(torch.randn(800, 64), torch.randn(800, 1))
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.01), DataLoader(data, 8))
ends = []
for _ in run.epochs(int(sys.argv[2])):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.monotonic())
        if step.number == 50:
            (place / f"begun-{run.rank}").touch()
    while not (place / "over").exists() and len(ends) == 200:
        time.sleep(0.1)
weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
(place / f"rank-{run.rank}.json").write_text(json.dumps([hashlib.sha256(weights).hexdigest(), ends]))
"""


def bits_of(place, num_strangers):
    """Of both ranks of a run that so many strangers disturb, in five processes."""
    place.mkdir()
    script, port = str(place / write_script(place, TRAIN)), free_port()
    with start_nodes(place, 2, port, "-n", "1", script, str(place), "3") as started:
        until(lambda: all((place / f"begun-{rank}").exists() for rank in (0, 1)), "the fiftieth step")
        command = [sys.executable, "-c", STRANGERS, str(port), str(num_strangers // 50)]
        strangers = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(5 * bool(num_strangers))
        ]
        for one in strangers:
            assert one.communicate(timeout=100)[0] == f"{num_strangers // 5}\n", "each was closed, and was told nothing"
        (place / "over").touch()
        for run in started:
            ended = run.finish()
            assert ended.code == 0, ended.err
    return [json.loads((place / f"rank-{rank}.json").read_text())[0] for rank in (0, 1)]


def test_a_thousand_strangers_are_refused_and_change_no_bit(tmp_path):
    quiet, disturbed = bits_of(tmp_path / "quiet", 0), bits_of(tmp_path / "disturbed", 1000)
    assert quiet == disturbed and len(set(quiet)) == 1
