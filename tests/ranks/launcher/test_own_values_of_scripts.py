"""What a script switches and writes in its own ways is the same at the end, whichever rank died on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import argparse, copy, functools, itertools, json, os, signal, sys, time
from pathlib import Path
import numpy as np
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import samebits

kill = sys.argv[1:]
kept = Path((json.loads(os.environ["SAMEBITS_RANK"])["snapshots"] or {{"folder": "nowhere"}})["folder"])


def here(place, number):
    mark = Path("killed")
    if kill == [str(run.rank), place, str(number)] and not mark.exists():
        patience = time.monotonic() + 1
        while "snapshots" in os.environ and not list(kept.glob("run-1/step-*")) and time.monotonic() < patience:
            time.sleep(0.05)
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3)
        self.scale, self.seen = 1.0, None

    def forward(self, x):
        self.seen = x.mean()
        return self.last(self.drop(self.norm(self.first(x)).relu())) * self.scale

run = samebits.init(seed=3, lanes=4, threads=1)
x, y = torch.randn(64, 8), torch.randn(64, 3)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
factor = 1.0
{setup}
for epoch in run.epochs(4):
    {body}
    for step in run.steps(loader):
        {before}
        for a, b in step:
            here("forward", step.number)
            run.backward(F.mse_loss(model(a), b) * factor)
        here("exchanged", step.number)
        optimizer.step()
        optimizer.zero_grad()
        {after}
        run.log(loss=step.loss)
    here("late", epoch)
    {late}
modes = [module.training for module in model.modules()], [one.requires_grad for one in model.parameters()]
Path(f"end-{{run.rank}}").write_text(repr(({end}, factor, modes, torch.rand(2).tolist())))
"""

CASES = {
    "layers that evaluate": ("pass", {"body": "if epoch == 1: model.norm.eval()"}, "0"),
    "layers that are frozen": ("pass", {"body": "if epoch == 1: model.first.requires_grad_(False)"}, "0"),
    "writes past torch's counters": ("pass", {"body": "model.first.weight.data.mul_(0.9)"}, "0"),
    "such writes in each step": ("pass", {"before": "model.first.weight.data.mul_(0.97)"}, "0"),
}
WAYS = {
    "in the first epoch": (("-n", "2"), ("1", "forward", "3")),
    "later": (("-n", "2"), ("0", "forward", "10")),
    "between snapshots": (("-n", "2", "--snapshots", "1steps"), ("1", "exchanged", "11")),
    "alone": (("-n", "1", "--snapshots", "1steps"), ("0", "late", "2")),
}
Outcome = tuple[str | None, list[str], list[dict[str, object]]]


def outcome(place: Path, name: str, options: tuple[str, ...], kill: tuple[str, ...] = ()) -> Outcome:
    """The bits, what each rank held at the end, and what was logged."""
    setup, parts, end = CASES[name]
    text = SCRIPT.format(
        **{"setup": setup, "body": "pass", "before": "pass", "after": "pass", "late": "pass", "end": end, **parts}
    )
    place.mkdir()
    ended = run_script(place, text, *options, args=kill, env={"snapshots": "1"} if "--snapshots" in options else None)
    assert ended.code == 0, ended.err
    assert ended.folder is not None
    assert not kill or (place / "killed").exists()
    lines = [json.loads(line) for line in (ended.folder / "metrics.jsonl").read_text().splitlines()]
    ends = [one.read_text() for one in sorted(place.glob("end-*"))]
    return ended.bits, ends, [{**line, "time": 0} for line in lines]


class Undisturbed:
    """How scripts end where nobody dies, each run once for a number of ranks."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory, self._found = factory, dict[tuple[str, tuple[str, ...]], Outcome]()

    def __call__(self, name: str, ranks: tuple[str, ...]) -> Outcome:
        if (name, ranks) not in self._found:
            self._found[name, ranks] = outcome(self._factory.mktemp("straight") / "run", name, ranks)
        return self._found[name, ranks]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param("layers that evaluate", "between snapshots", marks=pytest.mark.thorough),
        ("such writes in each step", "later"),
    ],
)
@pytest.mark.thorough
def test_the_end_is_that_of_an_undisturbed_run(tmp_path: Path, undisturbed: Undisturbed, name: str, way: str) -> None:
    options, kill = WAYS[way]
    assert outcome(tmp_path / "killed", name, options, kill) == undisturbed(name, options[:2])


@promise(
    "never-stuck-nothing-left-behind",
    "After a kill, switched layers, frozen parameters and `p.data` are as in an undisturbed run",
    also=["test_the_end_is_that_of_an_undisturbed_run"],
)
@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_whatever_a_script_switches_and_writes_is_the_same_at_the_end(
    tmp_path: Path, undisturbed: Undisturbed, name: str, way: str
) -> None:
    options, kill = WAYS[way]
    assert outcome(tmp_path / "killed", name, options, kill) == undisturbed(name, options[:2])
