"""A rank that holds others up is named on every node, with its node; one that is merely slow is left alone."""

import os
import re
import signal

import pytest
from click.testing import CliRunner

from samebits.cli.diagnose import diagnose
from samebits.cli.watch import watch
from samebits.protocol.run_folder import RunFolder, read_lines
from tests.support.launching import said, until, write_script
from tests.support.promises import promise
from tests.support.several_nodes import nodes

pytestmark = pytest.mark.ranks

TRAIN = """
import os, sys, time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import samebits

how, who, place = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
run = samebits.init(seed=1, lanes=4, threads=1)


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
for epoch in run.epochs(20 if how == "straggle" else 2):
    for step in run.steps(loader):
        for x, y in step:
            if how == "straggle" and run.rank == who:
                time.sleep(0.02)
            run.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if run.rank == who and step.number == 5:
            (place / "held").touch()
            if how == "sleep":
                while not (place / "go on").exists():
                    time.sleep(0.2)
            if how == "stop":
                os.kill(os.getpid(), 19)
            if how == "work":
                work(9)
print("came to its end:", run.rank)
"""


def all_said(started, label):
    """Whether each of the launchers has a line with this label."""
    assert all(run.process.poll() is None for run in started), [run.err for run in started]
    return all(said(run, label) for run in started)


def ended_well(started):
    for run in started:
        done = run.finish()
        assert done.code == 0, done.err


@promise(
    "never-stuck-nothing-left-behind",
    "With several nodes a rank that others wait for is named on all of them, with its node; a launcher "
    "that is stopped too; ranks that exchange over a slow link are in no circle",
    also=[
        "test_a_rank_that_is_merely_slow_is_never_called_stalled",
        "test_a_straggler_on_another_node_is_named_on_both",
        "test_a_launcher_that_is_stopped_is_named_on_the_other_nodes",
        "test_ranks_that_wait_for_anybody_while_bytes_come_are_in_a_long_exchange_and_in_no_circle",
    ],
)
@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        ("sleep", 1),
        pytest.param("sleep", 2, marks=pytest.mark.thorough),
        pytest.param("stop", 1, marks=pytest.mark.thorough),
        pytest.param("stop", 2, marks=pytest.mark.thorough),
    ],
)
def test_a_rank_for_which_others_wait_is_named_on_both_nodes_with_its_node(tmp_path, how, ranks):
    script, who = str(tmp_path / write_script(tmp_path, TRAIN)), ranks
    with nodes(tmp_path, 2, "-v", "-n", str(ranks), script, how, str(who), str(tmp_path)) as started:
        until((tmp_path / "held").exists, "the wait")
        until(lambda: all_said(started, "STALLED") and all_said(started, "  help"), "the sentences on both nodes")
        first, second = ({text.partition(": ")[2] for text in said(run, "STALLED")[:1]} for run in started)
        assert first == second
        (sentence,) = first
        assert f"rank {who} has not reached the exchange of gradients" in sentence
        assert re.search(rf"rank {who} on node 1 \(host .+\) is .*script\.py:\d+", sentence), sentence
        with_pid = f"kill -CONT {started[1].pid_of(who)}"
        assert [with_pid in text for run in started for text in said(run, "  help")] == [how == "stop"] * 2
        place = str(next((tmp_path / "node1" / "samebits-runs").iterdir()))
        assert f"{'rank' if ranks == 1 else 'ranks'} " in CliRunner().invoke(watch, [place]).output
        told = CliRunner().invoke(diagnose, [place]).output
        assert f" of {2 * ranks}, on node 1 (host " in told
        assert f"rank {who} has not reached" in told
        (tmp_path / "go on").touch()
        if how == "stop":
            os.kill(started[1].pid_of(who), signal.SIGCONT)
        until(lambda: all(said(run, "went on") or said(run, "done") for run in started), "that it went on")
        ended_well(started)
    for number, run in enumerate(started):
        folder = RunFolder(next((tmp_path / f"node{number}" / "samebits-runs").iterdir()))
        assert "stalled-in-script" in run.err if how == "sleep" else "stopped-process" in run.err
        (roster,) = read_lines(folder.nodes)
        assert (roster["here"], [one["ranks"] for one in roster["nodes"]]) == (number, [ranks, ranks])
    assert said(started[0], "lanes")
    assert not said(started[1], "lanes")
    assert "says the rest" in said(started[1], "done")[0]


@pytest.mark.thorough
def test_a_rank_that_is_merely_slow_is_never_called_stalled(tmp_path):
    script = str(tmp_path / write_script(tmp_path, TRAIN))
    with nodes(tmp_path, 2, "-n", "1", "--on-stall", "replace", script, "work", "1", str(tmp_path)) as started:
        ended_well(started)
    for run in started:
        assert "rank 1 on node 1" in said(run, "slow")[0]
        assert not said(run, "STALLED")


@pytest.mark.thorough
def test_a_straggler_on_another_node_is_named_on_both(tmp_path):
    script = str(tmp_path / write_script(tmp_path, TRAIN))
    with nodes(tmp_path, 2, "-n", "1", script, "straggle", "1", str(tmp_path)) as started:
        ended_well(started)
    for run in started:
        (text,) = said(run, "slow")
        assert re.match(r"rank 1 on node 1 \(host .+\) takes \d+ ms a step in compute", text), text
    assert "rank 1 on node 1" in said(started[0], "slowest")[0]
    assert not said(started[1], "slowest")


@pytest.mark.thorough
def test_a_launcher_that_is_stopped_is_named_on_the_other_nodes(tmp_path):
    script = str(tmp_path / write_script(tmp_path, TRAIN))
    with nodes(tmp_path, 2, "-n", "1", script, "sleep", "1", str(tmp_path)) as started:
        until((tmp_path / "held").exists, "the wait")
        started[1].process.send_signal(signal.SIGSTOP)
        until(lambda: "stands still" in started[0].err, "the sentence")
        assert f"kill -CONT {started[1].process.pid}" in started[0].err
        started[1].process.send_signal(signal.SIGCONT)
        until(lambda: "has resumed" in started[0].err, "that it has resumed")
        (tmp_path / "go on").touch()
        ended_well(started)
