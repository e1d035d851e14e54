"""How many files the first node's link opens for the others, as `lockstep.nodes.scale` says, and that it may open them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.nodes.scale import Shape, control
from tests.support.hosts import Host, network, why_not
from tests.support.launching import until, write_script

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.thorough,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

SCRIPT = """
    import sys, time, pathlib, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    pathlib.Path(f"met-{dist.get_rank()}").touch()
    while not pathlib.Path("stop").exists():
        time.sleep(0.05)
"""
FEW = 40
"""Fewer than the first node's link needs with two nodes; a person's shell often allows 1,024, and thousands on request."""


def sockets(process: int) -> int:
    """How many this process has."""
    found = 0
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            found += descriptor.readlink().name.startswith("socket:")
        except OSError:
            continue
    return found


def most_sockets(hosts: Sequence[Host], place: Path) -> int:
    """Those of the first node's link, once two ranks on each host have met; the limit there is low, but may be raised."""
    place.mkdir()
    script, agents = write_script(place, SCRIPT), []
    meeting = ["--nnodes", str(len(hosts)), "--rdzv-endpoint", f"{hosts[0].address}:29500", "--rdzv-id", "files"]
    for node, host in enumerate(hosts):
        command = [sys.executable, "-m", "lockstep", "run", *meeting, "--node-rank", str(node), "-n", "2", script]
        limited = ["sh", "-c", f'ulimit -S -n {FEW}; exec "$@"', "sh", *command]
        with (place / f"said-{node}.txt").open("w") as said:
            variables = {**os.environ, "LOCKSTEP_KEY": "a secret of this test alone, and long enough"}
            agents.append(host.start(limited, place, stdout=said, stderr=said, env=variables))
    until(lambda: len(list(place.glob("met-*"))) == 2 * len(hosts), "the ranks of all nodes")
    found = max(sockets(process) for process in hosts[0].processes())
    (place / "stop").touch()
    assert [agent.wait(60) for agent in agents] == [0] * len(hosts)
    return found


def test_each_node_costs_the_first_one_as_many_files_as_on_paper_and_it_may_open_them(tmp_path: Path) -> None:
    counts = {}
    for nodes in (2, 3):
        with network(nodes) as hosts:
            counts[nodes] = most_sockets(hosts, tmp_path / str(nodes))
    assert counts[2] > FEW
    assert counts[3] - counts[2] == control(Shape(3, ranks=2)).files - control(Shape(2, ranks=2)).files
