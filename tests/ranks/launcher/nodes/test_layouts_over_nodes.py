"""Real agents: both orders of a mesh over nodes, a state that goes from one layout to another, and ranks that would start ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.launching import run_script, write_script
from tests.support.promises import promise
from tests.support.several_nodes import nodes

pytestmark = pytest.mark.ranks

LAYERS = """
import hashlib, json, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import samebits

epochs, going_on, state = int(sys.argv[1]), sys.argv[2], sys.argv[3]
run = samebits.init(seed=3, lanes=8, threads=1)
numbers = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(99, 20, generator=numbers), torch.randint(0, 5, (99,), generator=numbers))
parts = [nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5)]
model = nn.Sequential(*parts)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=24, shuffle=True))
if going_on:
    run.load_state(going_on)
lines = []
for _ in run.epochs(epochs):
    model.train()
    tally = run.tally()
    for step in run.steps(loader):
        step.backward(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
        lines.append(float(run.clip_grad_norm_(model.parameters(), 0.5)).hex())
        optimizer.step()
        optimizer.zero_grad()
        lines.append(step.loss.hex())
    model.eval()
    with torch.no_grad():
        for inputs, labels in loader:
            scores = model(inputs)
            tally.add(loss=nn.functional.cross_entropy(scores, labels), right=(scores.argmax(1) == labels).float().mean())
    lines += [float(value).hex() for value in tally.mean().values()]
run.save_state(state)
run.save_weights(model, f"{state}-weights")
from safetensors.torch import load_file
weights = load_file(f"{state}-weights")
lines += [f"{name} {weights[name].numpy().tobytes().hex()}" for name in sorted(weights)]
from samebits.rank.run import start
nodes = start._present[0].components.transport.nodes
bits = hashlib.sha256(repr(lines).encode()).hexdigest()[:12]
Path(f"{state}-{run.rank}.json").write_text(json.dumps([bits, nodes and nodes.sizes]))
"""
"""Trains, evaluates, saves: each rank writes a hash of all losses, norms, means and weights, and where ranks are."""


def written(state: Path, ranks: int) -> list[list[str]]:
    """What each rank wrote at its end."""
    return [json.loads(state.with_name(f"{state.name}-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """One rank: a state after one epoch, the hash after one, and the hash of the second one from there."""
    place = tmp_path_factory.mktemp("alone")
    hashes = []
    for epochs, going_on, state in (("1", "", "first"), ("2", "first", "second")):
        done = run_script(place, LAYERS, "-n", "1", "--threads", "1", args=(epochs, going_on, str(place / state)))
        assert done.code == 0, done.err
        [[bits, _]] = written(place / state, 1)
        hashes.append(bits)
    return place, hashes[0], hashes[1]


FORMS = [
    pytest.param(("--mesh", "pipeline=2,ddp=2"), id="stages over nodes"),
    pytest.param(("--mesh", "ddp=2,model_parallel=2"), id="replicas over nodes"),
    pytest.param(("--strategy", "zero1"), id="zero1"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_two_agents_train_evaluate_save_and_go_on_with_the_bits_of_one_rank(
    tmp_path: Path, alone: tuple[Path, str, str], form: tuple[str, ...]
) -> None:
    place, first, second = alone
    script = tmp_path / write_script(tmp_path, LAYERS)
    for number, (epochs, going_on, expected) in enumerate((("1", "", first), ("2", str(place / "first"), second))):
        folder = tmp_path / str(number)
        folder.mkdir()
        words = ("-n", "2", "--threads", "1", *form, str(script), epochs, going_on, str(folder / "state"))
        with nodes(folder, 2, *words) as running:
            ended = [run.finish() for run in running]
        assert [each.code for each in ended] == [0, 0], ended[0].err
        assert written(folder / "state", 4) == [[expected, [2, 2]]] * 4
    back = run_script(
        place, LAYERS, "-n", "1", "--threads", "1", args=("2", str(tmp_path / "0" / "state"), str(place / "back"))
    )
    assert back.code == 0, back.err
    assert written(place / "back", 1) == [[second, None]]


SPAWNS = {
    "samebits.spawn": "import samebits\nif __name__ == '__main__':\n    samebits.spawn(print, nprocs=2)\n",
    "torch.multiprocessing.spawn": (
        "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(print, nprocs=2)\n"
    ),
}


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "`samebits.spawn` in a rank of a run over nodes, and in tasks of srun and mpirun, is refused in one sentence",
    also=["test_ranks_and_tasks_start_no_ranks_of_their_own"],
)
@pytest.mark.thorough
@pytest.mark.parametrize(
    "call", [pytest.param("samebits.spawn", marks=pytest.mark.thorough), "torch.multiprocessing.spawn"]
)
def test_a_script_that_spawns_ranks_is_refused_on_all_nodes(tmp_path: Path, call: str) -> None:
    script = tmp_path / write_script(tmp_path, SPAWNS[call])
    with nodes(tmp_path, 2, "-n", "1", "--threads", "1", str(script)) as running:
        for run in running:
            ended = run.finish()
            assert ended.code == 2, ended.err
            assert re.search(
                rf"FAILED .*: {call} was called in rank \d of a run on 2 nodes, so each rank would start", ended.err
            )
            assert (
                "  help    Call the function without spawn: `samebits run -n N` starts N ranks on each node"
                in ended.err
            )
            assert "Traceback" not in ended.err
