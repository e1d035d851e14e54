"""Kills of ranks and nodes, leaves, joins and cut links in random orders: whatever happens, the bits are those of one rank."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.agents import Agents, bits_alone, bits_of, ranks_of, training
from tests.support.hosts import Host, network, why_not
from tests.support.launching import Running, kill, until
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
STEPS = 160
WORDS = ("-n", "2", "-v", "--snapshots", "20steps", "--max-restarts", "50")
SEEDS = range(100)


@dataclass(frozen=True)
class Event:
    """What happens once the run has come to a step, and a moment later."""

    step: int
    delay_s: float
    what: str
    pick: float
    """From 0 to 1: which of those that it can happen to."""


def schedule(seed: int, whats: list[str]) -> tuple[int, list[Event]]:
    """With how many nodes a run begins, and what happens to it."""
    rng = random.Random(seed)
    steps = sorted(rng.sample(range(0, STEPS - 60, 10), rng.randint(2, 5)))
    return rng.choice([2, 3]), [Event(step, rng.uniform(0, 1.5), rng.choice(whats), rng.random()) for step in steps]


class Driver:
    """Carries a schedule out. Node 0 is left alone, since a run ends with it; its ranks are not."""

    def __init__(self, agents: Agents, hosts: list[Host] | None) -> None:
        self.agents, self.hosts = agents, hosts
        self.done: list[str] = []
        """What happened, for people."""
        self.ended: set[int] = set()
        """The nodes that were killed or asked to leave, and not started again."""

    def carry_out(self, event: Event) -> None:
        first = self.agents.running[0]
        until(lambda: first.process.poll() is not None or self.step() >= event.step, f"step {event.step}")
        time.sleep(event.delay_s)  # a moment of a random schedule: nothing is expected of it
        if first.process.poll() is None:
            do: Callable[[float], str] = getattr(self, event.what)
            self.done.append(f"at step {self.step()}: {do(event.pick)}")

    def step(self) -> int:
        """The newest that rank 0 has told, in multiples of 10."""
        return max(map(int, re.findall(r"at step (\d+)", self.agents.running[0].out)), default=0)

    def rank(self, pick: float) -> str:
        number = self._of(pick, {0, *self._others()})
        run = self.agents.running[number]
        pids = [run.pid_of(rank) for rank in ranks_of(run)]
        newest = {int(pid) for pid in re.findall(r"^rank \d+ +pid (\d+)", run.err, re.MULTILINE)[-2:]}
        alive = sorted(newest & set(run.processes()))
        if not pids or not alive:
            return f"node {number} has no rank"
        process = alive[int(pick * 1000) % len(alive)]
        with suppress(ProcessLookupError):
            kill(process)
        return f"rank of node {number} killed"

    def node(self, pick: float) -> str:
        return self._end(pick, signal.SIGKILL)

    def leave(self, pick: float) -> str:
        return self._end(pick, signal.SIGTERM)

    def _end(self, pick: float, number: int) -> str:
        if not (others := self._others()):
            return "nobody to end"
        node = self._of(pick, others)
        self.agents.running[node].process.send_signal(number)
        self.ended.add(node)
        return f"signal {number} to node {node}"

    def join(self, pick: float) -> str:
        away = {node for node in (1, 2) if not self._lives(node)}
        if not away:
            return "nobody to start"
        node = self._of(pick, away)
        self.agents.start(node)
        self.ended.discard(node)
        return f"node {node} started"

    def cut(self, pick: float) -> str:
        assert self.hosts is not None
        number = 1 + int(pick * 1000) % 2
        self.hosts[number].link.cut()
        time.sleep(pick * 6)  # as above
        self.hosts[number].link.restore()
        return f"link of node {number} cut for {pick * 6:.1f} s"

    def _others(self) -> set[int]:
        return {node for node in (1, 2) if self._lives(node) and node not in self.ended}

    def _lives(self, node: int) -> bool:
        return node in self.agents.running and self.agents.running[node].process.poll() is None

    def _of(self, pick: float, nodes: set[int]) -> int:
        return sorted(nodes)[int(pick * len(nodes)) % len(nodes)]


def outlives(seed: int, place: Path, want: str, whats: list[str], hosts: list[Host] | None = None) -> None:
    """One schedule, to the end of the run."""
    agents = Agents(place, "1:3", *WORDS, *training(place, STEPS), hosts=hosts)
    driver = Driver(agents, hosts)
    begins_with, events = schedule(seed, whats)
    try:
        agents.start_all(begins_with, env={"PAUSE_S": "0.03"})
        for event in events:
            driver.carry_out(event)
        first = agents.running[0]
        until(lambda: first.process.poll() is not None, "the end of node 0", 100.0)
        codes = {0: first.process.wait()}
        for number, run in agents.running.items():
            if number not in driver.ended and number and took_part_to_the_end(run):
                until(lambda run=run: run.process.poll() is not None, f"the end of node {number}")
                codes[number] = run.process.wait()
        bits = bits_of(first.out + first.err)
        story = f"{driver.done}\n{agents.told()}"
        assert set(codes.values()) == {0}, f"{codes} {story}"
        assert {one[2] for one in bits_of(agents.out)} == {want}, story
        assert {one[0] for one in bits} == {0, 1}, story  # twice, where a rank was killed after it had said so
        agents.clean_up()
        until(lambda: not agents.processes(), "the end of all processes")
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {driver.done}\n{agents.told()}") from error
    finally:
        agents.clean_up()


def took_part_to_the_end(run: Running) -> bool:
    """Whether it has ranks in the last round; one that came when all was over waits for another run."""
    return bool(bits_of(run.out + run.err))


@pytest.fixture(scope="module")
def want(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bits_alone(tmp_path_factory.mktemp("one") / "rank", STEPS)


WHATS = ["rank", "node", "leave", "join", "join"]


@promise(
    "same-bits",
    "Nodes that die, leave and join in the middle, at random, change no bit",
)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.thorough if seed else ()) for seed in SEEDS])
@pytest.mark.thorough
def test_whoever_dies_leaves_and_joins_the_bits_are_those_of_one_rank(seed: int, tmp_path: Path, want: str) -> None:
    outlives(seed, tmp_path, want, WHATS)


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[list[Host]]:
    with network(3) as made:
        yield made


@pytest.mark.thorough
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_links_that_are_cut_for_a_while_change_nothing(
    seed: int, tmp_path: Path, want: str, three_hosts: list[Host]
) -> None:
    try:
        outlives(seed, tmp_path, want, [*WHATS, "cut", "cut", "cut"], three_hosts)
    finally:
        for host in three_hosts:
            host.reset()
