"""`hogwild`: one copy of the model for all ranks, no locks, and no waiting inside an epoch."""

import io
import math
import os
import re
import resource
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import samebits
from samebits.errors import UsageError
from samebits.protocol.layout.mesh import Form, choose_mesh
from samebits.testing.digests import digest_of
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import scenarios
from tests.support.launching import Finished, start
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

EXAMPLES = Path(__file__).parents[4] / "examples"
HOGWILD = Form("hogwild")
MARGIN = 0.02
"""How far below the accuracy of `single` hogwild may end on the digits; see docs/design/strategies.md#hogwild."""


class Numbered(Dataset):
    """Pictures that bring their number along."""

    def __init__(self, length):
        self._pictures = scenarios.digits(length)

    def __len__(self):
        return len(self._pictures)

    def __getitem__(self, index):
        return (*self._pictures[index], index)


def prepared(model, length, batch_size, *, fused=False):
    run = samebits.init(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    loader = DataLoader(Numbered(length), batch_size=batch_size, shuffle=True)
    return (run, *run.prepare(model, optimizer, loader))


def one_memory():
    model = scenarios.Cnn()
    keys, parameters = list(model.state_dict()), list(model.parameters())
    run, model, optimizer, loader = prepared(model, 90, 32)
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    maps = Path("/proc/self/maps").read_text()
    places = sorted(set(re.findall(r"(\d+)\s+/memfd:samebits-\w+ \(deleted\)", maps)))
    assert places
    told, seen, losses = [], [], []
    for _ in run.epochs(3):
        for step in run.steps(loader):
            for images, labels, numbers in step:
                run.backward(F.cross_entropy(model(images), labels))
                seen.extend(numbers.tolist())
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(step.loss))
            run.log(loss=step.loss)
        told.append(digest_of(model))  # nobody trains between epochs, so everybody reads the same values
    run.barrier()
    with torch.no_grad():
        if run.is_main:
            parameters[0].fill_(1.0)
            next(model.buffers()).fill_(2.0)
        run.barrier()
    assert parameters[0].detach().min() == 1.0
    assert next(model.buffers()).max() == 2.0
    saved = io.BytesIO()
    torch.save(parameters[-1], saved)
    assert saved.tell() < 10_000  # of its own storage, and not of all the shared memory
    updates = int(next(iter(optimizer.state.values()))["step"])
    return told, places, seen, losses, updates


@promise(
    "strategies-that-promise-no-equal-bits",
    "`hogwild`: all ranks train one copy of the model, each sample once per epoch; no rank waits inside "
    "an epoch; the digits are learned as by `single`; on one rank it has its bits",
    also=[
        "test_no_rank_waits_for_another_inside_an_epoch",
        "test_digits_reach_the_accuracy_of_single_within_the_margin",
        "test_on_one_rank_hogwild_has_the_bits_of_single",
    ],
)
def test_all_ranks_train_one_copy_of_the_model_on_samples_of_their_own():
    first, second = run_ranks(one_memory, Started(2, form=HOGWILD))
    assert first[:2] == second[:2]
    assert len(set(first[0])) == 3
    for epoch in range(3):
        share = [rank[2][len(rank[2]) // 3 * epoch :][: len(rank[2]) // 3] for rank in (first, second)]
        assert sorted(share[0] + share[1]) == list(range(90))
    # 90 samples in steps of 32 are 32 + 32 + 26 = (16 + 16) + (16 + 16) + (16 + 10): one update per rank and step
    assert (first[4], second[4]) == (9, 9)
    assert first[3] != second[3]


def one_after_the_other(fifo):
    run, model, optimizer, loader = prepared(scenarios.Cnn(), 96, 16, fused=True)
    for step in run.steps(loader):
        if run.rank == 1 and step.number == 1:
            Path(fifo).read_text()  # until rank 0 has finished its last update
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
        if run.rank == 0 and step.number == 6:
            Path(fifo).write_text("done")
    return digest_of(model)


def test_no_rank_waits_for_another_inside_an_epoch(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    first, second = run_ranks(one_after_the_other, Started(2, form=HOGWILD, timeout_s=30), str(fifo))
    assert first == second


class Counting(nn.Module):
    """A model with a buffer that it writes in place, one that it replaces, BatchNorm, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
        self.frozen = nn.Linear(10, 10).requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("largest", torch.zeros(10))

    def forward(self, images):
        self.calls += 1
        out = self.frozen(self.layers(images))
        self.largest = torch.maximum(self.largest, out.detach().amax(0))
        return out


def corner_cases():
    run = samebits.init(lanes=4)
    model = Counting()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(scenarios.digits(69), batch_size=32, shuffle=True, num_workers=1)
    tests = DataLoader(scenarios.digits(10), batch_size=4)
    model, optimizer, scheduler, loader, tests = run.prepare(model, optimizer, scheduler, loader, tests)
    losses, norms = [], []
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            for images, labels in step:
                run.backward(F.cross_entropy(model(images), labels))
                run.log(inside=float(images.mean()))
            norms.append(float(run.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            losses.append(float(step.loss))
            average.update_parameters(model)
            if step.number == 2:  # an evaluation inside an epoch makes ranks wait
                assert len(run.gather(torch.cat([images for images, _ in tests]))) == 10
        scheduler.step()
        model.layers.eval() if epoch == 0 else model.layers.train()
        model.load_state_dict(model.state_dict())
        model.frozen.requires_grad_(epoch == 0)
    assert all(math.isfinite(number) for number in losses + norms)
    assert float(model.calls) > 0
    assert float(model.largest.abs().max()) > 0
    assert run.broadcast(model.largest.clone()).equal(model.largest)
    return len(losses), losses[2] == losses[1], digest_of(model)


def test_several_lanes_short_steps_buffers_averages_and_frozen_layers_work():
    # 69 samples in steps of 32 over 4 lanes: the last step has 5 samples, all of them rank 0's
    first, second = run_ranks(corner_cases, Started(2, form=HOGWILD))
    assert (first[0], second[0]) == (6, 6)
    assert (first[1], second[1]) == (False, True)  # without samples a rank keeps its last loss
    assert first[2] == second[2]


def saved_and_resumed(place, resume):
    run, model, optimizer, loader = prepared(scenarios.Cnn(), 64, 16)
    if resume:
        run.load_state(place)
        run.barrier()
        return digest_of(model), digest_of(optimizer)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    run.save_state(place)
    return digest_of(model), digest_of(optimizer)


@promise(
    "strategies-that-promise-no-equal-bits",
    "`run.save_state` under `hogwild` writes the shared model and rank 0's optimizer; memory that the "
    "system refuses is one sentence",
    also=["test_memory_that_the_system_refuses_is_one_sentence"],
)
def test_a_saved_state_has_the_shared_model_and_the_optimizer_of_rank_0(tmp_path):
    first, second = run_ranks(saved_and_resumed, Started(2, form=HOGWILD), str(tmp_path / "state"), False)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert run_ranks(saved_and_resumed, Started(2, form=HOGWILD), str(tmp_path / "state"), True) == [first, first]


def first_norm(precision):
    run = samebits.init(precision=precision)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    seen = []
    model[1].register_forward_hook(lambda *given: seen.append(str(given[2].dtype)))
    model, loader = run.prepare(model, DataLoader(scenarios.digits(16), batch_size=16))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]).float(), batch[1]))
    return float(run.clip_grad_norm_(model.parameters(), 1e9)), set(seen)


@pytest.mark.thorough
def test_precision_reaches_every_rank_and_every_replica():
    dp = Form("dp", "dp=2")
    for started in (Started(2, form=HOGWILD), Started(1, form=dp)):
        full, half = run_ranks(first_norm, started, "32"), run_ranks(first_norm, started, "16-mixed")
        for (expected, dtypes), (norm, half_dtypes) in zip(full, half, strict=True):
            assert norm == pytest.approx(expected, rel=0.02)
            assert (dtypes, half_dtypes) == ({"torch.float32"}, {"torch.float16"})


def trained():
    run, model, optimizer, loader = prepared(scenarios.Cnn(), 64, 16)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model)


def test_on_one_rank_hogwild_has_the_bits_of_single():
    alone = run_ranks(trained, Started(1, lanes=2))
    assert run_ranks(trained, Started(1, lanes=2, form=HOGWILD)) == alone


def accuracy(finished: Finished) -> float:
    assert finished.code == 0, finished.err
    return float(re.findall(r"test accuracy ([\d.]+)%", finished.out)[-1]) / 100


@pytest.mark.thorough
def test_digits_reach_the_accuracy_of_single_within_the_margin(tmp_path):
    reached = {}
    for name, options in {"single": ("-n", "1"), "hogwild": ("-n", "2", "--strategy", "hogwild")}.items():
        place = tmp_path / name
        place.mkdir()
        finished = start(place, *options, str(EXAMPLES / "digits.py"), "--epochs", "5").finish()
        reached[name] = accuracy(finished)
        assert ("another run may give others" in finished.err) == (name == "hogwild")
        assert "every sample once per epoch" in finished.err
    assert reached["hogwild"] >= reached["single"] - MARGIN


def synchronised():
    prepared(nn.Sequential(nn.Conv2d(1, 2, 1), nn.SyncBatchNorm(2)), 16, 8)


def replaced():
    run, model, _, loader = prepared(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 16, 8)
    model[1].weight.data = torch.zeros(10, 64)
    for step in run.steps(loader):
        step.backward(lambda batch: model(batch[0]).sum())


def resized():
    run, model, _, loader = prepared(Counting(), 16, 8)
    model.register_buffer("more", torch.zeros(3))
    for step in run.steps(loader):
        step.backward(lambda batch: model(batch[0]).sum())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (synchronised, "SyncBatchNorm .* Use BatchNorm"),
        (replaced, "load values with load_state_dict, or use --strategy ddp"),
        (resized, "Give them their full size before run.prepare"),
    ],
)
def test_what_cannot_be_shared_is_one_sentence(mistake, message):
    with pytest.raises(RankFailed, match=message) as caught:
        run_ranks(mistake, Started(2, form=HOGWILD, timeout_s=30))
    assert caught.value.error_type == "UsageError"


def without_memory():
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    prepared(scenarios.Cnn(), 16, 8)


def test_memory_that_the_system_refuses_is_one_sentence():
    with pytest.raises(RankFailed, match=r"The ranks need [\d,]+ bytes of shared memory, but the system refu"):
        run_ranks(without_memory, Started(2, form=HOGWILD, timeout_s=30))


def unreachable():
    if os.environ["RANK"] == "0":
        os.getpid = lambda: 1  # what rank 0 tells the others: a process with other files, as on another node
    prepared(scenarios.Cnn(), 16, 8)


def test_memory_that_ranks_cannot_reach_is_one_sentence():
    with pytest.raises(RankFailed, match=r"rank 1 cannot reach the memory of rank 0 .* must run on one node") as caught:
        run_ranks(unreachable, Started(2, form=HOGWILD, timeout_s=30))
    assert caught.value.error_type == "EnvironmentFailure"


def test_ranks_on_gpus_and_too_few_lanes_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(UsageError, match="hogwild shares the parameters in CPU memory"):
        choose_mesh(HOGWILD, 2).check_device("cuda")
    choose_mesh(HOGWILD, 1).check_device("cuda")
    options = ("-n", "2", "--strategy", "hogwild", "--lanes", "1", str(EXAMPLES / "digits.py"))
    finished = start(tmp_path, *options).finish()
    assert finished.code == 2
    assert finished.err.startswith("error: `lanes` must be at least the number of ranks"), finished.err
    assert finished.folder is None
