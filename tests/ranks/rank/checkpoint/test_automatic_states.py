"""A run that stops after any step goes on from its own state with the bits of a run that never stopped."""

import itertools
import os
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
EPOCHS, STEPS = 3, 5


def train(place, stop_after=None, workers=0, strategy=None, accumulate=1, zero_first=False, ranges=False):
    """Three epochs of five steps; an evaluation and a draw after each."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=8, threads=1, strategy=strategy, name="exp1", save_every="1steps", keep=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.2), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * STEPS + 1)
    loader = DataLoader(scenarios.digits(150), batch_size=32, shuffle=True, num_workers=workers)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    losses = {}
    whole_run, means = run.tally(), {}
    for epoch in range(EPOCHS) if ranges else run.epochs(EPOCHS):
        tally = run.tally()
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                return "stopped"
            if zero_first and step.number % accumulate == 1 % accumulate:
                optimizer.zero_grad()
            for images, labels in step:
                run.backward(loss := F.cross_entropy(model(images), labels))
                tally.add(loss=loss)
                whole_run.add(loss=loss, right=loss)
            if step.number % accumulate == 0:
                optimizer.step()
                if not zero_first:
                    optimizer.zero_grad()
            scheduler.step()
            losses[step.number] = step.loss.hex()
        means[epoch] = tally.mean()
    drawn = [torch.rand(2).tolist(), np.random.randn(), random.gauss(0, 1)]
    drawn.append(whole_run.sum())
    return {"means": means, "bits": digest_of(model, optimizer, scheduler), "drawn": drawn, "losses": losses}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run_ranks(train, Started(1), str(tmp_path_factory.mktemp("straight")))[0]


def same(results, undisturbed, after):
    for result in results:
        assert result["bits"] == undisturbed["bits"]
        assert result["drawn"] == undisturbed["drawn"]
        assert result["means"].items() <= undisturbed["means"].items()
        assert min(result["losses"], default=after + 1) == after + 1, "no step is made twice"
        assert result["losses"].items() <= undisturbed["losses"].items()


def states(place):
    return sorted(path.name for path in (place / "samebits-runs" / "exp1" / "states").iterdir())


RESUMED = [
    (15, 2),
    *(pytest.param(*one, marks=pytest.mark.thorough) for one in [(4, 1), (1, 2), (9, 4), (5, 3), (7, 8), (14, 1)]),
]
"""After how many steps four ranks stop, and how many go on."""


@pytest.mark.parametrize(("after", "ranks"), RESUMED)
def test_a_run_goes_on_after_any_step_on_any_number_of_ranks(tmp_path, undisturbed, after, ranks):
    workers = 2 * (after % 2)
    assert run_ranks(train, Started(4), str(tmp_path), after, workers) == ["stopped" if after < 15 else undisturbed] * 4
    same(run_ranks(train, Started(ranks), str(tmp_path), None, 2 - workers), undisturbed, after)
    assert states(tmp_path) == ["step-00000014", "step-00000015"]


@pytest.mark.parametrize(
    "strategies",
    [
        *(pytest.param(each, marks=pytest.mark.thorough) for each in (("zero1", "ddp"), ("ddp", "zero1"))),
        pytest.param(("model_parallel", "ddp"), marks=pytest.mark.thorough),
    ],
)
def test_it_goes_on_under_another_strategy(tmp_path, undisturbed, strategies):
    first, then = strategies
    assert run_ranks(train, Started(2), str(tmp_path), 8, 0, first) == ["stopped"] * 2
    same(run_ranks(train, Started(2), str(tmp_path), None, 0, then), undisturbed, 8)


@pytest.mark.parametrize("zero_first", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_gradients_that_are_added_up_over_steps_are_part_of_it(tmp_path, zero_first):
    (tmp_path / "straight").mkdir()
    (tmp_path / "stopped").mkdir()
    options = (0, None, 3, zero_first)
    [straight] = run_ranks(train, Started(1), str(tmp_path / "straight"), None, *options)
    assert run_ranks(train, Started(2), str(tmp_path / "stopped"), 7, *options) == ["stopped"] * 2
    same(run_ranks(train, Started(2), str(tmp_path / "stopped"), None, *options), straight, 7)


@pytest.mark.thorough
def test_in_a_loop_over_a_range_the_first_epoch_is_saved(tmp_path, undisturbed):
    """Later ones would need the rest of the bodies before them to be left out; behind its last step there is no turn to resume in."""
    options = (0, None, 1, False, True)
    assert run_ranks(train, Started(2), str(tmp_path), 3, *options) == ["stopped"] * 2
    same(run_ranks(train, Started(3), str(tmp_path), None, *options), undisturbed, 3)
    assert states(tmp_path) == ["step-00000003", "step-00000004"]


def flip(file):
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


DAMAGES = {
    "bit": lambda state: flip(state / "model.safetensors"),
    "manifest": lambda state: flip(state / "manifest.json"),
    "empty manifest": lambda state: (state / "manifest.json").write_bytes(b""),
    "missing file": lambda state: (state / "optimizer.safetensors").unlink(),
    "missing manifest": lambda state: (state / "manifest.json").unlink(),
    "cut off": lambda state: os.truncate(state / "state.safetensors", 10),
}


@promise(
    "save-and-resume",
    "A damaged, cut, swapped or missing file (1000 flipped bits) is found and named on every rank before "
    "anything is changed; of automatic states the one before is taken",
    also=[
        "test_1000_bits_that_flip_are_all_found_and_their_files_named",
        "test_files_that_are_cut_swapped_lengthened_or_gone_are_found_and_named",
        "test_a_damaged_file_is_named_on_every_rank_and_nothing_is_changed",
    ],
)
@pytest.mark.parametrize(
    "damage",
    [one if one == "bit" else pytest.param(one, marks=pytest.mark.thorough) for one in DAMAGES],
)
def test_a_damaged_state_is_put_aside_and_the_one_before_is_taken(tmp_path, undisturbed, damage):
    run_ranks(train, Started(2), str(tmp_path), 8)
    DAMAGES[damage](tmp_path / "samebits-runs" / "exp1" / "states" / "step-00000008")
    same(run_ranks(train, Started(2), str(tmp_path)), undisturbed, 7)
    assert states(tmp_path) == ["damaged-step-00000008", "step-00000014", "step-00000015"]


def test_a_run_without_a_whole_state_does_not_begin_anew(tmp_path):
    run_ranks(train, Started(1), str(tmp_path), 8)
    for state in (tmp_path / "samebits-runs" / "exp1" / "states").iterdir():
        flip(state / "model.safetensors")
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"No state in .* is whole"):
            run_ranks(train, Started(2), str(tmp_path))


def odd(place, kind, stop_after=None):
    """Loops that are not one `run.epochs` with one `run.steps`, and bodies that draw or save."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=4, threads=1, name="exp1", save_every=EVERY.get(kind, "1steps"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loader = DataLoader(scenarios.digits(150), batch_size=32, shuffle=True)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    made = []

    def epoch(most=99):
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                raise KeyboardInterrupt
            for images, labels in step:
                run.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            made.append(step.number)
            if step.index + 1 == most:
                break

    def body():
        for number in run.epochs(2):
            if kind == "draws":
                optimizer.param_groups[0]["lr"] = 0.01 * (1 + torch.rand(1).item())
            if kind == "saves" and made == [] and number == 1:
                run.save_state("manual")
            epoch(3 if kind == "leaves" else 99)
            if kind == "twice":
                scheduler.step()
                epoch()
            scheduler.step()

    try:
        if kind == "before":
            epoch()
        if kind == "range":
            for _ in range(3):
                epoch()
                scheduler.step()
        else:
            body()
        if kind == "after":
            epoch()
    except KeyboardInterrupt:
        return "stopped"
    return digest_of(model, optimizer, scheduler), torch.rand(2).tolist(), made


EVERY = {"leaves": "epoch"}
ODD = {
    "before": [(2, 3), (7, 5)],
    "after": [(7, 8), (12, 11)],
    "range": [(3, 4), (8, 5)],
    "twice": [(3, 4), (8, 5), (12, 13)],
    "draws": [(7, 8)],
    "leaves": [(5, 4)],
    "saves": [(7, 8)],
}
"""By kind, after which step it stops, and with which it goes on."""


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "after", "then"), [(kind, *one) for kind, some in ODD.items() for one in some])
def test_loops_of_any_form_go_on_with_the_same_bits(tmp_path, kind, after, then):
    (tmp_path / "straight").mkdir()
    (tmp_path / "stopped").mkdir()
    [straight] = run_ranks(odd, Started(1), str(tmp_path / "straight"), kind)
    assert run_ranks(odd, Started(2), str(tmp_path / "stopped"), kind, after) == ["stopped"] * 2
    for digest, drawn, made in run_ranks(odd, Started(2), str(tmp_path / "stopped"), kind):
        assert (made[0], digest, drawn) == (then, straight[0], straight[1])
    if kind == "saves":
        (tmp_path / "stopped" / "samebits-runs").rename(tmp_path / "elsewhere")
        assert (tmp_path / "stopped" / "manual" / "gradients.safetensors").exists()


def misuse(place, kind):
    os.chdir(place)
    run = samebits.init(seed=3, lanes=2, name="exp1", save_every="1steps")
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator() if kind == "generator" else None
    loader = DataLoader(scenarios.digits(150), batch_size=32, shuffle=True, generator=generator)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    if kind == "loads":
        run.load_state("other", missing_ok=True)
    for _ in run.epochs(2):
        if kind == "late":
            run.prepare(DataLoader(scenarios.digits(150), batch_size=32, shuffle=True, generator=torch.Generator()))
        for step in run.steps(loader):
            step.skip_rest()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("generator", "comes from a generator of its own"),
        ("loads", "run.load_state was called in a run that resumes"),
        ("late", "order of loader 2 comes from a generator of its own"),
    ],
)
def test_what_no_state_could_hold_is_refused_at_once(tmp_path, kind, words):
    with pytest.raises(AssertionError, match=words):
        run_ranks(misuse, Started(2), str(tmp_path), kind)


def count(place, stop_after, around, every):
    """Epochs of five steps, counted from outside by `around`."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=2, name="exp1", save_every=every)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(scenarios.digits(150), batch_size=32)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    made = []
    for _ in run.epochs(2):
        for item in COUNTED[around](run.steps(loader)):
            step = item[1] if isinstance(item, tuple) else item
            if step.number > stop_after:
                return made
            step.backward(lambda batch: F.cross_entropy(model(batch[0].flatten(1)), batch[1]))
            optimizer.step()
            made.append((step.number, step.index))
    return made


COUNTED = {
    "plain": lambda steps: steps,
    "enumerate": enumerate,
    "islice": lambda steps: itertools.islice(steps, 4),
    "zip": lambda steps: zip(itertools.count(), steps),
}


@pytest.mark.parametrize(
    "around",
    [one if one in ("enumerate", "zip") else pytest.param(one, marks=pytest.mark.thorough) for one in COUNTED],
)
def test_a_run_goes_on_in_the_middle_of_an_epoch_whatever_counts_its_steps_from_outside(tmp_path, around):
    [made] = run_ranks(count, Started(1), str(tmp_path), 2, around, "1steps")
    assert made == [(1, 0), (2, 1)]
    [made] = run_ranks(count, Started(1), str(tmp_path), 99, around, "1steps")
    assert made[:3] == [(3, 2), (4, 3), (5, 4)]


@pytest.mark.thorough
def test_between_epochs_steps_may_be_counted_from_outside(tmp_path):
    [made] = run_ranks(count, Started(1), str(tmp_path), 7, "enumerate", "epoch")
    assert made[-1] == (7, 1)
    [made] = run_ranks(count, Started(1), str(tmp_path), 99, "enumerate", "epoch")
    assert made == [(6 + index, index) for index in range(5)]
