"""Evaluation loops as written for one process: right on one rank, with a notice where a number is one rank's share."""

import contextlib
import io
import itertools
import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, Sampler

import samebits
from samebits.rank.process_group.group import num_exchanges, register
from samebits.testing.ranks import Started, run_ranks
from tests.scripts.scenarios import digits, mlp
from tests.support.promises import promise

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


@promise("samples", "On one rank a plain evaluation loop sees what it sees without samebits")
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


class Broadcasts(Sampler):
    """As one whose ranks agree on an order by themselves."""

    def __len__(self):
        return 130

    def __iter__(self):
        dist.broadcast(torch.zeros(1), 0)
        return iter(range(130))


def forgets(how):
    run, model, optimizer, loader, test = begin()
    if how == "sampler exchanges":
        test = run.prepare(DataLoader(digits(130), 32, sampler=Broadcasts()))
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


@promise(
    "samples",
    "Numbers of one rank's share that were not combined, evaluations that were left early, and a path "
    "that several ranks write are reported once",
    also=[
        "test_numbers_of_a_loop_that_is_left_early_are_said_once",
        "test_a_path_that_several_ranks_write_is_said_once_with_its_line",
    ],
)
@pytest.mark.parametrize("how", ["nothing", "tally elsewhere", "sampler exchanges"])
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


K = 2
"""Of 5 batches of 32; on two ranks, rank 0 has 3 of them, and of two lanes too."""


def evaluated(how, lanes=4, stream=False):
    """The means over the first K batches, by a tally and by gathered rows; or what refused them."""
    run, model, optimizer, loader, test = begin(lanes)
    if stream:
        test = run.prepare(DataLoader(Endless(), 32))
    train(run, model, optimizer, loader)
    model.eval()
    found = []
    for _ in range(2):
        tally, rows = run.tally(), []
        batches = {"first": lambda: test.first(K), "islice": lambda: itertools.islice(test, K)}.get(how, lambda: test)()
        with torch.no_grad():
            for i, (images, labels) in enumerate(batches):
                if how == "break" and i == K:
                    break
                rows.append(F.cross_entropy(model(images), labels, reduction="none"))
                if how != "gather":
                    tally.add(loss=rows[-1].mean(), each=rows[-1], count=len(labels))
                if how == "gather" and i == K - 1:
                    break
        del batches
        try:
            if how != "gather":
                found.append(tally.mean())
            if how in ("first", "gather"):
                found.append(run.gather(torch.cat([torch.zeros(0), *rows])).tolist())
        except samebits.UsageError as error:
            found.append(str(error))
    return found


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(itertools.cycle(digits(130)))


@promise(
    "samples",
    "`loader.first(k)` gives the same first k batches on any number of ranks, of a stream too, and what"
    " a loop that is left early has seen is refused where several ranks put it together",
    also=["test_a_loop_that_is_left_early_is_refused_where_ranks_put_its_values_together"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_first_batches_are_the_same_on_any_number_of_ranks(stream):
    [alone] = run_ranks(evaluated, Started(1), "first", 4, stream)
    assert len(alone[1]) == K * 32
    assert alone[0]["loss"] == pytest.approx(sum(alone[1]) / len(alone[1]))
    assert alone[0]["each"] == pytest.approx(alone[0]["loss"])
    for ranks in (2, 3, 4):
        assert run_ranks(evaluated, Started(ranks), "first", 4, stream) == [alone] * ranks


@pytest.mark.parametrize("how", ["break", "islice"])
def test_on_one_rank_a_loop_that_is_left_early_sees_the_first_batches(how):
    [first], [left] = run_ranks(evaluated, Started(1), "first"), run_ranks(evaluated, Started(1), how)
    assert left == first[::2]


@pytest.mark.parametrize(("how", "call"), [("break", "tally.mean"), ("islice", "tally.mean"), ("gather", "run.gather")])
def test_a_loop_that_is_left_early_is_refused_where_ranks_put_its_values_together(how, call):
    for said in run_ranks(evaluated, Started(2), how, 2):
        assert len(said) == 2
        assert all(text.startswith(f"{call}: the loop over a prepared loader at test_evaluation.py:") for text in said)
        assert all("loader.first(k)" in text for text in said)


def prints_its_own(ends):
    """A mean as every tutorial computes it, over batches until `ends` of them were seen."""
    run, model, optimizer, loader, test = begin()
    for _ in range(2):
        total = 0.0
        for i, (images, labels) in enumerate(test):
            if i == ends:
                break
            total += F.cross_entropy(model(images), labels).item()
        train(run, model, optimizer, loader)
    return total


def test_numbers_of_a_loop_that_is_left_early_are_said_once():
    assert len(lines_with("was left early", prints_its_own, 2, 2)) == 1
    assert lines_with("was left early", prints_its_own, 1, 2) == []


def looks_at_one():
    run, model, optimizer, loader, test = begin()
    images, _ = next(iter(test))
    train(run, model, optimizer, loader)
    return len(images)


def test_a_look_at_one_batch_is_no_evaluation():
    assert lines_with("was left early", looks_at_one, 2) == []


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2"])
def test_the_number_of_first_batches_is_a_whole_number(wrong):
    assert run_ranks(refused_first, Started(1), wrong) == [True]


def refused_first(wrong):
    *_, test = begin()
    with pytest.raises(samebits.UsageError, match=r"loader\.first needs a whole number of batches"):
        test.first(wrong)
    return len(test.first(3)) == 3 and len(test.first(9)) == 5


def adds(**values):
    run, *_, test = begin()
    tally = run.tally()
    for _ in test.first(1):
        try:
            tally.add(**values)
        except samebits.UsageError as error:
            return str(error)
    return tally.sum()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"a": torch.ones(32, 2)},
            "A value to tally must be one number, or one for each of the batch's 32 samples, but is (32, 2)",
        ),
        ({"a": torch.ones(31)}, "but is (31,)"),
        ({"a": torch.ones(1, 32)}, "but is (1, 32)"),
        ({"a": torch.ones(32), "weight": 3}, "tally.add got weight= beside a value for each sample"),
    ],
)
def test_a_tally_takes_one_value_for_each_sample_or_one_number(values, words):
    [said] = run_ranks(_adds, Started(1), values)
    assert words in said


def _adds(values):
    return adds(**values)


def test_values_of_samples_may_be_switches_and_columns():
    assert run_ranks(_adds, Started(1), {"a": torch.ones(32, dtype=torch.bool), "b": torch.full((32, 1), 0.5)}) == [
        {"a": 32.0, "b": 16.0}
    ]
