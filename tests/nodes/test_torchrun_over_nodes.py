"""`torchrun --nnodes 2` on two hosts with two ranks each: a script with samebits.init gives the bits of one rank, others train one job."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.scripts.torchrun_texts import ACCELERATE, DATA, DDP
from tests.support.hosts import Host, network, why_not
from tests.support.launching import run_script, write_script

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.thorough,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--nproc-per-node", "2")
WITH_INIT = """
    import hashlib, json, os, sys
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=3, lanes=4, threads=1, strategy=sys.argv[1])
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(99, 20, generator=generator), torch.randint(0, 5, (99,), generator=generator))
    model = nn.Sequential(nn.Linear(20, 40), nn.BatchNorm1d(40), nn.Dropout(0.2), nn.Linear(40, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=18, shuffle=True))
    losses = []
    for _ in run.epochs(3):
        for step in run.steps(loader):
            step.backward(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(step.loss)
    from samebits.rank.run import start
    nodes = start._present[0].components.transport.nodes
    numbers = [*model.state_dict().values(), torch.tensor(losses, dtype=torch.float64), torch.rand(4)]
    bits = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in numbers)).hexdigest()
    with open(f"bits-{os.environ.get('RANK', 0)}.json", "w") as file:
        json.dump({"bits": bits, "world": int(os.environ.get("WORLD_SIZE", 1)), "nodes": nodes and nodes.sizes}, file)
    samebits.finish()
"""


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[list[Host]]:
    with network(2) as made:
        yield made


@pytest.fixture
def hosts(two_hosts: list[Host]) -> Iterator[list[Host]]:
    yield two_hosts
    for host in two_hosts:
        host.reset()


def run_on(hosts: Sequence[Host], place: Path, *words: str) -> None:
    """Run torchrun on every host in one folder, to its end."""
    meeting = ["--nnodes", str(len(hosts)), "--rdzv-endpoint", f"{hosts[0].address}:29500", "--rdzv-id", "job7"]
    agents = []
    for node, host in enumerate(hosts):
        with (place / f"said-{node}.txt").open("w") as said:
            command, variables = [*TORCHRUN, *meeting, *words], {**os.environ, "ACCELERATE_USE_CPU": "true"}
            agents.append(host.start(command, place, stdout=said, stderr=said, env=variables))
    codes = [agent.wait(100) for agent in agents]
    assert codes == [0] * len(hosts), [(place / f"said-{node}.txt").read_text() for node in range(len(hosts))]


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_script_with_init_has_the_bits_of_one_rank(hosts: list[Host], tmp_path: Path, strategy: str) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    for place in (alone, together):
        place.mkdir()
    done = run_script(alone, WITH_INIT, "-n", "1", args=(strategy,))
    assert done.code == 0, done.err
    run_on(hosts, together, write_script(together, WITH_INIT), strategy)
    (one,) = (json.loads(path.read_text()) for path in alone.glob("bits-*.json"))
    four = [json.loads((together / f"bits-{rank}.json").read_text()) for rank in range(4)]
    assert [rank["world"] for rank in four] == [4] * 4
    assert {rank["bits"] for rank in four} == {one["bits"]}
    assert [rank["nodes"] for rank in four] == [[2, 2]] * 4


@pytest.mark.parametrize("trainer", [DDP, ACCELERATE], ids=["ddp", "accelerate"])
def test_a_script_without_init_trains_one_job_over_both_hosts(hosts: list[Host], tmp_path: Path, trainer: str) -> None:
    run_on(hosts, tmp_path, write_script(tmp_path, DATA + trainer))
    told = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert [rank["world"] for rank in told] == [4] * 4
    assert len({rank["weights"] for rank in told}) == 1
    assert len({rank["first"] for rank in told}) == 4, "each rank has samples of its own"
