"""`verify --interrupt`: a run that is stopped goes on as if it were not, or what the script forgot is named."""

import json

import pytest
from rich.console import Console

from samebits.errors import UsageError
from samebits.launcher.trials.trials import Program, Trials
from samebits.verify.continued import show_continued
from samebits.verify.interruption import Interruption, interrupt
from tests.scripts.verifying import nursery  # noqa: F401 - a fixture
from tests.support.launching import write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import time
from pathlib import Path
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=0, {init})
inputs = torch.randn(40, 6)
targets = inputs[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = StepLR(optimizer, 1, 0.5)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
began = time.time()
{before}
for epoch in {epochs}:
    {first}
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        {step}
        optimizer.step()
        optimizer.zero_grad()
    {epoch_end}
    scheduler.step()
    run.log(seconds_left=len(str(began)) * 0)
{end}
"""
GOOD = {
    "init": "lanes=2",
    "before": "run.track(average=average, scheduler=scheduler); run.state.mean = 0.0; Path('log').write_text('')",
    "epochs": "run.epochs(3)",
    "first": "Path('log').open('a').write(f'{epoch} ')",
    "step": "average.update_parameters(model); run.state.mean = run.state.mean / 2 + step.loss; run.log(mean=run.state.mean)",
    "epoch_end": "pass",
    "end": "",
}


@pytest.fixture
def interrupted(tmp_path, nursery):  # noqa: F811
    def interrupted(after, ranks=(1, 1), steps=20, **slots):
        write_script(tmp_path, SCRIPT.format(**GOOD | slots), "train.py")
        program = Program(tmp_path / "train.py", None, (), threads=1, device="cpu")
        with Trials(program, lambda *_: None, nursery) as trials:
            try:
                return interrupt(Interruption(program, after, ranks, None, steps), trials)
            finally:
                trials.remove()

    return interrupted


def shown(found):
    console = Console(width=10_000, color_system=None)
    with console.capture() as capture:
        show_continued(found, console)
    return capture.get()


@promise(
    "what-verify-proves",
    "`--interrupt K` stops a run after step K and compares the one that goes on with one that never "
    "stopped, under `zero1` and stages too",
    also=["test_so_does_one_whose_ranks_hold_parts", "test_the_run_goes_on_with_the_files_of_the_first"],
)
@pytest.mark.parametrize(
    ("after", "ranks", "steps"),
    [
        (7, (2, 1), 20),
        pytest.param(5, (1, 2), 3, marks=pytest.mark.thorough),
        pytest.param(15, (1, 1), 20, marks=pytest.mark.thorough),
    ],
)
def test_a_script_that_names_everything_has_the_same_bits_after_a_stop(interrupted, after, ranks, steps):
    found = interrupted(after, ranks, steps)
    assert (found.exit_code, found.stopped_after, found.num_steps) == (0, after, min(15 - after, steps)), shown(found)
    assert found.num_items_at_end > 30
    assert found.runs[1].reached_end
    assert f"SAME BITS after a stop at step {after}" in shown(found)
    json.dumps(found.as_json(), allow_nan=False)


AGAIN = """
run.track(scheduler=scheduler)
def again():
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
    {then}
"""

PLAIN = {"before": "run.track(scheduler=scheduler)", "step": "run.log(loss=step.loss)"}


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["zero1", "model_parallel"])
def test_so_does_one_whose_ranks_hold_parts(interrupted, strategy):
    found = interrupted(7, (2, 2), 3, init=f"lanes=2, strategy={strategy!r}", **PLAIN)
    assert (found.exit_code, found.stopped_after, found.num_steps) == (0, 7, 3), shown(found)


LOSSY = """
class Meter:
    sum = 0.0
    def update(self, value): self.sum += value
    def state_dict(self): return {"sum": self.sum}
    def load_state_dict(self, state): self.total = state["sum"]
meter = Meter()
run.track(average=average, scheduler=scheduler, meter=meter)
"""

FORGETS = {
    "average": (
        {"before": "run.track(scheduler=scheduler); run.state.mean = 0.0"},
        "script average.n_averaged",
        "states do not hold average (AveragedModel). Add run.track(average=average) before the first epoch",
    ),
    "scheduler": (
        {"before": "run.track(average=average); run.state.mean = 0.0"},
        "script scheduler.last_epoch",
        "states do not hold scheduler (StepLR). Add run.track(scheduler=scheduler)",
    ),
    "value": (
        {
            "before": "run.track(average=average, scheduler=scheduler); mean = 0.0",
            "step": "average.update_parameters(model); mean = mean / 2 + step.loss; run.log(mean=mean)",
        },
        "value mean",
        "Keep what matters in run.state: run.state.mean.",
    ),
    "attribute": (
        {
            "before": "run.track(average=average, scheduler=scheduler)\nclass Meter: pass\nmeter = Meter(); meter.seen = []",
            "step": "average.update_parameters(model); meter.seen.append(step.loss); run.log(seen=sum(meter.seen))",
        },
        "value seen",
        "states do not hold the variable meter.seen (7 items, then 0 items). Keep what matters in run.state: run.state.seen.",
    ),
    "optimizer": (
        {
            "before": GOOD["before"] + "; own = torch.optim.Adam([model[1].bias], lr=0.1)",
            "step": GOOD["step"] + "; own.step()",
        },
        "parameter 1.bias",
        "no state holds own, so a resumed run begins with it anew; pass it to run.prepare or run.track.",
    ),
    "lossy": (
        {
            "before": LOSSY,
            "step": "average.update_parameters(model); meter.update(step.loss); run.log(mean=meter.sum)",
        },
        "resumed script tracked meter.sum",
        "its load_state_dict did not bring back what its state_dict had returned",
    ),
    "gradients": (
        {"epoch_end": "again()", "step": "pass", "before": AGAIN.format(then="")},
        "gradient 0.weight",
        "gradients that were left at the end of an epoch were added to",
    ),
}


@promise(
    "what-verify-proves",
    "`--interrupt` names what the script forgot, with what to write, and only mentions what nothing depends on",
    also=["test_a_value_that_nothing_depends_on_is_only_mentioned"],
)
@pytest.mark.parametrize(
    "kind",
    [one if one == "value" else pytest.param(one, marks=pytest.mark.thorough) for one in FORGETS],
)
def test_what_a_script_forgets_is_named(interrupted, kind):
    slots, item, words = FORGETS[kind]
    found = interrupted(7, **slots)
    assert found.exit_code == 1, shown(found)
    place = found.difference.difference.place
    assert (place.item, place.step) == (item, {"lossy": 7, "gradients": 11}.get(kind, 8))
    assert words in shown(found)
    assert "began" not in shown(found), "a clock is not repeatable"


@pytest.mark.thorough
def test_a_value_that_nothing_depends_on_is_only_mentioned(interrupted):
    found = interrupted(
        7,
        before="run.track(average=average, scheduler=scheduler); best = 9.0",
        step="average.update_parameters(model); best = min(best, step.loss)",
    )
    assert found.exit_code == 0
    assert "Nothing that was compared depends on it, but states do not hold the variable best" in shown(found)


@pytest.mark.thorough
def test_the_run_goes_on_with_the_files_of_the_first(interrupted, tmp_path):
    (tmp_path / "best").write_text("mine")
    found = interrupted(
        7,
        epoch_end="Path('best').write_text(str(epoch)) if epoch == 0 else run.log(best=int(Path('best').read_text()))",
        before=f"run.track(average=average, scheduler=scheduler); run.state.mean = 0.0; import os; os.chdir({str(tmp_path)!r})",
    )
    assert found.exit_code == 0, shown(found)
    assert (tmp_path / "best").read_text() == "mine"


@promise(
    "what-verify-proves",
    "A script that is not repeatable is not blamed for its states; what cannot be proved, and fast "
    "numerics, are one sentence",
    also=["test_what_cannot_be_proved_is_one_sentence", "test_verify_says_that_fast_numerics_promise_no_bits"],
)
@pytest.mark.thorough
def test_a_script_that_is_not_repeatable_is_said_to_be_so(interrupted):
    found = interrupted(7, step="run.log(now=time.time()); average.update_parameters(model)")
    assert found.exit_code == 1
    assert found.difference.difference.place.item == "value now"
    assert "the script is not repeatable" in shown(found)


@pytest.mark.thorough
def test_where_no_state_can_be_saved_the_next_place_is_taken(interrupted):
    found = interrupted(7, epoch_end="again()", step="pass", before=AGAIN.format(then="optimizer.zero_grad()"))
    assert (found.exit_code, found.stopped_after) == (0, 10), shown(found)
    assert "No state is saved after step 7, so the run was stopped after step 10." in shown(found)


REFUSED = {
    "The script makes 15 steps, so it cannot be stopped after step 16. Choose an earlier step.": (16, {}),
    "No state could be saved after step 7": (7, {"epochs": "range(3)"}),
    "Each rank needs a lane, but there are 4 for 8 ranks": (7, {"init": ""}),
    "There are no bits to compare": (7, {"init": "lanes=2, numerics='fast'"}),
}


@pytest.mark.parametrize(
    "words", [*list(REFUSED)[:2], *(pytest.param(one, marks=pytest.mark.thorough) for one in list(REFUSED)[2:])]
)
def test_what_cannot_be_proved_is_one_sentence(interrupted, words):
    after, slots = REFUSED[words]
    with pytest.raises(UsageError) as caught:
        interrupted(after, (1, 8) if not slots.get("init", "lanes") else (1, 1), **slots)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("slots", "code", "words"),
    [
        ({"epochs": "[]"}, 2, "The script ended before its first step was finished"),
        pytest.param({"first": "assert step.number if epoch else True"}, 1, "NameError", marks=pytest.mark.thorough),
    ],
)
def test_a_run_that_fails_is_shown(interrupted, slots, code, words):
    found = interrupted(7, **slots)
    assert found.exit_code == code
    assert words in shown(found)
