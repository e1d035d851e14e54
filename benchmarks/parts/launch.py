"""From the command to the last rank's first all_reduce (C10), and to the end of a first step (D5): `samebits run` against torchrun.

samebits run -n 2 -m benchmarks.parts.launch --model gpt-124m --side samebits --to noted.json
torchrun --standalone --nproc-per-node 2 -m benchmarks.parts.launch --model gpt-124m --side ddp --to noted.json
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.parts.sides import adamw, rank_parser
from benchmarks.rank_program import Command, measure_program, run_program
from benchmarks.summary import Aim, Line, compare
from benchmarks.workloads import WORKS, Work

FIRST_ALL_REDUCE = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
Path(sys.argv[1], str(dist.get_rank())).write_text(str(time.monotonic_ns()))
assert value.item() == dist.get_world_size()
dist.destroy_process_group()
"""
"""A plain script: meets the other ranks over Gloo, adds a number, and notes when."""
GOALS = {2: 1.9, 8: 4.5}
PROGRAM = "benchmarks.parts.launch"


def measure_launch(num_ranks: int, rounds: int) -> list[Line]:
    """Launch with both, in turn; the limit is one Python that imports torch."""
    ours, torchrun, limit = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "first_all_reduce.py"
        script.write_text(FIRST_ALL_REDUCE)
        run = ["-m", "samebits", "run", "-q", "--threads", 1, "--log-dir", folder, "-n", num_ranks, script]
        other = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_ranks, script]
        for _ in range(rounds):
            ours.append(_until_all_reduce(run, num_ranks))
            torchrun.append(_until_all_reduce(other, num_ranks))
            began = time.monotonic_ns()
            run_program([sys.executable, "-c", "import torch"])
            limit.append(time.monotonic_ns() - began)
    aim = Aim("C10", f"launch, {num_ranks} ranks", GOALS[num_ranks])
    return [compare(aim, ("samebits run", ours), ("torchrun", torchrun), ("import torch", limit))]


def _until_all_reduce(words: Command, num_ranks: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic_ns()
        run_program([sys.executable, *words, folder])
        ends = [int(file.read_text()) for file in Path(folder).iterdir()]
    if len(ends) != num_ranks:
        raise SystemExit(f"{words} came to {len(ends)} of {num_ranks} all_reduces")
    return max(ends) - began


def measure_first_step(model: str, rounds: int) -> list[Line]:
    """The same model in our loop under `samebits run`, and in DDP under torchrun: all of it, and what prepares the model."""
    program = ["-m", PROGRAM, "--model", model, "--side"]
    options = ["-q", "-n", 2, "--lanes", 2, "--device", "cpu", "--threads", 1]
    ours = ["-m", "samebits", "run", *options, *program, "samebits"]
    other = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, *program, "ddp"]
    found = [(_first_step(ours), _first_step(other)) for _ in range(rounds)]
    return [
        compare(
            Aim(row, f"{what}, {model}, 2 ranks", goal),
            ("samebits run", [one[at] for one, _ in found]),
            ("torchrun's DDP", [one[at] for _, one in found]),
        )
        for at, (row, what, goal) in enumerate((("D5", "run.prepare", 1 / 1.2), ("", "launch to a first step", 0.0)))
    ]


def _first_step(words: Command) -> tuple[int, int]:
    """Nanoseconds that preparing took, and from the command to the step's end."""
    began = time.monotonic_ns()
    noted = measure_program([sys.executable, *words])
    return noted["prepare_ns"], noted["ended_ns"] - began


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def with_samebits(work: Work) -> tuple[int, int]:
    """Rank, and nanoseconds of `run.prepare`."""
    import samebits  # the other side must not have it  # noqa: PLC0415

    model, data, batch = work
    run = samebits.init(seed=0)
    loader = DataLoader(data, batch_size=batch * run.world_size)
    began = time.perf_counter_ns()
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    prepared = time.perf_counter_ns() - began
    for step in run.steps(loader):
        for inputs, targets in step:
            run.backward(loss_of(model, inputs, targets))
        optimizer.step()
        optimizer.zero_grad()
        break
    return run.rank, prepared


def with_ddp(work: Work) -> tuple[int, int]:
    """The same under DistributedDataParallel."""
    model, data, batch = work
    dist.init_process_group("gloo")
    loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data, shuffle=False))
    began = time.perf_counter_ns()
    wrapped = DistributedDataParallel(model)
    optimizer = adamw(wrapped)
    prepared = time.perf_counter_ns() - began
    for inputs, targets in loader:
        loss_of(wrapped, inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        break
    return dist.get_rank(), prepared


def main() -> None:
    parser = rank_parser()
    parser.add_argument("--model", choices=WORKS, required=True)
    parser.add_argument("--side", choices=("samebits", "ddp"), required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, prepared = (with_samebits if options.side == "samebits" else with_ddp)(WORKS[options.model]())
    if rank == 0:
        options.to.write_text(json.dumps({"prepare_ns": prepared, "ended_ns": time.monotonic_ns()}))
    if options.side == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
