"""A rank that is killed, wherever that is, costs its step and no more: the same bits, values and tallies."""

import json

import pytest

from tests.support.launching import Finished, run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

TRAIN = '''
import os, signal, sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.rank.transport import shared_memory

kills = [kill.split(":") for kill in sys.argv[1:]]


def here(place, step):
    """End this rank by SIGKILL if it is its turn; once."""
    for rank, where, when in kills:
        mark = Path(f"killed-{rank}-{where}-{when}")
        if (int(rank), where, int(when)) == (run.rank, place, step) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Slow(torch.optim.Optimizer):
    """SGD with momentum, a parameter at a time."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self):
        for number, p in enumerate(self.param_groups[0]["params"]):
            if number == 2:
                here("middle of the update", at.number)
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            p.sub_(momentum.mul_(0.9).add_(p.grad), alpha=self.param_groups[0]["lr"])


def fatal(kind, name):
    inner = getattr(kind, name)

    def call(*args, **kwargs):
        if at is not None:
            here(f"before {name}", at.number)
        result = inner(*args, **kwargs)
        if at is not None:
            here(f"after {name}", at.number)
        return result

    setattr(kind, name, call)


at = None
run = samebits.init(seed=3, lanes=8, threads=1)
for kind, name in ((shared_memory._TreeSum, "advance"), (shared_memory._TreeSum, "finish")):
    fatal(kind, name)
fatal(shared_memory.SharedMemoryTransport, "all_gather_bytes")
here("start", 0)
x, y = torch.randn(152, 16), torch.randint(0, 10, (152,))
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 10))
train = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
optimizer, test = Slow(model.parameters()), DataLoader(TensorDataset(x, y), batch_size=24)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
model, optimizer, scheduler, train, test = run.prepare(model, optimizer, scheduler, train, test)
here("prepared", 0)
run.state.best = 0.0
model[0].weight.register_hook(lambda gradient: here("hook", at.number))
whole_run = run.tally()
for epoch in run.epochs(4):
    here("body", epoch)
    for group in optimizer.param_groups:
        group["lr"] *= 0.95
    tally = run.tally()
    for step in run.steps(train):
        at = step
        here("step", step.number)
        for images, labels in step:
            loss = F.cross_entropy(model(images), labels)
            here("forward", step.number)
            run.backward(loss)
            tally.add(loss=loss)
        here("exchanged", step.number)
        optimizer.step()
        here("updated", step.number)
        optimizer.zero_grad()
        run.log(loss=step.loss)
        run.state.shown = f"{step.loss.hex()} {step.number} {step.index} {step.num_samples}"
    at = None
    scheduler.step()
    model.eval()
    right = run.tally()
    with torch.no_grad():
        for images, labels in test:
            here("evaluation", epoch)
            right.add(accuracy=(model(images).argmax(1) == labels).float().mean())
            whole_run.add(accuracy=(model(images).argmax(1) == labels).float().mean())
    model.train()
    accuracy = right.mean()["accuracy"]
    here("evaluated", epoch)
    run.state.best = max(run.state.best, accuracy)
    run.log(accuracy=accuracy, train=tally.mean()["loss"])
    whole_run.mean()
    run.print(f"epoch {epoch}: {run.state.shown} {tally.mean()['loss'].hex()} {run.state.best.hex()} {run.mean(float(torch.rand(())))}")
here("over", 0)
run.print("mean", run.mean(1.0), whole_run.mean(), scheduler.get_last_lr(), run.state.shown, run.state.best)
'''

PLACES = {
    "the loop": ["1:forward:2", "2:hook:3", "2:exchanged:5", "2:middle of the update:7", "1:updated:8", "1:step:11"],
    "the exchange": [
        "2:before all_gather_bytes:2",
        "0:after all_gather_bytes:4",
        "1:before advance:6",
        "2:after advance:9",
        "1:before finish:12",
        "0:after finish:14",
    ],
    "around the loop": [
        "1:start:0",
        "2:prepared:0",
        "0:body:0",
        "1:body:1",
        "0:evaluation:1",
        "2:evaluated:2",
        "0:over:0",
    ],
    "two at once": ["1:forward:3", "2:forward:3", "0:forward:8", "1:start:0", "1:updated:16", "2:step:17"],
}
"""Which rank dies where, at which step, epoch or, outside of both, 0."""


def straight(finished: Finished) -> tuple[str, list[str], list[dict[str, float]]]:
    """The bits, the output, and the logged values."""
    assert finished.code == 0, finished.err
    assert finished.folder is not None
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    return finished.bits, finished.out.splitlines(), [{**line, "time": 0.0} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return straight(run_script(tmp_path_factory.mktemp("straight"), TRAIN, "-n", "2"))


OFTEN = ("the exchange", "two at once")


@promise(
    "never-stuck-nothing-left-behind",
    "Whatever is lost (`kill -9`, a segfault), wherever the rank is, costs its step under `ddp`, at most "
    "two: the same bits, `run.log` and tallies, each line once",
    also=["test_a_death_in_the_middle_of_sums_spoils_none"],
)
@pytest.mark.parametrize(
    "where", [pytest.param(where, marks=[pytest.mark.thorough] * (where not in OFTEN)) for where in PLACES]
)
def test_a_killed_rank_costs_its_step_and_changes_nothing(tmp_path, undisturbed, where):
    kills = PLACES[where]
    finished = run_script(tmp_path, TRAIN, "-n", "3", "--max-restarts", "20", args=tuple(kills))
    bits, printed, logged = straight(finished)
    assert (bits, logged) == (undisturbed[0], undisturbed[2])
    assert set(printed) == set(undisturbed[1]), "what was printed before may come again"
    assert len(list(tmp_path.glob("killed-*"))) == len(kills), "every kill came"
    told = [json.loads(line) for line in (finished.folder / "restarts.jsonl").read_text().splitlines()]
    late = [one for one in told if " before the first step" not in one["lost"]]
    assert all(one["in_memory"] and one["steps_again"] <= 2 for one in late), finished.err


WHAT_A_BODY_CHANGES = """
import os, signal, sys, torch, torch.nn.functional as F
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset
import samebits
run = samebits.init(seed=1, lanes=4, threads=1)
m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
o = torch.optim.AdamW(m.parameters(), lr=0.1)
s = torch.optim.lr_scheduler.ExponentialLR(o, 0.5)
x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
m, o, s, l = run.prepare(m, o, s, DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True))
average = torch.optim.swa_utils.AveragedModel(m)
run.track(average=average)
for e in run.epochs(3):
    s.step()
    average.update_parameters(m)
    with torch.no_grad():
        m[0].weight.mul_(0.9)
    o.param_groups[0]["weight_decay"] *= 0.5
    o.state.clear()
    for step in run.steps(l):
        for a, b in step:
            if run.rank == 1 and step.number == 13 and not Path("dead").exists() and "dies" in sys.argv:
                Path("dead").touch(); os.kill(os.getpid(), signal.SIGKILL)
            run.backward(F.cross_entropy(m(a), b))
        o.step(); o.zero_grad()
        run.log(loss=step.loss, seen=float(average.n_averaged), lr=s.get_last_lr()[0])
"""


@pytest.mark.thorough
def test_what_a_body_changes_before_its_steps_is_not_changed_twice(tmp_path):
    for name in ("straight", "dies"):
        (tmp_path / name).mkdir()
    ends = [run_script(tmp_path / name, WHAT_A_BODY_CHANGES, "-n", "2", args=(name,)) for name in ("straight", "dies")]
    assert straight(ends[1]) == straight(ends[0])
    assert "kept in memory" in ends[1].err
