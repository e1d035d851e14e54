"""`samebits verify` sees what its steps alone do not: the script's end, data sets that remember, what lanes pass on.

Each script has a mistake that its first steps hide, or that used to be blamed on something else.
"""

import subprocess
import sys

import pytest

from samebits.protocol.recording import AT_END
from samebits.verify.plain import Agreement
from samebits.verify.result import Result
from tests.scripts.verifying import Verifier, named, nursery, verified
from tests.support.launching import write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
__all__ = ["nursery", "verified"]

AVERAGE = "average = torch.optim.swa_utils.AveragedModel(model)"
REMEMBERS = """
class Remembers(torch.utils.data.Dataset):
    def __init__(self):
        self.kept = {}
    def __len__(self):
        return 44
    def __getitem__(self, index):
        %s
"""
KEEPS = REMEMBERS % "return self.kept.setdefault(index, inputs[index] + 0.1 * torch.randn(6)), targets[index]"
WRITES = REMEMBERS % "return inputs[index].mul_(0.9).clone(), targets[index]"
MIXES = REMEMBERS % (
    "before, self.kept[0] = self.kept.get(0, inputs[0]), inputs[index]; return before + inputs[index], targets[index]"
)
HONEST_CACHE = REMEMBERS % (
    "clean = self.kept.setdefault(index, inputs[index].clone()); return clean + 0.1 * torch.randn(6), targets[index]"
)


def at_end(result: Result) -> tuple[str, str]:
    """Item and usual cause of a first difference at the end."""
    item, step, cause = named(result)
    assert step == AT_END
    return item, cause


@pytest.mark.thorough
def test_a_change_behind_the_last_step_is_compared_and_named(verified: Verifier) -> None:
    result = verified(before=AVERAGE, end="torch.optim.swa_utils.update_bn(loader, average)", steps=3)
    item, cause = at_end(result)
    assert item == "script average.module.1.running_mean"
    assert "the code after the last step is to blame: this object is updated from a rank's own samples" in cause
    assert result.reached_end
    assert verified(
        before=AVERAGE, end="torch.optim.swa_utils.update_bn(DataLoader(TensorDataset(inputs), 11), average)"
    ).proved


FIRST = """
tally = run.tally()
for i, (x, y) in enumerate({batches}):
    if i == 1: break
    tally.add(value={value})
tally.mean()
"""


def test_what_tallies_return_is_compared(verified: Verifier) -> None:
    assert verified(end=FIRST.format(batches="loader.first(1)", value="x.mean()")).proved
    item, _ = at_end(verified(end=FIRST.format(batches="loader.first(1)", value="run.world_size")))
    assert item == "value tally.mean value"


GATHERED = """model.eval()
    with torch.no_grad():
        whole = run.gather(torch.cat([model(x) + {added} for x, y in test_loader] or [torch.empty(0, 3)]))
    model.train()
    """
"""Rows of an evaluation behind each epoch, which nothing is done with."""


@promise(
    "what-verify-proves",
    "What run.gather returns behind an evaluation, and run.lane_sum, run.lane_cat and run.mean in a step, is compared, whatever becomes "
    "of it",
    also=["test_what_lanes_made_together_is_compared"],
)
def test_rows_of_an_evaluation_are_compared_though_no_parameter_knows_them(verified: Verifier) -> None:
    result = verified(epoch_end=GATHERED.format(added="0.1 * (run.world_size - 1)"), steps=3)
    item, step, cause = named(result)
    assert (item.partition(":")[0], step) == ("value run.gather at train.py", 2), "the epoch has two steps"
    assert "what run.gather was given depends on the number of ranks" in cause
    assert [one.item.split()[1] for one in result.difference.difference.places] == ["run.gather"]
    assert verified(epoch_end=GATHERED.format(added="0.1"), steps=3).proved


def test_what_lanes_made_together_is_compared(verified: Verifier) -> None:
    lane = "made.append(torch.full((2,), {}))"
    slots = {"before": "made = []", "after": "run.lane_sum(made); run.lane_cat(made); run.mean(made[0]); made.clear()"}
    result = verified(**slots, lane=lane.format("float(run.world_size)"), steps=2)
    assert named(result)[1] == 1
    found = [one.item.split()[1] for one in result.difference.difference.places]
    assert found == ["run.lane_sum", "run.lane_cat", "run.mean"], "no parameter knows them"
    assert verified(**slots, lane=lane.format("1.5"), steps=2).proved


@pytest.mark.thorough
def test_an_evaluation_that_is_left_early_is_no_proof_on_one_rank_either(verified: Verifier) -> None:
    result = verified(ranks=(1,), end=FIRST.format(batches="loader", value="x.mean()"))
    assert not result.reached_end
    assert "was left early" in " ".join(result.not_proved())


@promise(
    "what-verify-proves",
    "An end that needs more steps (an assert, a missing file) is named as not proved; a script that waits "
    "for them is ended",
    also=["test_a_script_that_waits_for_more_steps_is_ended"],
)
@pytest.mark.parametrize(
    ("slots", "why"),
    [
        (
            {"end": "assert run._run.components.step_timer.step == 4, 'some are missing'"},
            "AssertionError: some are missing at train.py:",
        ),
        pytest.param({"end": "import sys; sys.exit(3)"}, "it ended with exit code 3", marks=pytest.mark.thorough),
    ],
)
def test_a_script_that_cannot_come_to_its_end_is_no_failure_and_the_end_is_named_as_not_proved(
    verified: Verifier, slots: dict[str, str], why: str
) -> None:
    result = verified(steps=2, **slots)
    assert result.exit_code == 0, result.failed
    assert not result.reached_end
    assert "the end of the script" in " ".join(result.not_proved())
    assert why in " ".join(result.not_proved())


@pytest.mark.thorough
def test_a_script_that_waits_for_more_steps_is_ended(verified: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    before = "import samebits.rank.recording.recording; samebits.rank.recording.recording.LEAST_REST_S = 0.1; epochs, steps = 10**9, 0"
    result = verified(steps=2, before=before, end="while True: steps += sum(1 for step in run.steps(loader))")
    assert result.exit_code == 0, result.failed
    assert "it did not end within" in " ".join(result.not_proved())


@pytest.mark.thorough
def test_an_end_that_only_some_numbers_of_ranks_come_to_is_a_failure(verified: Verifier) -> None:
    result = verified(steps=2, end="assert run.world_size == 1, 'too many'")
    assert result.exit_code == 1
    assert result.failed is not None
    assert result.failed.label == "2 ranks"
    assert "After step 2 it reached the end with 1 rank, but not here" in result.failed.text
    assert "AssertionError: too many" in result.failed.text


@pytest.mark.thorough
def test_a_step_whose_loop_is_left_is_compared(verified: Verifier) -> None:
    leaving = "\n        if step.number == 2: model[0].weight.data += 0.1 * run.world_size; break"
    result = verified(after=leaving, epochs=1, steps=9)
    item, step, _ = named(result)
    assert (item, step) == ("parameter 0.weight", 2)
    result = verified(after="break", epochs=3, steps=9)
    assert result.proved
    assert result.num_steps == 3


@promise(
    "what-verify-proves",
    "A data set that remembers what it gave is named, one that caches is not blamed",
    also=["test_a_data_set_that_caches_what_it_reads_and_augments_anew_is_honest"],
)
@pytest.mark.thorough
@pytest.mark.parametrize("dataset", [KEEPS, WRITES])
def test_a_data_set_that_remembers_is_named_although_its_first_epoch_is_right(verified: Verifier, dataset: str) -> None:
    result = verified(before_loader=dataset, dataset="Remembers()", steps=2)
    item, cause = at_end(result)
    assert item == "again training samples of loader 1, step 1, lane 0"
    assert "the data set remembers earlier samples" in cause
    assert {row.title: row.cells[1].differs_at for row in result.rows}["losses"] is None


@pytest.mark.thorough
def test_a_data_set_that_mixes_samples_with_the_ones_before_is_named_in_the_first_step(verified: Verifier) -> None:
    item, step, cause = named(verified(before_loader=MIXES, dataset="Remembers()", steps=2))
    assert (item, step) == ("samples of lane 1", 1)
    assert "the data set or its random numbers depend on the rank" in cause


@pytest.mark.thorough
def test_a_data_set_that_caches_what_it_reads_and_augments_anew_is_honest(verified: Verifier) -> None:
    result = verified(before_loader=HONEST_CACHE, dataset="Remembers()", order="shuffle=True, num_workers=1", steps=2)
    assert result.proved
    result = verified(before_loader=HONEST_CACHE, dataset="Remembers()", epoch_end="for x, y in test_loader: model(x)")
    assert result.proved
    again = next(row for row in result.rows if row.key == "again")
    assert again.num_items == 2 * 2 + 3


@pytest.mark.thorough
def test_models_that_are_made_by_the_number_of_ranks_are_named_before_the_first_step(verified: Verifier) -> None:
    result = verified(before_loader="torch.manual_seed(run.world_size)")
    item, step, cause = named(result)
    assert (item, step) == ("initial 0.weight", 0)
    assert "the models are built differently" in cause


@promise(
    "what-verify-proves",
    "A tensor that lanes hand on is named with its line, a NaN with its first place",
    also=["test_nan_of_other_bits_is_told_as_nan_with_its_first_place"],
)
@pytest.mark.thorough
def test_a_state_that_lanes_hand_on_is_named_with_its_line(verified: Verifier) -> None:
    before = "h, mask = torch.zeros(1, 8), None"
    lane = (
        "mask = torch.ones(1, 8) if mask is None else mask\n"
        "            h = torch.tanh(model[0](x).mean(0, keepdim=True) + h).detach()\n"
        "            x = x + mask[:, :6] * h[:, :6]"
    )
    item, step, cause = named(verified(lanes=4, before=before, lane=lane))
    assert (item, step) == ("loss", 1)
    assert "lanes hand on h (train.py:" in cause


@pytest.mark.thorough
def test_nan_of_other_bits_is_told_as_nan_with_its_first_place(verified: Verifier) -> None:
    payload = "torch.tensor([0x7FC00000 + run.world_size], dtype=torch.int32).view(torch.float32)"
    after = f"\n        if step.number == 2: model[0].bias.data[:1] = {payload}"
    result = verified(after=after, norm="nn.Identity()", order="shuffle=False")
    item, step, cause = named(result)
    assert (item, step) == ("parameter 0.bias", 2)
    assert cause.startswith("both are NaN, and only the NaN's bits differ")
    assert "The first NaN is at step 2, parameter 0.bias" in cause
    assert str(result.first_nan) == "step 2, parameter 0.bias"
    same = verified(after="\n        if step.number == 2: model[0].bias.data[:1] = float('nan')", norm="nn.Identity()")
    assert same.exit_code == 0
    assert "anything from step 2 on, where NaN begins" in " ".join(same.not_proved())


@promise(
    "what-verify-proves",
    "Where lanes draw their own samples the row `plain` says that it shows nothing, with exit code 1, "
    "unless `--accept plain` is given; a mask for each sample is no such thing",
    also=[
        "test_an_accepted_row_plain_says_so_and_does_not_fail",
        "test_attention_with_a_mask_for_each_sample_is_that_of_the_whole_batch",
    ],
)
@pytest.mark.thorough
def test_samples_that_lanes_draw_for_themselves_make_the_row_plain_show_nothing(verified: Verifier) -> None:
    drawn = "at = torch.randint(44, (len(x),)); x, y = inputs[at], targets[at]"
    result = verified(ranks=(1,), lane=drawn)
    assert result.plain is not None
    assert result.plain.agreement is Agreement.SAME_LANES
    assert result.exit_code == 1


@pytest.mark.thorough
def test_a_second_run_in_one_script_is_compared_too(verified: Verifier) -> None:
    again = (
        "run = samebits.init(seed=1, lanes=2)\n"
        "model = nn.Linear(6, 3)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loader = DataLoader(TensorDataset(inputs, targets), batch_size=22)\n"
        "model, optimizer, loader = run.prepare(model, optimizer, loader)\n"
        "for step in run.steps(loader):\n"
        "    for x, y in step: run.backward(F.cross_entropy(model(x), y))\n"
        "    optimizer.step(); model.bias.data += 0.1 * run.world_size"
    )
    item, step, _ = named(verified(epochs=1, steps=4, end=again))
    assert (item, step) == ("parameter bias", 3)
    honest = verified(epochs=1, steps=3, end=again.replace("run.world_size", "1"))
    assert honest.proved
    assert honest.num_steps == 3


STUCK = """
    import time, torch, samebits
    run = samebits.init(seed=1, lanes=2, threads=1)
    model = torch.nn.Linear(1, 1)
    loader = torch.utils.data.DataLoader(torch.ones(8, 1), 4)
    model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    for epoch in run.epochs(1):
        for step in run.steps(loader):
            for x in step:
                run.backward(model(x).mean())
            optimizer.step()
            optimizer.zero_grad()
            if run.rank == 1:
                time.sleep(600)
"""


@pytest.mark.thorough
def test_a_run_in_which_a_rank_is_stuck_ends_with_its_name(tmp_path):
    script = write_script(tmp_path, STUCK)
    command = [sys.executable, "-m", "samebits", "verify", script, "--ranks", "1,2", "--steps", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "stalled" in said and "rank 1 is at script.py:14" in said, said
