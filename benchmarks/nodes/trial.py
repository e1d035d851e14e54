"""One job over nodes: started on hosts, watched by what its ranks note, and ended with everything that it left."""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.nodes.contestants import Contestant, new_key
from tests.support.hosts import Host
from tests.support.warm import Process

SCRIPT = Path(__file__).with_name("training.py")
START_S = 90.0
STEPS_BEFORE = 20
"""A fault comes when every rank has made so many."""


@dataclass(frozen=True)
class Rank:
    """What one process noted."""

    pid: int
    host: str
    steps: tuple[float, ...]
    """When each all_reduce was done."""
    size: int
    bits: str


@dataclass
class Trial:
    """One job; a context that ends it.

    Args:
        contestant: who starts it.
        hosts: the nodes' machines; the first one has the endpoint.
        nnodes: `2`, or `1:2`.
        arguments: more for the script.
    """

    contestant: Contestant
    hosts: Sequence[Host]
    nnodes: str = "2"
    arguments: tuple[str, ...] = ()
    began_s: float = 0.0
    agents: dict[int, Process] = field(default_factory=dict)
    _run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    _key: str = field(default_factory=new_key)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="nodes-", ignore_cleanup_errors=True)
        self.place = Path(self._folder.name)
        self.began_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.reset()
        self._folder.cleanup()

    def start(self, *nodes: int) -> None:
        """Start the agents of these nodes."""
        script = (str(SCRIPT), "--notes", str(self.place), *self.arguments)
        for node in nodes:
            folder = self.place / f"node{node}"
            folder.mkdir()
            command = self.contestant.command(node, self.nnodes, self.hosts[0].address, self._run_id, script)
            with (folder / "said.txt").open("w") as said:
                variables = self.contestant.variables(self._key)
                host = self.hosts[node]
                self.agents[node] = host.start(command, folder, stdout=said, stderr=said, env=variables)

    def said(self, node: int) -> str:
        """What a node's agent and ranks have printed."""
        return (self.place / f"node{node}" / "said.txt").read_text(errors="replace")

    def stop(self) -> None:
        """Let the script come to its end."""
        (self.place / "stop").touch()

    def ranks(self) -> list[Rank]:
        """All processes that have noted something, dead ones too."""
        return [_read(path) for path in self.place.glob("*.txt")]

    def of(self, size: int, since_s: float = 0.0) -> list[Rank]:
        """Those that have been in a group of this size which began after `since_s`."""
        return [rank for rank in self.ranks() if rank.size == size and rank.steps and rank.steps[0] > since_s]

    def trains(self, size: int, steps: int = STEPS_BEFORE) -> None:
        """Wait until a group of this size has made so many steps."""
        done = self.wait(lambda: sum(len(rank.steps) >= steps for rank in self.of(size)) >= size, START_S)
        assert done, f"{self.contestant.name}: no training on {size} ranks: {[self.said(node) for node in self.agents]}"

    def wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Whether it became so in this time."""
        until = time.monotonic() + limit_s
        while not (found := condition()) and time.monotonic() < until:
            time.sleep(0.05)  # the times are from the notes
        return found

    def first_of_new_group(self, size: int, since_s: float, limit_s: float) -> float | None:
        """Seconds from `since_s` until each rank of a new group of this size has made its first all_reduce."""
        if not self.wait(lambda: len(self.of(size, since_s)) >= size, limit_s):
            return None
        return max(rank.steps[0] for rank in self.of(size, since_s)) - since_s

    def outcome(self, limit_s: float) -> str:
        """How the agents ended: exit codes, or that they had not."""
        self.wait(lambda: all(agent.poll() is not None for agent in self.agents.values()), limit_s)
        return ", ".join(f"node {node}: {agent.poll()}" for node, agent in sorted(self.agents.items()))


def _read(path: Path) -> Rank:
    host, bits, size, steps = "", "", 0, []
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        told = json.loads(line)
        host, bits, size = told.get("host", host), told.get("bits", bits), told.get("size", size)
        if told["what"] == "step":
            steps.append(told["at_s"])
    return Rank(int(path.stem), host, tuple(steps), size, bits)
