"""A run that stops and goes on, on the same or another number of ranks, has the bits of a run that never stopped."""

import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, OneCycleLR, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import samebits
from samebits.protocol.state_files.folder import StateFolder
from samebits.rank.run.ending import state_hash
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.launching import run_script, start, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
EPOCHS = 4


def sgd(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return optimizer, SequentialLR(optimizer, [LambdaLR(optimizer, lambda n: 0.5 + n / 8), StepLR(optimizer, 1)], [2])


def adamw_groups(model):
    slow, fast = list(model[1].parameters()), list(model[3].parameters())
    optimizer = torch.optim.AdamW([{"params": fast, "lr": 1e-2}, {"params": slow, "weight_decay": 0.3}], lr=1e-3)
    return optimizer, MultiStepLR(optimizer, [1, 3, 3], gamma=0.5)


def one_cycle(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
    return optimizer, OneCycleLR(optimizer, 0.05, total_steps=EPOCHS + 1)


KINDS = {"sgd": (scenarios.mlp, sgd), "groups": (scenarios.mlp, adamw_groups), "cnn": (scenarios.Cnn, one_cycle)}


STAGED = ("model_parallel", "single")
"""The strategies of the run whose model is cut; its average stays outside, as it needs all layers."""


def draws():
    return [torch.rand(3).tolist(), np.random.randn(), random.gauss(0, 1)]


def train(kind, path, stop_after, *, load, strategy=None):
    run = samebits.init(seed=3, lanes=4, strategy=strategy)
    model = KINDS[kind][0]()
    optimizer, scheduler = KINDS[kind][1](model)
    loader = DataLoader(scenarios.digits(), batch_size=32, shuffle=True)
    averaged = nn.Linear(1, 1) if strategy in STAGED else model
    average = AveragedModel(averaged, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    seen, next_draws = {}, None
    if load:
        seen = run.load_state(path, average=average)
        next_draws = draws()
    for epoch in run.epochs(EPOCHS):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(averaged)
        scheduler.step()
        draws()
        if epoch + 1 == stop_after:
            best = (epoch, float("-inf"), step.loss)
            run.save_state(path, average=average, best=best, notes={3: torch.float16, "none": None})
            run.save_state(path, average=average, best=best, notes={3: torch.float16, "none": None})
            next_draws = draws()
            break
    rates = [group["lr"].hex() for group in optimizer.param_groups]
    return {
        "bits": (
            *(() if strategy in STAGED else [digest_of(x) for x in (model, optimizer, average)]),
            rates,
            scheduler.last_epoch,
            draws(),
        ),
        "next draws": next_draws,
        "model": state_hash(run._run) if strategy in STAGED or run.world_size == 1 else "",
        "steps": run._run.components.step_timer.step,
        "seen": seen,
    }


def all_kinds(folder, stop_after, load, strategy=None):
    return {kind: train(kind, f"{folder}/{kind}", stop_after, load=load, strategy=strategy) for kind in KINDS}


@pytest.fixture(scope="module")
def undisturbed():
    return run_ranks(all_kinds, Started(1), "unused", None, False)[0]


@promise(
    "save-and-resume",
    "A run that stops after an epoch, or after any step, continues on 1, 2, 3, 4 or 8 ranks with the "
    "bits of one that never stopped: models, optimizers, schedulers, averages, random numbers",
    also=[
        "test_a_run_goes_on_after_any_step_on_any_number_of_ranks",
        "test_a_stopped_and_resumed_script_makes_each_epoch_once",
    ],
)
@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 3), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, 2), (2, 4), (4, 1)))],
)
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path, undisturbed, before, after):
    stopped = run_ranks(all_kinds, Started(before), str(tmp_path), 2, False)[0]
    told = run_ranks(all_kinds, Started(after), str(tmp_path), None, True)
    for rank in told:
        for kind, result in rank.items():
            assert result["bits"] == undisturbed[kind]["bits"], kind
            assert result["steps"] == undisturbed[kind]["steps"]
            assert result["next draws"] == stopped[kind]["next draws"]
            assert result["seen"]["best"][:2] == (1, -math.inf)
            assert result["seen"]["notes"] == {3: torch.float16, "none": None}
    manifest = json.loads((tmp_path / "cnn" / "manifest.json").read_text())
    assert (manifest["lanes"], manifest["ranks"], manifest["step"]) == (4, before, 10)
    assert min(manifest["files"]["optimizer.safetensors"]["tensors"]) == "exp_avg/body.0.bias"
    assert not list(tmp_path.glob(".*"))


def spread(folder, stop_after, load):
    return {"cnn": train("cnn", f"{folder}/cnn", stop_after, load=load, strategy="model_parallel")}


@pytest.mark.thorough
def test_a_run_goes_on_where_each_rank_holds_other_layers_and_back(tmp_path, undisturbed):
    """ddp on two ranks, then model_parallel on two, then one rank; the average stays outside: it needs all layers."""
    run_ranks(spread, Started(2), str(tmp_path), 1, False)
    run_ranks(spread, Started(2), str(tmp_path), 3, True)
    names = json.loads((tmp_path / "cnn" / "manifest.json").read_text())["files"]["optimizer.safetensors"]["tensors"]
    assert {"exp_avg/body.0.bias", "exp_avg/head.bias"} <= set(names)
    for last in (run_ranks(spread, Started(2), str(tmp_path), None, True), run_ranks(whole, Started(1), str(tmp_path))):
        assert {rank["cnn"]["model"] for rank in last} == {undisturbed["cnn"]["model"]}
        assert {rank["cnn"]["steps"] for rank in last} == {undisturbed["cnn"]["steps"]}


@promise(
    "shares-of-an-update-stages-of-a-model",
    "Under `zero1` `run.save_state` writes the bytes of one rank, and a run continues from `ddp` to "
    "`zero1` to one rank with the same bits",
)
@pytest.mark.parametrize("first", [pytest.param("ddp", marks=pytest.mark.thorough), "zero1"])
def test_a_state_is_the_same_file_under_zero1_and_goes_on_anywhere(tmp_path, undisturbed, first):
    """Saved after one epoch by the first strategy, after three by zero1 on other ranks, finished by one rank."""
    run_ranks(all_kinds, Started(2), str(tmp_path), 1, False, first)
    run_ranks(all_kinds, Started(3), str(tmp_path), 3, True, "zero1")
    run_ranks(all_kinds, Started(1), str(tmp_path / "alone"), 3, False)
    for kind in KINDS:
        alone, shared = (sorted((folder / kind).glob("*.safetensors")) for folder in (tmp_path / "alone", tmp_path))
        assert len(alone) == 3
        assert [path.read_bytes() for path in alone] == [path.read_bytes() for path in shared]
        mine, theirs = (
            json.loads((folder / kind / "state.json").read_text()) for folder in (tmp_path, tmp_path / "alone")
        )
        assert list(mine["entries"]["optimizer"].items()) == list(theirs["entries"]["optimizer"].items())
        assert mine["documents"]["optimizer"] == theirs["documents"]["optimizer"]
    for last in (
        run_ranks(all_kinds, Started(1), str(tmp_path), None, True),
        run_ranks(all_kinds, Started(4), str(tmp_path), None, True, "zero1"),
    ):
        for rank in last:
            for kind, result in rank.items():
                assert result["bits"] == undisturbed[kind]["bits"], kind


def whole(folder):
    return {"cnn": train("cnn", f"{folder}/cnn", None, load=True, strategy="single")}


def simple():
    run = samebits.init(seed=0, lanes=2)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(scenarios.digits(64), batch_size=32)
    model, optimizer, loader = run.prepare(nn.Sequential(nn.Flatten(), model), optimizer, loader)

    def epoch():
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()

    return run, model, epoch


def places(path):
    """Where in the loops a state is saved, and which epochs are left when it is loaded."""
    run, _, epoch = simple()
    for number in run.epochs(3):
        if number == 1:
            run.save_state(f"{path}/beginning")
        epoch()
        if number == 1:
            run.save_state(f"{path}/end")
            break
    run.save_state(f"{path}/left")
    for _ in run.epochs(2):
        epoch()
    run.save_state(f"{path}/second", best=1.5, model="its own name")
    left = {}
    for name in ("beginning", "end", "left", "second"):
        run, _, epoch = simple()
        said = run.load_state(f"{path}/{name}")
        left[name] = (list(run.epochs(3)), list(run.epochs(4)), said)
    run, _, _ = simple()
    return left, run.load_state(f"{path}/none", missing_ok=True)


def test_the_epochs_that_are_left_come_after_a_load(tmp_path):
    for left, nothing in run_ranks(places, Started(2), str(tmp_path)):
        assert nothing == {}
        assert left == {
            "beginning": ([1, 2], [0, 1, 2, 3], {}),
            "end": ([2], [0, 1, 2, 3], {}),
            "left": ([2], [0, 1, 2, 3], {}),
            "second": ([], [2, 3], {"best": 1.5, "model": "its own name"}),
        }


def rolled_back(path):
    """A state loaded inside the loop: its epochs run again, with the same bits; so does what the run itself keeps."""
    run, model, epoch = simple()
    numbers, digests = [], []
    own = run._run.loop_state.prepared.stateful["an average"] = AveragedModel(model)
    for number in run.epochs(3):
        numbers.append(number)
        own.update_parameters(model)
        epoch()
        digests.append(digest_of(model))
        if number == 0:
            run.save_state(path)
        if number == 1 and len(numbers) == 2:
            run.load_state(path)
    return numbers, digests[1] == digests[2], own.n_averaged.item()


def test_a_state_may_be_loaded_inside_the_loop(tmp_path):
    assert run_ranks(rolled_back, Started(2), str(tmp_path / "state")) == [([0, 1, 1, 2], True, 3)] * 2


class Wrong:
    def __init__(self, path):
        self.said, self.path = [], path

    def __call__(self, call, *args, **kwargs):
        try:
            call(*args, **kwargs)
            self.said.append("")
        except samebits.SamebitsError as error:
            self.said.append(str(error))


def refusals(path):
    run, model, epoch = simple()
    wrong = Wrong(path)
    wrong(run.save_state, path, rate=lambda: 0.1)
    wrong(run.save_state, path, seen=[1, {"deep": object()}])
    wrong(run.save_state, path, mine=run.rank)
    wrong(run.save_state, path, mine=torch.full((3,), run.rank))
    wrong(run.load_state, path)
    before = digest_of(model)
    run.save_state(path, average=AveragedModel(model))
    epoch()
    wrong(run.load_state, path)
    wrong(run.load_state, path, average=AveragedModel(model), other=AveragedModel(model))
    run, other, _ = other_model()
    kept = digest_of(other)
    wrong(run.load_state, path, average=AveragedModel(model))
    run, other, _ = other_model(torch.optim.lr_scheduler.StepLR)
    run.save_state(path)
    run, other, _ = other_model(torch.optim.lr_scheduler.CosineAnnealingLR)
    wrong(run.load_state, path)
    return wrong.said, kept == digest_of(other), before != kept


def other_model(scheduler=None):
    run = samebits.init(seed=0, lanes=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 11))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedulers = [scheduler(optimizer, 3)] if scheduler is not None else []
    model, optimizer, *_ = run.prepare(model, optimizer, DataLoader(scenarios.digits(64), batch_size=32), *schedulers)
    return run, model, optimizer


@promise(
    "save-and-resume",
    "What does not fit, or cannot be saved, is refused before anything is written or loaded",
)
def test_what_cannot_be_saved_or_does_not_fit_is_said_before_anything_changes(tmp_path):
    for said, untouched, sane in run_ranks(refusals, Started(2), str(tmp_path / "state")):
        function, deep, differs, tensors, missing, not_passed, too_many, reshaped, scheduler = said
        assert "rate is the function refusals.<locals>.<lambda>, which cannot be saved without pickle" in function
        assert "seen[1].deep is a object" in deep
        assert "'mine=' is not the same on every rank" in differs
        assert "'mine=' is not the same on every rank" in tensors
        assert "There is no state in" in missing
        assert "Pass average=... to run.load_state" in not_passed
        assert "the run has other=, but the state has only" in too_many
        assert "1.weight (10, 64) for (11, 64)" in reshaped
        assert "the scheduler was a StepLR, but the run has a CosineAnnealingLR" in scheduler
        assert untouched
        assert sane


def inside_steps(path):
    run, _, _ = simple()
    said = Wrong(path)
    for _ in run.steps(run._run.loop_state.prepared.loaders[0]):
        said(run.save_state, path)
        said(run.load_state, path)
        break
    for batch in run._run.loop_state.prepared.loaders[0]:
        said(run.save_state, path)
        del batch
        break
    run, _, epoch = simple()
    for _ in run.epochs(1):
        epoch()
        run.save_state(path)
        said(epoch)
    return said.said


def test_a_state_is_saved_between_epochs_only(tmp_path):
    for save, load, evaluation, second_loop in run_ranks(inside_steps, Started(1), str(tmp_path / "state")):
        assert "run.save_state was called inside the loop over run.steps" in save
        assert "run.load_state was called inside the loop over run.steps" in load
        assert "while iterating a prepared loader" in evaluation
        assert "called before the last run.steps of this epoch" in second_loop


def saved(path):
    run, _, epoch = simple()
    epoch()
    run.save_state(path)


def loading(paths):
    run, model, _ = simple()
    kept, said = digest_of(model), Wrong(paths)
    for path in paths:
        said(run.load_state, path)
    return said.said, kept == digest_of(model), run._run.components.step_timer.step


HARMS = {
    "model.safetensors": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "its content is not what was written"),
    "state.json": (lambda data: data[:-5], "bytes instead of"),
    "optimizer.safetensors": (None, "cannot be read"),
    "manifest.json": (lambda data: data.replace(b'"step": 2', b'"step": 3'), "manifest.json is damaged"),
}


def test_a_damaged_file_is_named_on_every_rank_and_nothing_is_changed(tmp_path):
    run_ranks(saved, Started(1), str(tmp_path / "state"))
    for file, (harm, _) in HARMS.items():
        shutil.copytree(tmp_path / "state", tmp_path / file)
        path = tmp_path / file / file
        path.unlink() if harm is None else path.write_bytes(harm(path.read_bytes()))
    for said, untouched, step in run_ranks(loading, Started(2), [str(tmp_path / file) for file in HARMS]):
        for sentence, (file, (_, message)) in zip(said, HARMS.items(), strict=True):
            assert str(tmp_path / file / file) in sentence
            assert message in sentence
        assert (untouched, step) == (True, 0)


def full_disk(path):
    """After one state is written, files may not grow beyond some bytes, as on a full disk."""
    run, model, epoch = simple()
    run.save_state(path)
    kept = digest_of(model)
    epoch()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    said = Wrong(path)
    try:
        said(run.save_state, path)
        said(run.save_weights, model, f"{path}.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run.load_state(path)
    return said.said, kept == digest_of(model)


def refused(path):
    run, model, _ = simple()
    said = Wrong(path)
    said(run.save_state, path)
    said(run.save_weights, model.state_dict(), f"{path}.safetensors")
    for name in ("", "a\0b", str(Path(path).parent), f"{path}.fifo"):
        said(run.save_weights, model, name)
    return said.said


def test_a_save_beside_another_programs_save_leaves_its_files_alone(tmp_path):
    other = StateFolder(tmp_path / "state")
    other.begin()
    (other.stage / "model.safetensors").write_bytes(b"half")
    os.mkfifo(tmp_path / "state.fifo")
    for state, no_model, *names in run_ranks(refused, Started(2), str(tmp_path / "state")):
        assert "Another program is saving to" in state
        assert "must be an nn.Module, but is of type OrderedDict" in no_model
        assert all("Name a file" in said for said in names)
    assert sorted(file.name for file in other.stage.iterdir()) == ["model.safetensors", "saving.json"]
    assert (other.stage / "model.safetensors").read_bytes() == b"half"
    other.abandon()


def test_a_full_disk_is_said_on_every_rank_and_leaves_the_older_state(tmp_path):
    for (state, weights), same in run_ranks(full_disk, Started(2), str(tmp_path / "state")):
        assert "The state could not be written to" in state
        assert "The weights could not be written to" in weights
        assert same
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


SCRIPT = """
    import sys, torch, samebits
    run = samebits.init(seed=0)
    model = torch.nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randint(0, 2, (16,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model, optimizer, loader = run.prepare(model, torch.optim.Adam(model.parameters()), loader)
    run.load_state("state", missing_ok=True)
    for epoch in run.epochs(int(sys.argv[1])):
        run.print("epoch", epoch)
        for step in run.steps(loader):
            step.backward(lambda batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
        run.save_state("state")
        run.save_weights(model, "best.safetensors")
        samebits.load_weights(model, "best.safetensors")
        samebits.load_weights(model, "state")
"""


def test_the_same_command_goes_on_and_says_what_differs(tmp_path):
    first = run_script(tmp_path, SCRIPT, "-n", "2", "--lanes", "2", args=("2",))
    assert (first.code, first.out.count("epoch")) == (0, 2), first.err
    (tmp_path / "state").rename(tmp_path / ".state.previous")  # as when a program ends while it replaces a state
    second = start(tmp_path, "-n", "1", "--lanes", "4", "--threads", "1", "script.py", "3").finish()
    assert second.code == 0, second.err
    assert [line for line in second.out.splitlines() if "epoch" in line] == ["epoch 2"]
    assert "samebits: the run resumes with lanes 4, not 2: the bits may differ from here." in second.err
    assert ".state.previous, which is complete" in second.err
    assert "1 epoch, 2 steps" in second.err
    assert "after 2 epochs of earlier starts" in second.err


@promise(
    "save-and-resume",
    "`samebits verify` neither reads the states of a script nor writes its states; the command line beats "
    "what the script says about states, option by option",
    also=[
        "test_the_command_line_beats_the_script_option_by_option",
        "test_the_variable_for_all_run_folders_counts_for_the_script_too",
    ],
)
@pytest.mark.thorough
def test_verify_neither_reads_nor_writes_the_states_and_weights_of_the_user(tmp_path):
    write_script(tmp_path, SCRIPT)
    (tmp_path / "best.safetensors").write_text("of the long run")
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "script.py",
        "--ranks",
        "1,2",
        "--lanes",
        "2",
        "--steps",
        "5",
        "3",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "state").exists()
    assert (tmp_path / "best.safetensors").read_text() == "of the long run"
