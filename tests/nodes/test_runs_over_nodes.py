"""`samebits run --nnodes` on one machine: two agents train one job, fail as one, and leave nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents import Agents, bits_alone, bits_of, nursery_of, training
from tests.support.launching import Finished, kill, open_ports, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
PLAIN = """
    import json, os, sys, torch, torch.distributed as dist
    from torch import nn

    told = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")}
    for number in range(3):
        dist.init_process_group("gloo")
        summed = torch.ones(3) * dist.get_rank()
        dist.all_reduce(summed)
        dist.destroy_process_group()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    model(torch.ones(2, 4) * dist.get_rank()).sum().backward()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), dist.get_world_size(), False)
    store.set(f"said by {dist.get_rank()}", "hello")
    heard = [store.get(f"said by {rank}").decode() for rank in range(dist.get_world_size())]
    first = next(model.parameters())
    numbers = [summed.tolist(), heard, first.tolist(), first.grad.tolist()]
    print("TOLD", json.dumps([told, numbers]), flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""
APART = """
    import torch, torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    if dist.get_rank() >= 2:  # on the second node
        model.module.bias.data += 1e-6
    dist.destroy_process_group()
"""
SNAPSHOTS = ("--snapshots", "4steps")


@pytest.fixture(scope="module")
def want(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bits of one rank."""
    return bits_alone(tmp_path_factory.mktemp("one") / "rank")


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[list[Agents]]:
    """Agents that a test has begun, which do not outlive it."""
    found: list[Agents] = []
    yield found
    for agents in found:
        agents.clean_up()


def ended(agents: Agents) -> list[Finished]:
    """How all ended; nothing is left."""
    before = set(agents.processes())
    done = agents.finish()
    nothing_left(agents, before)
    return done


def nothing_left(agents: Agents, before: set[int]) -> None:
    """No process of any node, and no shared memory of those that were there."""
    until(lambda: not agents.processes(), "the end of all processes")
    left = [str(path) for path in Path("/dev/shm").iterdir() if any(str(pid) in path.name for pid in before)]
    assert left == []


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_two_nodes_have_the_bits_of_one_rank_and_listen_on_one_named_address(
    ranks: int, tmp_path: Path, want: str
) -> None:
    agents = Agents(tmp_path, "2", "-n", str(ranks), *training(tmp_path))
    agents.start_all(2, env={"HOLD_AT": "8"})
    agents.wait_for("ready: ", times=2 * ranks)
    gate = f"0100007F:{agents.port:04X}"
    listening = {port.split()[1]: port for run in agents.running.values() for port in open_ports(run.processes())}
    assert gate in listening, "the gate, on the address that the endpoint names"
    assert [
        place for place in listening if place.split(":")[0] not in {"0100007F", "0000000000000000FFFF00000100007F"}
    ] == []
    agents.go()
    done = ended(agents)
    assert [one.code for one in done] == [0, 0], agents.told()
    assert bits_of(agents.out) == [(rank, 2 * ranks, want) for rank in range(2 * ranks)]
    assert f"node 0 (host {os.uname().nodename})" in done[1].err


@pytest.mark.thorough
def test_a_plain_script_trains_over_nodes_as_under_torchrun(tmp_path: Path) -> None:
    agents = Agents(tmp_path, "2", "-n", "2", str(tmp_path / write_script(tmp_path, PLAIN)))
    agents.start_all(2)
    done = ended(agents)
    assert [one.code for one in done] == [0, 0], agents.told()
    told = sorted((json.loads(line) for line in re.findall(r"TOLD (.*)", agents.out)), key=lambda one: one[0]["RANK"])
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    assert [tuple(one[0][name] for name in names) for one in told] == [
        ("0", "0", "0", "2", "2"),
        ("1", "1", "0", "2", "2"),
        ("2", "0", "1", "2", "2"),
        ("3", "1", "1", "2", "2"),
    ]
    assert all(one[1] == told[0][1] for one in told), "sums, weights and gradients are the same everywhere"
    assert told[0][1][:2] == [[6.0, 6.0, 6.0], ["hello"] * 4]


def test_an_exception_on_one_node_is_the_same_block_and_code_on_both(tmp_path: Path) -> None:
    agents = Agents(tmp_path, "2", "-n", "2", *training(tmp_path))
    agents.go()
    agents.start_all(2, env={"RAISES": "3 6"})
    done = ended(agents)
    assert [one.code for one in done] == [1, 1], agents.told()
    blocks = [one.err[one.err.index("FAILED") :] for one in done]
    assert blocks[0].startswith("FAILED    rank 3"), agents.told()
    assert "ValueError: no such thing" in blocks[0]
    assert without_seconds(blocks[0]) == without_seconds(blocks[1])


def without_seconds(text: str) -> str:
    return re.sub(r"\d+\.\d+ s", "", text)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.thorough), 2])
def test_a_killed_rank_starts_all_again_from_the_snapshot_that_only_the_first_node_has(
    rank: int, tmp_path: Path, want: str
) -> None:
    agents = Agents(tmp_path, "2", "-n", "2", *SNAPSHOTS, *training(tmp_path))
    agents.start_all(2, env={"DIES": f"{rank} 24 0", "PAUSE_S": "0.05"})
    done = ended(agents)
    assert [one.code for one in done] == [0, 0], agents.told()
    assert bits_of(agents.out) == [(each, 4, want) for each in range(4)]
    begins = [int(step) for step in re.findall(r"ready: rank \d of 4 begins at step (\d+)", agents.out)]
    assert begins.count(1) == 4
    again = {step for step in begins if step > 1}
    assert len(begins) == 8, agents.told()
    assert len(again) == 1, f"from one state in memory, which was brought to the other node: {begins}"
    for one in done:
        assert f"rank {rank} was killed by signal 9 (SIGKILL) in step 24 (23 done" in one.err
        assert "(restart 1 of 3)" in one.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.thorough
def test_a_signal_to_one_node_ends_all_and_the_same_command_goes_on(
    node: int, number: signal.Signals, tmp_path: Path, want: str
) -> None:
    agents = Agents(tmp_path, "2", "-n", "1", "--name", "exp", "--save-every", "1000steps", *training(tmp_path))
    agents.start_all(2, env={"PAUSE_S": "0.05"})
    agents.wait_for("at step 10")
    agents.running[node].process.send_signal(number)
    done = ended(agents)
    assert [one.code for one in done] == [128 + number] * 2, agents.told()
    assert "FAILED" not in agents.out
    agents.go()
    agents.start_all(2)
    done = ended(agents)
    assert [one.code for one in done] == [0, 0], agents.told()
    begins = re.findall(r"begins at step (\d+)", done[0].out + done[0].err + done[1].out + done[1].err)
    assert len(begins) == 2
    assert begins[0] == begins[1]
    assert int(begins[0]) > 10, "the state, which only the first node has, was brought to the other one"
    assert {one[2] for one in bits_of(agents.out)} == {want}


@pytest.mark.thorough
def test_a_second_ctrl_c_ends_all_nodes_at_once(tmp_path: Path, begun: list[Agents]) -> None:
    text = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('ready: now', flush=True)\ntime.sleep(600)"
    agents = Agents(tmp_path, "2", "-n", "1", str(tmp_path / write_script(tmp_path, text)))
    begun.append(agents)
    agents.start_all(2)
    agents.wait_for("ready: ", times=2)
    for _ in range(2):
        agents.running[1].process.send_signal(signal.SIGINT)
    assert [one.code for one in ended(agents)] == [130, 130], agents.told()


@pytest.mark.thorough
def test_a_signal_while_a_node_waits_for_others_ends_it(tmp_path: Path) -> None:
    agents = Agents(tmp_path, "2", "-n", "1", *training(tmp_path))
    run = agents.start(0)
    until(lambda: "waiting for 1 of 2 nodes: node 1 never connected" in run.err, "who is missing")
    run.process.send_signal(signal.SIGTERM)
    assert [one.code for one in ended(agents)] == [143], agents.told()


def held(place: Path, begun: list[Agents], *words: str, nnodes: str = "2") -> Agents:
    """Two nodes with two ranks each, in the middle of training."""
    agents = Agents(place, nnodes, "-n", "2", "-v", *words, *training(place))
    begun.append(agents)
    agents.start_all(2, env={"HOLD_AT": "12"})
    agents.wait_for("ready: ", times=4)
    agents.wait_for("at step 10")
    return agents


@promise(
    "never-stuck-nothing-left-behind",
    "When node 0 of several dies, the others end with one sentence, which names its newest state, and the "
    "same commands resume from it",
)
@pytest.mark.parametrize("what", ["launcher", pytest.param("nursery", marks=pytest.mark.thorough)])
def test_the_end_of_the_first_node_ends_the_others_with_a_sentence_and_the_same_commands_go_on(
    what: str, tmp_path: Path, want: str, begun: list[Agents]
) -> None:
    agents = held(tmp_path, begun, "--name", "exp", "--save-every", "4steps")
    states = tmp_path / "node-0" / "samebits-runs" / "exp"
    known = "a state on the disk, of which the other node was told"
    until(lambda: any(time.time() - path.stat().st_mtime > 2.0 for path in states.rglob("step-*8")), known)
    first, second = agents.running[0], agents.running[1]
    before = set(agents.processes())
    kill({"launcher": lambda: first.process.pid, "nursery": lambda: nursery_of(first)}[what]())
    codes = [run.process.wait(60) for run in (first, second)]
    assert codes[1] == 1, agents.told()
    assert codes[0] in {"launcher": {-9}, "nursery": {1}}[what], agents.told()
    assert second.err.rstrip().splitlines()[-1].count("This node lost the run's first one, and the run ends here: "), (
        second.err
    )
    assert re.search(r"Node 0's newest state is of step \d+, in /.* there: the same commands resume", second.err)
    nothing_left(agents, before)
    agents.go()
    agents.start_all(2)
    done = ended(agents)
    assert [one.code for one in done] == [0, 0], agents.told()
    assert {one[2] for one in bits_of(agents.out)} == {want}
    begins = {int(step) for one in done for step in re.findall(r"begins at step (\d+)", one.out + one.err)}
    assert len(begins) == 1
    assert min(begins) > 4


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["launcher", "nursery"])
def test_a_fixed_number_of_nodes_waits_for_a_lost_one_to_come_back(
    what: str, tmp_path: Path, want: str, begun: list[Agents]
) -> None:
    agents = held(tmp_path, begun, *SNAPSHOTS)
    second = agents.running[1]
    kill(
        {
            "launcher": lambda: second.process.pid,
            "nursery": lambda: nursery_of(second),
        }[what]()
    )
    assert second.process.wait(60) in (-9, 1)
    until(lambda: "is gone" in agents.running[0].err, "that it is gone")
    agents.go()
    agents.start(1)
    done = ended(agents)
    assert [one.code for one in done] == [0, 0], agents.told()
    assert bits_of(agents.out) == [(rank, 4, want) for rank in range(4)]


@pytest.mark.thorough
@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_that_is_stopped_for_a_while_changes_nothing(
    node: int, tmp_path: Path, want: str, begun: list[Agents]
) -> None:
    agents = held(tmp_path, begun)
    agents.running[node].process.send_signal(signal.SIGSTOP)
    agents.go()
    agents.wait_for("END ", times=2)  # the ranks of the other one, at least, need no launcher
    agents.running[node].process.send_signal(signal.SIGCONT)
    done = ended(agents)
    assert [one.code for one in done] == [0, 0], agents.told()
    assert bits_of(agents.out) == [(rank, 4, want) for rank in range(4)]


@pytest.mark.thorough
def test_replicas_of_a_plain_script_that_come_apart_on_another_node_are_a_finding(tmp_path: Path) -> None:
    agents = Agents(tmp_path, "2", "-n", "2", str(tmp_path / write_script(tmp_path, APART)))
    agents.start_all(2)
    done = ended(agents)
    assert [one.code for one in done] == [0, 0], [one.err for one in done]
    said = "at its end, 'bias' is not the same on rank 2 as on rank 0"
    assert sum(said in one.err for one in done) == 1, [one.err for one in done]
    found = [line for path in tmp_path.rglob("findings.jsonl") for line in path.read_text().splitlines()]
    assert sum("replicas-apart" in line for line in found) == 1
