"""What one rank alone finds all know; what the script reads behind a loop is named before a run has to resume without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import run_script

pytestmark = pytest.mark.ranks

LOOP = """
import os, sys, torch, torch.nn.functional as F, samebits
from torch.utils.data import DataLoader, TensorDataset
run = samebits.init(seed=0, lanes=4, threads=1)
x = torch.randn(64, 8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
data = TensorDataset(x, x.sum(1, keepdim=True))
{start}
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8))
for epoch in {epochs}:
    for step in run.steps(loader):
        for a, b in step:
            {lane}
        optimizer.step(); optimizer.zero_grad()
        {turn}
    {body}
{behind}
"""


def script(**parts: str) -> str:
    usual = {
        "start": "",
        "epochs": "run.epochs(2)",
        "lane": "run.backward(F.mse_loss(model(a), b))",
        "turn": "",
        "body": "",
        "behind": "",
    }
    return LOOP.format(**{**usual, **parts})  # fmt: skip


LATE = "class Own: scale = 1.0"
KILL = "if step.number == {} and run.rank == 1 and not os.path.exists('once'): open('once', 'w').close(); os.kill(os.getpid(), 9)"


def test_what_lanes_of_another_rank_hand_on_takes_the_claim_away(tmp_path: Path) -> None:
    lane = "loss = F.mse_loss(model(a), b) * Own.scale; Own.scale = loss.item() if step.lane > 1 else 1.0; run.backward(loss)"
    ended = run_script(tmp_path, script(start=LATE, lane=lane), "-n", "2")
    assert ended.code == 0, ended.err
    assert ended.err.count("lanes hand on Own.scale: ") == 1
    assert "lanes     hand on Own.scale (train.py:" in ended.err.replace("script.py", "train.py")


@pytest.mark.parametrize("steps", [3, 8])
def test_what_changes_on_another_rank_alone_is_said_by_the_first(steps: int, tmp_path: Path) -> None:
    own = "Own.scale *= 0.9 if run.rank else 1.0; run.state.kept = Own.scale > 2"
    text = script(start=LATE, turn=f"{own}\n        if step.number == {steps}: break", epochs="run.epochs(1)")
    ended = run_script(tmp_path, text, "-n", "2", "--name", "one")
    assert ended.code == 0, ended.err
    assert ended.err.count("no state holds Own.scale, so") == 1


@pytest.mark.thorough
def test_what_is_read_behind_a_loop_is_named_when_the_next_one_begins(tmp_path: Path) -> None:
    second = "print(last)\nfor epoch in run.epochs(2):\n    for step in run.steps(loader):\n        for a, b in step: run.backward(F.mse_loss(model(a), b))\n        optimizer.step(); optimizer.zero_grad()\n        "
    killed = script(body="last = float(step.loss)", behind=second + KILL.format(20))
    ended = run_script(tmp_path, killed, "-n", "2")
    before, behind = ended.err.split("LOST  ")
    assert "the script reads last behind this loop and no state holds it" in before
    assert before.count("behind this loop") == 1
    assert ended.code == 2
    assert "the same on rank" in behind
    (tmp_path / "once").unlink()
    exact = run_script(tmp_path, killed, "-n", "2", "--recover", "exact")
    assert "from the beginning (no state holds last)" in exact.err
    assert exact.bits == run_script(tmp_path, killed, "-n", "2").bits


def test_the_only_loop_has_nothing_behind_it_that_is_lost(tmp_path: Path) -> None:
    ended = run_script(tmp_path, script(body="last = float(step.loss)", behind="print(last)"), "-n", "1")
    assert ended.code == 0
    assert "behind this loop" not in ended.err


def test_epochs_of_the_scripts_own_that_read_behind_their_steps_are_told_why_nothing_is_saved(tmp_path: Path) -> None:
    text = script(epochs="range(3)", body="print(step.loss)")
    ended = run_script(tmp_path, text, "-n", "2", "--save-every", "epoch", "--name", "one")
    assert ended.code == 0, ended.err
    assert ended.err.count("--save-every epoch saves nothing here") == 1
    assert ended.err.count("the script reads step behind this loop") == 1


FOLDS = """
import os, torch, torch.nn.functional as F, samebits
from torch.utils.data import DataLoader, Subset, TensorDataset
run = samebits.init(seed=0, lanes=4, threads=1)
x = torch.randn(64, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
{start}
for fold in range(2):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    rows = [one for one in range(64) if one % 2 != fold]
    model, optimizer, loader, rest = run.prepare(model, optimizer, DataLoader(Subset(data, rows), batch_size=8), DataLoader(data, batch_size=16))
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            for a, b in step: run.backward(F.mse_loss(model(a), b))
            optimizer.step(); optimizer.zero_grad()
            {kill}
        tally = run.tally()
        for a, b in rest: tally.add(loss=F.mse_loss(model(a), b).item())
        {inside}
    {behind}
run.print("all", sum({scores}))
"""  # fmt: skip


@pytest.mark.thorough
def test_folds_that_keep_their_scores_by_fold_go_on_and_others_are_told_before_a_kill(tmp_path: Path) -> None:
    kept = {"start": "run.state.scores = {}", "inside": "run.state.scores[fold] = tally.mean()['loss']", "behind": "", "scores": "run.state.scores.values()"}  # fmt: skip
    whole = run_script(tmp_path, FOLDS.format(kill="", **kept), "-n", "2")
    killed = run_script(tmp_path, FOLDS.format(kill=KILL.format(14), **kept), "-n", "2")
    assert "LOST  " in killed.err
    assert (killed.bits, killed.out.splitlines()[-1]) == (whole.bits, whole.out.splitlines()[-1])
    assert "behind this loop" not in killed.err
    own = {"start": "scores = []", "inside": "", "behind": "scores.append(tally.mean()['loss'])", "scores": "scores"}
    told = run_script(tmp_path, FOLDS.format(kill="", **own), "-n", "2")
    assert told.err.count("the script reads tally behind this loop and no state holds it") == 1
