"""`samebits run --nnodes MIN:MAX`: nodes are killed, leave and join while the run goes on, and the bits stay those of one rank."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents import Agents, bits_alone, bits_of, nursery_of, training
from tests.support.hosts import network, why_not
from tests.support.launching import Running, kill, until

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]
STEPS = 300
SLOWLY = {"PAUSE_S": "0.1"}


@pytest.fixture(scope="module")
def want(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bits of one rank."""
    return bits_alone(tmp_path_factory.mktemp("one") / "rank", STEPS)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    """Of a run with one to three nodes, at most two of which take part where a test says so."""
    made = Agents(tmp_path, "1:3", "-n", "2", "-v", "--snapshots", "10steps", *training(tmp_path, STEPS))
    yield made
    made.clean_up()


def rounds(run: Running) -> list[int]:
    """With how many nodes each start of the ranks was, as this node saw it."""
    return [int(count) for count in re.findall(r"^nodes +(\d+) nodes? with", run.err, re.MULTILINE)]


def end(agents: Agents, want: str, *codes: int) -> None:
    """Let it train to its end: the codes of the nodes by number, and the bits."""
    agents.go()
    done = agents.finish()
    assert tuple(one.code for one in done) == codes, agents.told()
    assert {one[2] for one in bits_of(agents.out)} == {want}, agents.told()
    until(lambda: not agents.processes(), "the end of all processes")


def under_way(agents: Agents, count: int) -> None:
    agents.start_all(count, env=SLOWLY)
    agents.wait_for("ready: ", times=2 * count)
    agents.wait_for("at step 20")


@pytest.mark.parametrize("what", ["launcher", "nursery"])
def test_a_lost_node_is_named_and_the_others_go_on(what: str, agents: Agents, want: str) -> None:
    under_way(agents, 2)
    first, second = agents.running[0], agents.running[1]
    kill(
        {
            "launcher": lambda: second.process.pid,
            "nursery": lambda: nursery_of(second),
        }[what]()
    )
    until(lambda: rounds(first) == [2, 1], "the round without it")
    assert re.search(r"node 1 \(host \S+\) is gone; all ranks start again, (after|from) ", first.err)
    end(agents, want, 0, -signal.SIGKILL if what == "launcher" else 1)
    assert [(rank, ranks) for rank, ranks, _ in bits_of(agents.out)] == [(0, 2), (1, 2)]


def test_a_node_joins_at_a_step_and_another_one_leaves(agents: Agents, want: str) -> None:
    under_way(agents, 1)
    first, second = agents.running[0], agents.start(1, env=SLOWLY)
    until(lambda: rounds(first) == [1, 2], "the round with it")
    assert re.search(r"host \S+ joins; all ranks start again, after step \d+, kept in memory", first.err)
    agents.wait_for("of 4 begins at step", times=4)
    assert len(set(re.findall(r"of 4 begins at step (\d+)", agents.out))) == 1, "the newcomer has the state, too"
    second.process.send_signal(signal.SIGTERM)
    until(lambda: rounds(first) == [1, 2, 1], "the round without it")
    assert re.search(r"node 1 \(host \S+\) leaves; all ranks start again, after step \d+, kept in memory", first.err)
    end(agents, want, 0, 128 + signal.SIGTERM)
    assert "stopped   by signal 15 (SIGTERM)" in second.err
    assert "FAILED" not in agents.out


def test_the_first_node_cannot_leave_so_all_end(agents: Agents) -> None:
    under_way(agents, 2)
    agents.running[0].process.send_signal(signal.SIGTERM)
    assert [one.code for one in agents.finish()] == [143, 143], agents.told()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_spare_waits_until_there_is_room(tmp_path: Path, want: str) -> None:
    with network(3) as hosts:
        words = ["-n", "2", "-v", "--snapshots", "10steps", *training(tmp_path, STEPS)]
        agents = Agents(tmp_path, "1:2", *words, hosts=hosts)
        under_way(agents, 2)
        first = agents.running[0]
        spare = agents.start(2, number="", env=SLOWLY)  # by order of joining
        until(lambda: re.search("^nodes ", spare.err, re.MULTILINE) is not None, "that it waits")
        assert spare.process.poll() is None
        assert rounds(first) == [2]
        kill(agents.running.pop(1).process.pid)
        until(lambda: rounds(first)[-1] == 2 and len(rounds(first)) > 1, "the round with the spare")
        end(agents, want, 0, 0)
        assert re.search(r"host host2 joins", first.err)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_link_that_is_cut_for_8_seconds_is_named_and_changes_nothing(tmp_path: Path, want: str) -> None:
    with network(2) as hosts:
        agents = Agents(tmp_path, "2", "-n", "2", "-v", *training(tmp_path, STEPS), hosts=hosts)
        under_way(agents, 2)
        hosts[1].link.cut()
        silent = "has sent nothing for 5 s: its link is cut"
        until(lambda: all(silent in run.err for run in agents.running.values()), "that it is said on both sides")
        hosts[1].link.restore()
        end(agents, want, 0, 0)
        assert all("is back" in run.err for run in agents.running.values())
        assert all(rounds(run) == [2] for run in agents.running.values())


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_link_that_is_cut_for_good_is_a_lost_node(tmp_path: Path, want: str) -> None:
    with network(2) as hosts:
        agents = Agents(
            tmp_path, "1:2", "-n", "2", "-v", "--snapshots", "10steps", *training(tmp_path, STEPS), hosts=hosts
        )
        under_way(agents, 2)
        hosts[1].link.cut()
        first, second = agents.running[0], agents.running.pop(1)
        until(lambda: rounds(first) == [2, 1], "the round without it")
        assert second.process.wait(60) == 1
        assert (
            "This node lost the run's first one, and the run ends here: nothing was received from node 0 for 30 s."
            in second.err
        )
        until(lambda: not second.processes(), "the end of its processes")
        end(agents, want, 0)
