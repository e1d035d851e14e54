"""How a script finds the others: alone, under torchrun, with a group of its own; and what its libraries see."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torchmetrics

import samebits
from samebits.protocol.environment import Position, RankEnvironment, RankSettings, decode, encode
from samebits.testing.ranks import Started, run_ranks
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import torch, samebits
from torch import nn
run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.arange(160.).view(20, 8) / 100, torch.zeros(20, 2))
model, optimizer, loader = run.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=7, shuffle=True))
for step in run.steps(loader):
    for x, y in step:
        run.backward((model(x) - y).square().mean())
    optimizer.step()
    optimizer.zero_grad()
run.print(run.world_size, model.weight.sum().item().hex())
"""


def started(command, tmp_path, hash_seed="0"):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    told = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=100, cwd=tmp_path, env=told)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("PYTHONHASHSEED=0") == (hash_seed == "random")
    return done.stdout.split()


@promise(
    "same-bits",
    "A script gives the same bits alone (`python train.py`) and under torchrun, over every transport, "
    "wherever lanes are placed",
    also=["test_a_sum_has_the_bits_of_the_tree_on_one_rank", "test_the_trees_value_does_not_depend_on_the_placement"],
)
@promise(
    "never-a-silent-wrong-gradient",
    "Ranks that hash strings differently are named at `samebits.init`; before it all draw the same under "
    "`samebits run`; a rank that draws alone outside lanes, and a seed inside a lane, are reported once",
    also=[
        "test_a_script_with_init_draws_the_same_before_it_on_every_rank",
        "test_a_rank_that_draws_alone_is_said_once",
        "test_a_seed_inside_of_a_lane_is_said_once_at_the_loops_line",
    ],
)
def test_a_script_runs_alone_and_under_torchrun_with_the_same_bits(tmp_path):
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    world, alone = started([sys.executable], tmp_path)
    assert world == "1"
    assert started([torchrun, "--standalone", "--nproc-per-node=2"], tmp_path, "random") == ["2", alone]
    assert not (tmp_path / "samebits-runs").exists()


def torchmetrics_accuracy():
    run = samebits.init(lanes=2)
    metric = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
    predictions, labels = torch.tensor([0, 1, 2, 2, 1]), torch.tensor([0, 1, 1, 2, 0])
    for batch in run.prepare(
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(predictions, labels), batch_size=5)
    ):
        metric.update(*batch)
    return metric.compute().item()


@promise("torchrun-scripts-and-samebits-spawn", "Torchmetrics sees every rank")
@pytest.mark.thorough
def test_torchmetrics_sees_every_rank():
    alone = run_ranks(torchmetrics_accuracy, Started(1))
    assert alone == [pytest.approx(0.6)]
    assert run_ranks(torchmetrics_accuracy, Started(2)) == alone * 2


def own_group(path):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    run = samebits.init()
    total = torch.ones(1)
    dist.all_reduce(total)
    return run.world_size, run.sum(1), total.item()


@pytest.mark.thorough
def test_a_group_that_the_script_made_is_used(tmp_path):
    assert run_ranks(own_group, Started(2), str(tmp_path / "store")) == [(2, 2, 2)] * 2


def again():
    sums = []
    for _ in range(3):
        run = samebits.init()
        sums.append(run.sum(run.rank))
        samebits.finish()
    return sums


@pytest.mark.thorough
def test_a_process_may_join_several_times():
    assert run_ranks(again, Started(2)) == [[1, 1, 1]] * 2


def every_call(path):
    run = samebits.init(lanes=4)
    with run.main_first():
        if run.is_main:
            Path(path).write_text("prepared")
        text = Path(path).read_text()
    tensor = run.broadcast(torch.full((2,), float(run.rank)), source=1)
    return {
        "text": text,
        "sum": run.sum(run.rank + 1),
        "mean": run.mean(float(run.rank)),
        "tensor sum": run.sum(torch.tensor([1.0, run.rank])).tolist(),
        "any": run.any(run.rank == 1),
        "all": run.all(run.rank == 1),
        "broadcast": run.broadcast({"rank": run.rank}),
        "tensor": tensor.tolist(),
        "lanes": run.num_lanes,
        "device": str(run.device),
        "seed": run.seed("augmentation"),
        "shared": torch.distributed.is_initialized(),
    }


@pytest.mark.thorough
def test_every_collective_gives_every_rank_the_same(tmp_path):
    results = run_ranks(every_call, Started(2), str(tmp_path / "file"))
    assert results[0] == results[1]
    assert results[0] | {"seed": 0} == {
        "text": "prepared",
        "sum": 3,
        "mean": 0.5,
        "tensor sum": [2, 1],
        "any": True,
        "all": False,
        "broadcast": {"rank": 0},
        "tensor": [1, 1],
        "lanes": 4,
        "device": "cpu",
        "seed": 0,
        "shared": True,
    }


def failing_main():
    run = samebits.init()
    try:
        with run.main_first():
            if run.is_main:
                Path("/proc/none").write_text("")
    except (OSError, samebits.EnvironmentFailure) as error:
        return str(error)
    return "nothing"


@pytest.mark.thorough
def test_a_failure_of_rank_0_in_main_first_reaches_the_others():
    main, other = run_ranks(failing_main, Started(2))
    assert "/proc/none" in main
    assert "rank 0 failed in `with run.main_first()` (test_joining.py:" in other


def test_the_environment_survives_encoding(tmp_path):
    environment = RankEnvironment(
        Position(3, 1, 4, 2),
        RankSettings(tmp_path, 2, lanes=8, device="cpu", evidence={"steps": 20, "capture": {"item": "loss"}}),
    )
    variables = encode(environment, 1234, "name")
    assert decode(variables) == environment
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["WORLD_SIZE"]) == ("3", "1", "4")
    assert decode({}) == RankEnvironment(Position(), None)
