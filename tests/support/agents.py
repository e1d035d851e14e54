"""The agents of one run on several nodes, on this machine or on hosts of `tests.support.hosts`: `samebits run --nnodes ...`.

    agents = Agents(tmp_path, "2", "-n", "2", training(tmp_path))
    agents.start(0), agents.start(1)
    ended = agents.finish()
    assert bits_of(ended) == {bits_alone(...)}

Each node works in `place / "node-K"`, so none finds another one's states, as where every machine has its own disk.
"""

from __future__ import annotations

import re
import secrets
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.hosts import Host
from tests.support.launching import Finished, Running, start, until, write_script

TRAINING = """
import hashlib, os, signal, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import samebits

place, steps, restarts = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
run = samebits.init(seed=1, lanes=8, threads=1)
numbers = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(64, 20, generator=numbers), torch.randint(0, 4, (64,), generator=numbers))
model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
os.environ["BEGINS"] = "yes"
for _ in run.epochs(steps // 4):
    for step in run.steps(loader):
        if os.environ.pop("BEGINS", ""):  # no variable of the script's own: a state could not hold it
            print(f"ready: rank {run.rank} of {run.world_size} begins at step {step.number}", flush=True)
        if step.number % 10 == 0:
            run.print(f"at step {step.number}", flush=True)
        while not (place / "go").exists() and step.number == int(os.environ.get("HOLD_AT", 0)):
            time.sleep(0.01)
        if not (place / "go").exists():
            time.sleep(float(os.environ.get("PAUSE_S", 0)))
        for inputs, labels in step:
            run.backward(nn.functional.cross_entropy(model(inputs), labels))
            if f"{run.rank} {step.number} {restarts}" in os.environ.get("DIES", "").split(","):
                os.kill(os.getpid(), signal.SIGKILL)
            if os.environ.get("RAISES") == f"{run.rank} {step.number}":
                raise ValueError("no such thing")
        optimizer.step()
        optimizer.zero_grad()
tensors = [*model.state_dict().values(), *optimizer.state_dict()["state"][0].values(), torch.rand(4)]
bits = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()[:12]
print(f"END rank {run.rank} of {run.world_size} bits {bits}", flush=True)
"""
"""Trains for a number of steps, with a pause in each until there is a file `go`; variables say what happens on the way."""


class Agents:
    """The nodes of one run.

    Args:
        place: an empty folder.
        nnodes: as the option takes it.
        words: what follows on the command line of every node: options, script, arguments.
        hosts: where node K is to be; none: all are here.
    """

    def __init__(self, place: Path, nnodes: str, *words: str, hosts: list[Host] | None = None) -> None:
        self.place, self._nnodes, self._words, self._hosts = place, nnodes, words, hosts
        self.port = _free_port()
        self.running: dict[int, Running] = {}
        self.earlier: list[str] = []
        """What was said by agents whose node was started once more."""
        key = place / "key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))

    def start(self, node: int, *, number: str | None = None, env: Mapping[str, str] | None = None) -> Running:
        """Start the agent of a node, or start it again; where `number` is empty it is not told which one it is."""
        folder = self.place / f"node-{node}"
        folder.mkdir(exist_ok=True)
        if node in self.running:
            self.earlier.append(self.running[node].out + self.running[node].err)
        host = self._hosts[node] if self._hosts else None
        address = self._hosts[0].address if self._hosts else "127.0.0.1"
        words = ["--nnodes", self._nnodes, "--key-file", str(self.place / "key"), "--threads", "1"]
        words += ["--rdzv-endpoint", f"{address}:{self.port}", *self._words]
        if number != "":
            words = ["--node-rank", str(node), *words]
        run = host.launch(folder, *words, env=env) if host else start(folder, *words, env=env)
        self.running[node] = run
        return run

    def start_all(self, count: int, **how: Mapping[str, str]) -> list[Running]:
        """Start nodes 0 to count - 1."""
        return [self.start(number, **how) for number in range(count)]  # type: ignore[arg-type]

    def go(self) -> None:
        """Let the script train without pauses."""
        (self.place / "go").touch()

    def finish(self) -> list[Finished]:
        """Wait for the end of all agents, in the order of their numbers, and see that no process is left."""
        try:
            ended = [run.finish() for _, run in sorted(self.running.items())]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"an agent does not end:\n{self.told()}") from None
        finally:
            self.clean_up()
        return ended

    def clean_up(self) -> None:
        """End what is left."""
        for run in self.running.values():
            run.clean_up()

    @property
    def out(self) -> str:
        """What the ranks of all nodes have said, and the agents too; that of rank 0 first."""
        return "".join([*self.earlier, *(run.out + run.err for run in self.running.values())])

    def processes(self) -> list[int]:
        """Of all nodes."""
        return [process for run in self.running.values() for process in run.processes()]

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until ranks said it so often, on whichever node."""

        def is_said() -> bool:
            is_over = all(run.process.poll() is not None for run in self.running.values())
            assert not is_over or self.out.count(text) >= times, f"all ended before {text!r}:\n{self.told()}"
            return self.out.count(text) >= times

        until(is_said, f"{text!r} {times} times")

    def told(self) -> str:
        """All that was printed, for a test that fails."""
        return "\n".join(f"node {number}:\n{run.out}\n{run.err}" for number, run in sorted(self.running.items()))


def training(place: Path, steps: int = 40) -> list[str]:
    """The words of `TRAINING` on a command line."""
    return [str(place / write_script(place, TRAINING)), str(place), str(steps)]


def bits_of(text: str) -> list[tuple[int, int, str]]:
    """Rank, ranks and bits, as ranks said at the end of `TRAINING`."""
    found = re.findall(r"END rank (\d+) of (\d+) bits (\w+)", text)
    return sorted((int(rank), int(ranks), bits) for rank, ranks, bits in found)


def bits_alone(place: Path, steps: int = 40) -> str:
    """Those of `TRAINING` on one rank."""
    place.mkdir()
    (place / "go").touch()
    done = start(place, "-n", "1", "--threads", "1", *training(place, steps)).finish()
    ((_, _, bits),) = bits_of(done.out)
    return bits


def children_of(process: int) -> list[int]:
    """The processes that it started and that live."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return sorted(found)


def nursery_of(run: Running) -> int:
    """The parent of an agent's ranks: the only process of the launcher's that has children."""
    (found,) = [one for one in children_of(run.process.pid) if children_of(one)]
    return found


def ranks_of(run: Running) -> Iterable[int]:
    """The ranks of this node, with -v."""
    return {int(rank) for rank in re.findall(r"^rank (\d+) +pid", run.err, re.MULTILINE)}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
