"""A node whose link is cut is named on all nodes that can still talk, and on itself; when the link is back, the run goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.hosts import network, why_not
from tests.support.launching import until, write_script
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


def test_a_node_whose_link_is_cut_is_named_on_all_and_heard_of_again(tmp_path: Path) -> None:
    script, key = str(tmp_path / write_script(tmp_path, WAIT)), str(write_key(tmp_path))
    with network(3) as hosts:
        started = []
        for number, host in enumerate(hosts):
            place = tmp_path / host.name
            place.mkdir()
            where = ("--nnodes", "3", "--node-rank", str(number), "--rdzv-endpoint", f"{hosts[0].address}:29511")
            started.append(host.launch(place, *where, "--key-file", key, "-v", "-n", "1", script, str(tmp_path)))
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
