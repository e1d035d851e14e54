"""A node whose link is cut is named on all nodes that can still talk, and on itself; when the link is back, the run goes on.

Where one direction stays cut nobody is said to be back, and where packets get lost the network is named and not the script.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.support.hosts import Host, network, why_not
from tests.support.launching import Running, until, write_script
from tests.support.promises import promise
from tests.support.several_nodes import write_key

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.thorough,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

WAIT = """
    import sys, time
    from pathlib import Path
    import torch.distributed as dist

    dist.init_process_group("gloo")
    while not (Path(sys.argv[1]) / "go on").exists():
        time.sleep(0.2)
    dist.barrier()
    dist.destroy_process_group()
"""


TRAIN = """
    import time
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=0, lanes=2, threads=1)
    model = nn.Linear(64, 256)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randn(64, 64), torch.randint(0, 3, (64,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8))
    for epoch in run.epochs(100_000):
        for step in run.steps(loader):
            for inputs, labels in step:
                run.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.05)
            if step.number == 20:
                print("at step 20", flush=True)
"""


def launched(hosts: list[Host], tmp_path: Path, text: str, *words: str) -> list[Running]:
    """One rank on each host."""
    script, key = str(tmp_path / write_script(tmp_path, text)), str(write_key(tmp_path))
    started = []
    for number, host in enumerate(hosts):
        place = tmp_path / host.name
        place.mkdir()
        where = (
            "--nnodes",
            str(len(hosts)),
            "--node-rank",
            str(number),
            "--rdzv-endpoint",
            f"{hosts[0].address}:29511",
        )
        started.append(host.launch(place, *where, "--key-file", key, "-v", "-n", "1", script, *words))
    return started


@promise(
    "never-stuck-nothing-left-behind",
    "Where packets between two nodes get lost, the path is named first, and not the script; a one-way cut is not called mended",
    also=["test_a_node_that_hears_but_is_not_heard_says_nobody_is_back_and_what_to_do_when_given_up"],
)
def test_where_packets_get_lost_the_path_is_named_first_and_the_script_is_not(tmp_path: Path) -> None:
    with network(2, relayed=True) as hosts:
        started = launched(hosts, tmp_path, TRAIN)
        started[0].wait_for("at step 20")
        hosts[1].link.disturb(loss=0.3)
        said = r"\d+% of the packets between node 0 \(host host0\) and node 1 \(host host1\) are lost"
        for run in started:
            until(lambda run=run: re.search(said, run.err) is not None, said)
            before = run.err[: run.err.index(" of the packets between")]
            assert "sent nothing" not in before, before
        ends = time.monotonic() + 30  # so long there were stalls and nodes that came back, every few seconds
        until(lambda: time.monotonic() > ends or any(run.process.poll() is not None for run in started), "30 s")
        for run in started:
            assert not re.search("stalled|reach each other again|is back|stands still", run.err, re.IGNORECASE), run.err


def test_a_node_that_hears_but_is_not_heard_says_nobody_is_back_and_what_to_do_when_given_up(tmp_path: Path) -> None:
    with network(2) as hosts:
        first, second = launched(hosts, tmp_path, TRAIN)
        first.wait_for("at step 20")
        hosts[0].lose(hosts[1])
        until(lambda: "has sent nothing" in second.err and "has sent nothing" in first.err, "that both are silent")
        hosts[1].lose_only(hosts[0])
        assert second.process.wait(60) == 1
        told = " ".join(second.err.split())
        assert "is back" not in told, told
        assert "reach each other again" not in told + first.err, told
        assert "the same command joins it again from here" in told, told
        assert "Node 0 has saved no state: without it the same commands begin anew." in told, told
        until(lambda: first.err.count("is not back") == 1, "that it is waited for")
        ends = time.monotonic() + 12
        until(lambda: time.monotonic() > ends, "12 s")
        assert first.err.count("is not back") == 1, first.err
        first.clean_up()


def test_a_node_whose_link_is_cut_is_named_on_all_and_heard_of_again(tmp_path: Path) -> None:
    with network(3) as hosts:
        started = launched(hosts, tmp_path, WAIT, str(tmp_path))
        until(lambda: all("plain torch.distributed" in run.err for run in started), "the meeting")
        hosts[2].link.cut()
        for run, silent in zip(started, (2, 2, 0), strict=True):
            said = rf"node {silent} \(host host{silent}\) has sent nothing for 5 s: its link is cut"
            until(lambda run=run, said=said: re.search(said, run.err) is not None, said)
        hosts[2].link.restore()
        for run, silent in zip(started, (2, 2, 0), strict=True):
            said = rf"node {silent} \(host host{silent}\) is back"
            until(lambda run=run, said=said: re.search(said, run.err) is not None, said)
        (tmp_path / "go on").touch()
        for run in started:
            done = run.finish()
            assert done.code == 0, done.err
        assert "node 2 (host host2) has sent nothing" not in started[2].err
