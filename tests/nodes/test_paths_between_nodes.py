"""Two nodes that do not reach each other, and one that stands still: named, nobody else is blamed, and one is given up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.agents import Agents, bits_alone, bits_of, training
from tests.support.hosts import network, why_not
from tests.support.launching import until
from tests.support.promises import promise

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.thorough,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
STEPS = 300
NOBODY_WAITS_LONGER_S = 10.0
"""5 s are promised, on a machine that does nothing else."""


@promise(
    "never-stuck-nothing-left-behind",
    "Of two nodes that do not reach each other both are named on all, and the script is not; one is given "
    "up after 30 s",
    also=["test_nobody_is_called_stalled_while_nodes_may_not_reach_each_other"],
)
@pytest.mark.parametrize("how", ["pair cut", "frozen"])
def test_of_three_nodes_the_last_is_given_up_and_the_script_is_not_blamed(how: str, tmp_path: Path) -> None:
    with network(3) as hosts:
        agents = Agents(tmp_path, "1:3", "-n", "1", "-v", *training(tmp_path, STEPS), hosts=hosts)
        agents.start_all(3, env={"PAUSE_S": "0.1"})
        agents.wait_for("ready: ", times=3)
        agents.wait_for("at step 20")
        first, second, third = (agents.running[number] for number in range(3))
        if how == "frozen":
            hosts[2].freeze()
            said = r"the launcher of node 2 \(host host2\) stands still"
        else:
            hosts[1].lose(hosts[2])
            said = r"node 1 \(host host1\) and node 2 \(host host2\) have not reached each other for 5 s"
        for run in (first, second) if how == "frozen" else (first, second, third):
            until(lambda run=run: re.search(said, run.err) is not None, said, NOBODY_WAITS_LONGER_S)
        until(lambda: "of 2 begins at step" in first.out, "the round without it")
        hosts[2].kill() if how == "frozen" else third.process.wait(60)
        agents.running.pop(2)
        agents.go()
        assert [one.code for one in agents.finish()] == [0, 0], agents.told()
        assert {bits for _, _, bits in bits_of(agents.out)} == {bits_alone(tmp_path / "one", STEPS)}
        assert all("node 2 (host host2) is gone" in run.err for run in (first, second))
        assert how == "frozen" or "This node was given up, and the run ends here: node 0 gave this node up" in third.err
        for run in (first, second, third):
            assert "stalled" not in run.err.lower() and "node 1 (host host1) has sent nothing" not in run.err, run.err
