"""Evaluation loops as written for one process: right on one rank, with a notice where a number is one rank's share."""

import contextlib
import io
import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

import samebits
from samebits.rank.process_group.group import num_exchanges, register
from samebits.testing.ranks import Started, run_ranks
from tests.scripts.scenarios import digits, mlp

pytestmark = pytest.mark.ranks


def begin(lanes=4):
    run = samebits.init(seed=1, lanes=lanes)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return run, *run.prepare(model, optimizer, DataLoader(digits(), 32, shuffle=True), DataLoader(digits(130), 32))


def train(run, model, optimizer, loader):
    for step in run.steps(loader):
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()


def plain_loop(lanes):
    """The loss as every tutorial computes it."""
    run, model, _, _, test = begin(lanes)
    device = run.device
    total, count, sizes = 0.0, 0, []
    with torch.no_grad():
        for images, labels in test:
            total += F.cross_entropy(model(images), labels).item()
            count += 1
            sizes.append(len(labels))
        plain = DataLoader(digits(130), 32)
        whole = [F.cross_entropy(model(x.to(device)), y.to(device)).item() for x, y in plain]
    return total / len(test), count == len(test), sizes, sum(whole) / len(whole)


@pytest.mark.parametrize("lanes", [1, 4])
def test_on_one_rank_a_plain_evaluation_loop_sees_what_it_sees_without_samebits(lanes):
    [(loss, is_whole, sizes, expected)] = run_ranks(plain_loop, Started(1), lanes)
    assert loss == expected
    assert is_whole
    assert sizes == [32, 32, 32, 32, 2]


def heard(function, *args):
    """What this rank printed to standard error until the end of its run."""
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        function(*args)
        samebits.finish()
    return printed.getvalue().splitlines()


def lines_with(words, function, ranks, *args):
    """The lines with `words` that any rank printed."""
    return [line for lines in run_ranks(heard, Started(ranks), function, *args) for line in lines if words in line]


def forgets(how):
    run, model, optimizer, loader, test = begin()
    for _ in range(3):
        train(run, model, optimizer, loader)
        right = 0
        tally = run.tally()
        for images, labels in test:
            right += int((model(images).argmax(1) == labels).sum())
            if how == "tally":
                tally.add(accuracy=(model(images).argmax(1) == labels).float().mean())
            if how == "looks at one":
                break
        if how in ("tally", "tally elsewhere"):
            tally.mean()
        if how == "sum":
            right = run.sum(right)
        if how == "all_reduce":
            dist.all_reduce(torch.tensor(right))
        if how == "gather":
            run.gather(torch.zeros(len(test.evaluated)))
    return right


@pytest.mark.parametrize("how", ["nothing", "tally elsewhere"])
def test_numbers_of_one_ranks_share_are_said_once_at_their_line(how):
    said = lines_with("this loop saw", forgets, 2, how)
    assert len(said) == 1
    assert "test_evaluation.py:" in said[0]
    assert "saw 66 of 130 samples on rank 0" in said[0]


@pytest.mark.parametrize("how", ["tally", "sum", "all_reduce", "gather", "looks at one"])
def test_what_was_put_together_is_not_said(how):
    assert lines_with("this loop saw", forgets, 2, how) == []


def test_on_one_rank_there_is_nothing_to_say():
    assert lines_with("this loop saw", forgets, 1, "nothing") == []


def writes(folder):
    run, model, optimizer, loader, test = begin()
    for _ in range(2):
        train(run, model, optimizer, loader)
        torch.save(model.state_dict(), f"{folder}/best.pt")
        with (folder / "log.txt").open("a") as file:
            file.write("x")
        (folder / f"rank{run.rank}.txt").write_text("own")
        if run.is_main:
            (folder / "main.txt").write_text("one rank")
        with tempfile.TemporaryFile("w") as nameless, tempfile.NamedTemporaryFile("w") as own:
            print("x", file=nameless)
            print("x", file=own)
        with open("log2.txt", "w", opener=lambda name, flags: os.open(folder / name, flags, 0o600)) as file:
            file.write("x")
    assert len(list(test)) in (2, 3)
    run.sum(1)


def own_group(backend):
    dist.init_process_group(backend, store=FakeStore() if backend == "fake" else dist.HashStore(), rank=0, world_size=1)
    register()
    dist.all_reduce(torch.ones(1))
    return num_exchanges()


def test_a_group_that_does_not_count_its_exchanges_stops_nobody():
    assert run_ranks(own_group, Started(1), "gloo") == [1]
    assert run_ranks(own_group, Started(1), "cpu:gloo") == [1]
    assert run_ranks(own_group, Started(1), "fake") == [None]


def test_a_path_that_several_ranks_write_is_said_once_with_its_line(tmp_path):
    said = lines_with("each wrote", writes, 2, tmp_path)
    assert len(said) == 3
    assert f"{tmp_path}/log2.txt" in said[2], "an opener= says where the file is"
    assert f"ranks 0, 1 each wrote {tmp_path}/best.pt (test_evaluation.py:" in said[0]
    assert "log.txt" in said[1]
