"""A rank for which others wait is named, with the line where it is, without its help; and ended if so asked."""

import re
import signal
from os import kill

import pytest

from tests.support.launching import run_script, said, start, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

TRAIN = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import samebits

how = sys.argv[1]
run = samebits.init(seed=1, lanes=2)


def spin():
    while True:
        pass


def work(seconds):
    end, total = time.monotonic() + seconds, torch.zeros(())
    while time.monotonic() < end:
        total += torch.ones(64).sum()
        total += torch.ones(64).mul(2).sum()
        total = total.clamp(max=1)
    return total


data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(data, 8))
first = not Path("once").exists()
for epoch in run.epochs(8 if how == "straggle" else 2):
    for step in run.steps(loader):
        for x, y in step:
            if how == "straggle" and run.rank == 1:
                time.sleep(0.05)
            loss = torch.nn.functional.mse_loss(model(x), y)
            run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if run.rank == 1 and step.number == 5 and first:
            Path("once").touch()
            if how == "spin":
                spin()
            if how == "sleep":
                time.sleep(600)
            if how == "work":
                work(9)
            if how == "pool":
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(work, 9).result()
            if how == "stop":
                os.kill(os.getpid(), 19)
while how == "stop" and not Path("seen").exists():  # the few steps that are left end before a launcher looks
    time.sleep(0.05)
if run.is_main:
    print("weights", model.weight.flatten().tolist())
"""


@promise(
    "never-stuck-nothing-left-behind",
    "A rank that others wait for is named within seconds, with its line, when it is stopped, sleeps or "
    "loops, in plain scripts too",
    also=[
        "test_a_rank_that_sleeps_or_loops_longer_than_it_may_is_replaced_with_the_same_bits",
        "test_in_a_plain_script_the_missing_rank_is_named",
    ],
)
def test_a_stopped_rank_is_named_and_goes_on_when_it_may(tmp_path):
    run = start(tmp_path, "-v", "-n", "2", write_script(tmp_path, TRAIN), "stop")
    until((tmp_path / "once").exists, "the stop")
    taken = until(lambda: bool(said(run, "STALLED")), "the sentence")
    assert taken < 9, taken
    kill(run.pid_of(1), signal.SIGCONT)
    until(lambda: bool(said(run, "went on")), "the line that it resumed")
    (tmp_path / "seen").touch()
    done = run.finish()
    assert done.code == 0, done.err
    (sentence,) = said(run, "STALLED")
    assert re.match(
        r"\d+ s: rank 1 has not reached the exchange of gradients of step 6 \(script.py:35\); rank 0 waits for it; ",
        sentence,
    )
    assert "stopped by a signal (SIGCONT resumes it)" in sentence
    assert "script.py:54" in sentence
    assert said(run, "went on") == [f"rank 1, after more than {sentence.partition(' ')[0]} s"]


@promise(
    "never-stuck-nothing-left-behind",
    "`--on-stall replace` goes on with the same bits; a rank that works is called slow and left alone, "
    "unless `--stall-after` says otherwise",
    also=["test_a_rank_that_works_while_others_wait_is_slow", "test_a_limit_of_the_person_ends_the_run"],
)
@pytest.mark.parametrize(
    ("how", "line", "options"),
    [
        ("sleep", "script.py:47", ()),
        pytest.param("spin", "script.py:1[67] in spin", ("--stall-after", "5"), marks=pytest.mark.thorough),
    ],
)
def test_a_rank_that_sleeps_or_loops_longer_than_it_may_is_replaced_with_the_same_bits(tmp_path, how, line, options):
    done = run_script(tmp_path, TRAIN, "-n", "2", "--on-stall", "replace", *options, args=(how,))
    assert done.code == 0, done.err
    (tmp_path / "again").mkdir()
    assert done.out == run_script(tmp_path / "again", TRAIN, "-n", "1", args=("not at all",)).out
    (sentence,) = said(done, "STALLED")
    assert re.search(rf"rank 1 is at {line} ", sentence), sentence
    assert "all ranks start again" in done.err


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["work", "pool"])
def test_a_rank_that_works_while_others_wait_is_slow(tmp_path, how):
    done = run_script(tmp_path, TRAIN, "-n", "2", "--on-stall", "replace", args=(how,))
    assert done.code == 0, done.err
    assert said(done, "STALLED") == said(done, "replace") == []
    assert re.search(r"rank 1 is at script.py:\d+ .* and uses [01]\.\d cores", said(done, "slow")[0])


@pytest.mark.thorough
def test_a_limit_of_the_person_ends_the_run(tmp_path):
    done = run_script(tmp_path, TRAIN, "-n", "2", "--on-stall", "stop", "--stall-after", "1.5", args=("work",))
    assert done.code == 1, done.err
    assert re.search(r"^FAILED +rank 1 stalled|^FAILED +stalled", done.err, re.MULTILINE), done.err


@promise(
    "never-stuck-nothing-left-behind",
    "A rank that takes longer in each step is named with the part; speed and parts are told at the end",
    also=["test_a_rank_that_keeps_the_others_waiting_is_named_with_its_part"],
)
@pytest.mark.thorough
def test_a_rank_that_takes_longer_in_each_step_is_named_with_the_part(tmp_path):
    done = run_script(tmp_path, TRAIN, "-n", "2", args=("straggle",))
    assert done.code == 0, done.err
    (sentence,) = said(done, "slow")
    assert re.match(r"rank 1 takes \d+ ms a step in compute, the others \d+ ms, and wait for it", sentence)
    assert said(done, "slowest") == [] or said(done, "slowest")[0].startswith("rank 1 takes")
    assert re.search(
        r"^time +data \d+% · compute \d+% · exchange \d+% · optimizer \d+% · other \d+%$", done.err, re.MULTILINE
    )


PLAIN = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
rank = dist.get_rank()
pair = dist.new_group([0, 1])
for step in range(3):
    dist.all_reduce(torch.ones(4))
if sys.argv[2] == "sleep":
    if rank == 2:
        time.sleep(600)
    dist.all_reduce(torch.ones(4))
if sys.argv[2] == "crossed":
    if rank == 0:
        dist.all_reduce(torch.ones(4), group=pair)
        dist.all_reduce(torch.ones(4))
    elif rank == 1:
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4), group=pair)
    else:
        dist.all_reduce(torch.ones(4))
"""


@pytest.mark.parametrize(
    ("backend", "operation"), [("samebits", r"all_reduce\(sum\) of 4 float32"), ("gloo", "all_reduce")]
)
def test_in_a_plain_script_the_missing_rank_is_named(tmp_path, backend, operation):
    """Over Gloo only the stacks tell."""
    done = run_script(tmp_path, PLAIN, "-n", "3", "--on-stall", "stop", args=(backend, "sleep"))
    assert done.code == 1, done.err
    (sentence,) = [one.removeprefix("stalled ") for one in said(done, "FAILED")]
    assert re.match(
        rf"\d+ s: rank 2 has not reached {operation} \(script.py:11\); ranks 0, 1 wait for it; "
        r"rank 2 is at script.py:10 and uses no processor time",
        sentence,
    ), sentence


@pytest.mark.thorough
def test_groups_that_are_used_in_crossed_order_are_told_as_a_circle(tmp_path):
    done = run_script(tmp_path, PLAIN, "-n", "3", "--on-stall", "stop", args=("samebits", "crossed"))
    assert done.code == 1, done.err
    (sentence,) = [one.removeprefix("stalled ") for one in said(done, "FAILED")]
    assert re.search(
        r"ranks wait for each other; rank 0 waits for rank 1 in all_reduce.*script.py:14\); rank 1 waits for rank 0 in "
        r"all_reduce.*script.py:17\); rank 2 waits for them",
        sentence,
    ), sentence


SLOW_SAMPLE = """
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import samebits

run = samebits.init(seed=1, lanes=2)


class Pictures(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 33 and not Path("once").exists():
            Path("once").touch()
            time.sleep(600)
        return torch.full((4,), float(index)), torch.zeros(1)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Pictures(), 8, num_workers=1))
for epoch in run.epochs(1):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
if run.is_main:
    print("weights", model.weight.flatten().tolist())
"""


@pytest.mark.thorough
def test_a_loader_worker_that_sleeps_is_named_with_its_line_and_its_rank_replaced(tmp_path):
    done = run_script(tmp_path, SLOW_SAMPLE, "-n", "2", "--on-stall", "replace")
    assert done.code == 0, done.err
    (sentence,) = said(done, "STALLED")
    assert re.search(
        r"rank \d is at script.py:20 in Pictures.__getitem__, in loader worker \d+ \(waiting for samples", sentence
    )
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "once").touch()
    assert done.out == run_script(tmp_path / "again", SLOW_SAMPLE, "-n", "1").out
