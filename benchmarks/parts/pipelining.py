"""A pipeline of two stages: lockstep's beside `torch.distributed.pipelining`, on the same layers, cut at the same place.

`python -m benchmarks.parts.pipelining [--micro-batches 8] [--rounds 12] [--json]` starts two ranks, in which the contestants
take steps in turn: lockstep (1F1B), torch's Schedule1F1B, and torch with one micro-batch, which is the naive split. Beside
them stands half of a step that rank 0 computes alone: no pipeline of two equal stages is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

import lockstep

WIDTH, LENGTH, BATCH = 256, 64, 32
RANK = "LOCKSTEP_BENCHMARK_RANK"


class Block(nn.Module):
    """One layer of a GPT, without dropout: torch's pipeline does not carry random streams."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        x = self.norm1(hidden)
        hidden = hidden + self.attention(x, x, x, need_weights=False)[0]
        return hidden + self.down(F.gelu(self.up(self.norm2(hidden))))


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Embedding(256, WIDTH), *(Block() for _ in range(8)), nn.Linear(WIDTH, 256)]


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def torch_step(rank: int, micro_batches: int, split: int) -> Callable[[Tensor, Tensor], None]:
    """A step of torch.distributed.pipelining on the same layers."""
    all_layers = layers()
    mine = nn.Sequential(*(all_layers[:split] if rank == 0 else all_layers[split:]))
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    stage = PipelineStage(mine, rank, 2, torch.device("cpu"))
    kind = Schedule1F1B if micro_batches > 1 else ScheduleGPipe
    order = kind(stage, micro_batches, loss_fn=loss_of)

    def step(inputs: Tensor, targets: Tensor) -> None:
        order.step(inputs) if rank == 0 else order.step(target=targets)
        optimizer.step()
        optimizer.zero_grad()

    return step


def alone_step() -> Callable[[Tensor, Tensor], None]:
    model = nn.Sequential(*layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inputs: Tensor, targets: Tensor) -> None:
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def race(micro_batches: int, rounds: int) -> None:
    """Both ranks: the contestants in turn. Rank 0 prints the times of the slower rank."""
    run = lockstep.init(seed=0, lanes=micro_batches, threads=1, strategy="pipeline")
    model = nn.Sequential(*layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(0, 256, (BATCH * rounds, LENGTH + 1))
    data = TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=BATCH))
    inputs, targets = data[:BATCH]
    others = {"torch 1F1B": torch_step(run.rank, micro_batches, 5), "torch naive": torch_step(run.rank, 1, 5)}
    single = alone_step()
    times: dict[str, list[float]] = {}

    def clock(name: str, act: Callable[[], None]) -> None:
        run.barrier()
        began = time.perf_counter()
        act()
        times.setdefault(name, []).append(
            max(run._run.machinery.transport.all_gather_object(time.perf_counter() - began))
        )

    for step in run.steps(loader):
        step_of_ours = step

        def ours(step: lockstep.Step = step_of_ours) -> None:
            step.backward(lambda batch: loss_of(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()

        clock("lockstep 1F1B", ours)
        for name, act in others.items():
            clock(name, lambda act=act: act(inputs, targets))
        clock("half of one rank", lambda: single(inputs, targets) if run.rank == 0 else None)
    times["half of one rank"] = [value / 2 for value in times["half of one rank"]]
    if run.is_main:
        print(json.dumps({"layers": run._run.machinery.strategy.report()["layers"], "times_s": times}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts.pipelining", description=__doc__)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.environ.get(RANK):
        warnings.simplefilter("ignore")
        race(options.micro_batches, options.rounds)
        return
    command = [sys.executable, "-m", "lockstep", "run", "-q", "-n", "2", "--threads", "1", __file__]
    command += ["--micro-batches", str(options.micro_batches), "--rounds", str(options.rounds)]
    done = subprocess.run(command, env={**os.environ, RANK: "1"}, check=True, stdout=subprocess.PIPE, text=True)
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    medians = {name: median(values[2:]) for name, values in told["times_s"].items()}
    if options.json:
        print(json.dumps({**told, "medians_s": medians}))
        return
    print(
        f"{options.micro_batches} micro-batches of {BATCH // options.micro_batches} x {LENGTH} tokens; stage 0: {Path(__file__).stem} layers {told['layers']}"
    )
    for name, value in medians.items():
        print(f"{name:18} {1e3 * value:8.1f} ms   {medians['torch naive'] / value:5.2f}x the naive split")


if __name__ == "__main__":
    main()
