"""What a script tracks is of the weights' moment after a kill: each step is counted once; what differs between ranks is named."""

import pytest

from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

OWN_LOOP = """
import os, signal, sys
from pathlib import Path
import torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import samebits
kills = [k.split(":") for k in sys.argv[1:]]
def here(place, number):
    for rank, where, when in kills:
        mark = Path(f"killed-{rank}-{where}-{when}")
        if (int(rank), where, int(when)) == (run.rank, place, number) and not mark.exists():
            mark.touch(); os.kill(os.getpid(), signal.SIGKILL)
class Counts:
    def __init__(self): self.batches, self.steps, self.lanes, self.seen = 0, 0, 0, torch.zeros(1)
    def state_dict(self): return vars(self)
    def load_state_dict(self, saved): vars(self).update(saved)
class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        here("optimizer", at.number); counts.steps += 1; super().step()
run = samebits.init(seed=1, lanes=4, threads=1)
m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
o = Optimizer(m.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(96, 8), torch.randint(0, 3, (96,))
m, o, l = run.prepare(m, o, DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True))
counts = Counts()
run.track(counts=counts)
run.state.steps = 0
run.state.losses, run.state.seen = [], set()
for e in run.epochs(4):
    for step in run.steps(l):
        at = step
        counts.batches += 1
        for a, b in step:
            counts.lanes += 1
            run.state.seen.add(step.number)
            here("lane", step.number)
            run.backward(F.cross_entropy(m(a), b))
        here("behind", step.number)
        counts.seen += 1
        run.state.steps += 1
        run.state.losses.append(step.number)
        o.step()
        here("updated", step.number)
        o.zero_grad()
        run.log(loss=step.loss)
run.print("counts", counts.batches, counts.steps, int(counts.seen), run.state.steps, len(run.state.losses), len(run.state.seen), counts.lanes)
"""

ACCELERATE = """
import os, signal, sys
from pathlib import Path
import torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from accelerate.utils import set_seed
from samebits.integrations.accelerate import Accelerator
kills = [k.split(":") for k in sys.argv[1:]]
class Counts:
    def __init__(self): self.batches, self.steps, self.seen, self.lines = 0, 0, torch.zeros(1), []
    def state_dict(self): return vars(self)
    def load_state_dict(self, s): vars(self).update(s)
accelerator = Accelerator()
def here(place):
    for rank, where, when in kills:
        mark = Path(f"killed-{rank}-{where}-{when}")
        if (int(rank), where, int(when)) == (accelerator.process_index, place, counts.steps) and not mark.exists():
            mark.touch(); os.kill(os.getpid(), signal.SIGKILL)
class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        here("optimizer"); super().step()
set_seed(7)
counts = Counts()
x, y = torch.randn(96, 8), torch.randint(0, 3, (96,))
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
optimizer = Optimizer(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, train = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True))
accelerator.register_for_checkpointing(counts)
for epoch in range(4):
    for a, b in train:
        counts.batches += 1
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(a), b)
            here("lane")
            accelerator.backward(loss)
            here("behind")
            optimizer.step()
            here("updated")
            counts.steps += 1
            counts.seen += 1
            counts.lines.append(float(counts.seen))
accelerator.print("counts", counts.batches, counts.steps, int(counts.seen), len(counts.lines))
"""

TRAINER = """
import os, signal, sys
from pathlib import Path
import torch, torch.nn.functional as F, transformers as T
from transformers.trainer_callback import ExportableState
from samebits.integrations.transformers import Trainer
kills = [k.split(":") for k in sys.argv[1:]]
def here(place, number):
    for rank, where, when in kills:
        mark = Path(f"killed-{rank}-{where}-{when}")
        if (rank, where, int(when)) == (os.environ.get("RANK", "0"), place, number) and not mark.exists():
            mark.touch(); os.kill(os.getpid(), signal.SIGKILL)
class Counter(T.TrainerCallback, ExportableState):
    def __init__(self): self.steps = self.begins = self.updates = 0
    def state(self): return {"args": {}, "attributes": {"steps": self.steps, "begins": self.begins, "updates": self.updates}}
    def on_step_begin(self, args, state, control, **k):
        self.begins += 1; here("begin", state.global_step)
    def on_pre_optimizer_step(self, args, state, control, **k): here("pre", state.global_step)
    def on_optimizer_step(self, args, state, control, **k):
        self.updates += 1; here("optimizer", state.global_step)
    def on_step_end(self, args, state, control, **k):
        self.steps += 1; here("end", state.global_step)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    def forward(self, x, labels):
        here("forward", counter.steps)
        out = self.body(x); return {"loss": F.cross_entropy(out, labels), "logits": out}
class Own(Trainer):
    def training_step(self, *a, **k):
        loss = super().training_step(*a, **k)
        if self.accelerator.loop.is_last: here("behind", self.state.global_step)
        return loss
T.set_seed(7)
draw = torch.Generator().manual_seed(1)
x, y = torch.randn(96, 8, generator=draw), torch.randint(0, 3, (96,), generator=draw)
rows = [{"x": a, "labels": b} for a, b in zip(x, y)]
counter, model = Counter(), Model()
args = T.TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=4, learning_rate=1e-2, logging_steps=3, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=3, max_grad_norm=1.0)
trainer = Own(model=model, args=args, train_dataset=rows, callbacks=[counter])
trainer.train()
if trainer.is_world_process_zero():
    print("counts", counter.begins, counter.updates, counter.steps, trainer.state.global_step)
"""

PARTS = '''
import os, signal, torch, torch.distributed as dist, torch.nn.functional as F
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset
import samebits

class Parts(torch.optim.Optimizer):
    """Momentum of a parameter on one rank alone, which gives its update to the others."""
    def __init__(self, params):
        super().__init__(params, {"lr": 0.02})
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    @torch.no_grad()
    def step(self):
        for number, p in enumerate(self.param_groups[0]["params"]):
            if number % self.world == self.rank:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.sub_(m.mul_(0.9).add_(p.grad), alpha=0.02)
            if self.world > 1:
                dist.broadcast(p.data, number % self.world)

run = samebits.init(seed=0, lanes=4, threads=1)
model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4))
x, y = torch.randn(96, 12), torch.randint(0, 4, (96,))
model, optimizer, loader = run.prepare(model, Parts(model.parameters()), DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True))
for epoch in run.epochs(4):
    for step in run.steps(loader):
        for a, b in step:
            run.backward(F.cross_entropy(model(a), b))
        optimizer.step(); model.zero_grad()
        if "DIES" in os.environ and step.number == 9 and run.rank == 1 and not Path("dead").exists():
            Path("dead").touch(); os.kill(os.getpid(), signal.SIGKILL)
    if "SAVES" in os.environ:
        run.save_state("state")
'''


def counted(finished):
    assert finished.code == 0, finished.err
    return next(line for line in finished.out.splitlines() if line.startswith("counts")), finished.bits


@promise(
    "save-and-resume",
    "After a kill tracked objects are as at the step's beginning, and count each step once; an "
    "optimizer that gives each rank a part is named, and in no state",
    also=[
        "test_after_a_kill_each_step_of_the_trainer_is_counted_once",
        "test_a_state_that_one_process_asks_for_is_written_where_another_is_killed_in_that_step",
        "test_an_optimizer_that_gives_each_rank_a_part_is_named_and_in_no_snapshot",
    ],
)
@pytest.mark.parametrize(
    "kills",
    [
        ("1:lane:7", "0:lane:31"),
        ("1:behind:9", "0:behind:26"),
        ("1:optimizer:14", "0:optimizer:30", "1:updated:40"),
    ],
    ids=["in a lane", "behind the lanes", "in the update"],
)
def test_after_a_kill_each_step_is_counted_once(tmp_path, kills):
    finished = run_script(tmp_path, OWN_LOOP, "-n", "2", args=kills)
    assert counted(finished)[0] == "counts 48 48 48 48 48 48 96"
    assert finished.err.count("kept in memory") == len(kills), finished.err
    (tmp_path / "straight").mkdir()
    assert finished.bits == run_script(tmp_path / "straight", OWN_LOOP, "-n", "1").bits


@pytest.mark.parametrize(
    "kills",
    [
        ("1:behind:9",),
        *(pytest.param(one, marks=pytest.mark.thorough) for one in [("1:lane:7",), ("1:optimizer:13", "0:updated:20")]),
    ],
)
def test_after_a_kill_each_batch_of_accelerate_is_counted_once(tmp_path, kills):
    pytest.importorskip("accelerate")
    finished = run_script(tmp_path, ACCELERATE, "-n", "2", args=kills, env={"HF_HUB_OFFLINE": "1"})
    assert counted(finished)[0] == "counts 48 48 48 48"
    assert finished.err.count("kept in memory") == len(kills), finished.err
    assert "The loop over batches was left" not in finished.err


@pytest.mark.parametrize(
    "kills",
    [
        ("1:behind:11",),
        *(
            pytest.param(one, marks=pytest.mark.thorough)
            for one in [("1:forward:9", "0:begin:20"), ("1:optimizer:25", "0:end:33")]
        ),
    ],
)
@pytest.mark.thorough
def test_after_a_kill_each_step_of_the_trainer_is_counted_once(tmp_path, kills):
    pytest.importorskip("transformers")
    finished = run_script(tmp_path, TRAINER, "-n", "2", args=kills, env={"HF_HUB_OFFLINE": "1"})
    assert counted(finished)[0] == "counts 48 48 48 48"
    assert finished.err.count("kept in memory") == len(kills), finished.err
    assert "counter." not in finished.err, finished.err


def test_a_state_that_one_process_asks_for_is_written_where_another_is_killed_in_that_step(tmp_path):
    pytest.importorskip("accelerate")
    saves = ACCELERATE.replace(
        "            counts.lines",
        "            if accelerator.sync_gradients and accelerator.completed_steps == 5 and accelerator.is_main_process: accelerator.save_state('state')\n            counts.lines",
    )
    finished = run_script(tmp_path, saves, "-n", "2", args=("1:behind:9",), env={"HF_HUB_OFFLINE": "1"})
    assert counted(finished)[0] == "counts 48 48 48 48"
    assert (tmp_path / "killed-1-behind-9").exists()
    assert (tmp_path / "state" / "samebits").is_dir()


@pytest.mark.thorough
def test_an_optimizer_that_gives_each_rank_a_part_is_named_and_in_no_snapshot(tmp_path):
    for name in ("one", "two", "dies"):
        (tmp_path / name).mkdir()
    one, two = (run_script(tmp_path / name, PARTS, "-n", count) for name, count in (("one", "1"), ("two", "2")))
    dies = run_script(tmp_path / "dies", PARTS, "-n", "2", env={"DIES": "1"})
    assert one.code == two.code == dies.code == 0, dies.err
    assert one.bits == two.bits == dies.bits
    assert "optimizer (Parts) keeps another state on each rank" not in one.err
    assert "optimizer (Parts) keeps another state on each rank" in two.err
    assert "from the beginning (no snapshot: optimizer (Parts) keeps another state on each rank" in dies.err


def test_a_state_of_an_optimizer_that_gives_each_rank_a_part_is_refused(tmp_path):
    finished = run_script(tmp_path, PARTS, "-n", "2", env={"SAVES": "1"})
    assert finished.code == 2, finished.err
    assert "optimizer (Parts) keeps another state on each rank, so no single state can hold it" in finished.err


def test_a_tracked_object_that_differs_between_ranks_is_named_and_in_no_snapshot(tmp_path):
    finished = run_script(tmp_path, OWN_LOOP, "-n", "3", args=("1:lane:7",))
    assert counted(finished)[0].startswith("counts 48 48 48 48 48 48")
    assert "'counts', which is tracked, is not the same on every rank" in finished.err
    assert "kept in memory" not in finished.err
