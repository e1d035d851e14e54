"""Adding up gradients and updating parameters, without a model around them (C7).

One parameter of the wanted size, whose gradient is given. The clock of our side starts when the engine has the gradient
where it adds up, and ends when every rank sees the new parameters. Gloo's side has its gradients flat, divided, and
where AdamW reads them; it adds them up in pieces of several sizes, all begun at once. Either side made one copy before.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from benchmarks.limits import LIMITS, Bare, Copy, build, update_bytes
from benchmarks.parts.sides import GLOO, adamw, rank_parser, rotated, slowest
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, best, compare

SIZES_M = (10, 25, 50)
"""Millions of float32 parameters."""
GOAL = 3.0
ZERO1 = "zero1"
PIECES_MIB = (4, 25, 1024)
WARM_UP = 5
STEPS_PER_EPOCH = 16
TOLERANCE = 1e-6

Spans = Iterator[tuple[int, int]]
"""When each turn began and ended, in nanoseconds."""


def measure_update(size_m: int, rounds: int) -> list[Line]:
    """`zero1` beside Gloo's all_reduce and fused AdamW on two ranks. Exits when the parameters differ afterwards.

    The limit is a copy that touches as many bytes as both ranks together must touch in shared memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["--millions", size_m, "--rounds", rounds, "--bare", build(Path(folder))]
        times = measure_in_ranks("update", 2, options, ["--strategy", "zero1"])["times_ns"]
    gloo = best({name: of for name, of in times.items() if name.startswith(GLOO)})
    copy = best({name: times[name] for name in LIMITS})
    aim = Aim("C7", f"reduce and AdamW, {size_m} M parameters", GOAL)
    return [compare(aim, (ZERO1, times[ZERO1]), (gloo, times[gloo]), (copy, times[copy]))]


class Given(torch.autograd.Function):
    """A loss whose gradient is known."""

    @staticmethod
    def forward(context: Any, weight: Tensor, gradient: Tensor) -> Tensor:
        context.save_for_backward(gradient)
        return weight.new_zeros(())

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(context: FunctionCtx, *_: Tensor) -> tuple[Tensor, None]:
        return context.saved_tensors[0], None  # type: ignore[attr-defined]


class Single(nn.Module):
    """One parameter."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))


def engine(run: lockstep.Run, model: Single, gradient: Tensor, barrier: dist.ProcessGroup) -> Spans:
    """Our side."""
    began = 0

    def note(_: Tensor) -> None:
        nonlocal began
        dist.barrier(barrier)
        began = time.perf_counter_ns()

    loader = DataLoader(TensorDataset(torch.zeros(STEPS_PER_EPOCH * run.world_size)), batch_size=run.world_size)
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    # after the engine's own, which puts the gradient in its place
    model.weight.register_post_accumulate_grad_hook(note)
    while True:
        for step in run.steps(loader):
            for _ in step:
                run.backward(Given.apply(model.weight, gradient))
            optimizer.step()
            ended = time.perf_counter_ns()
            optimizer.zero_grad()
            yield began, ended


def stock(model: Single, gradient: Tensor, group: dist.ProcessGroup, piece_mib: int) -> Spans:
    """Gloo's side."""
    optimizer = adamw(model)
    flat = model.weight.grad = torch.empty_like(gradient)
    pieces = flat.split((piece_mib << 20) // flat.element_size())
    while True:
        torch.div(gradient, group.size(), out=flat)
        dist.barrier(group)
        began = time.perf_counter_ns()
        for work in [dist.all_reduce(piece, group=group, async_op=True) for piece in pieces]:
            work.wait()
        optimizer.step()
        yield began, time.perf_counter_ns()


def copying(copy: Copy, source: Tensor, group: dist.ProcessGroup) -> Spans:
    """The limit: `copy(target, source, num_bytes)`."""
    target, room = torch.zeros_like(source), source.nbytes
    times, rest = divmod(update_bytes(room, group.size()) // 2, room)
    while True:
        dist.barrier(group)
        began = time.perf_counter_ns()
        for piece in (*[room] * times, rest):
            copy(target.data_ptr(), source.data_ptr(), piece)
        yield began, time.perf_counter_ns()


def alternate(sides: dict[str, Spans], rounds: int) -> dict[str, list[int]]:
    """Nanoseconds of each side's turns, of the slowest rank."""
    times: dict[str, list[int]] = {name: [] for name in sides}
    for number in range(WARM_UP + rounds):
        for name in rotated(list(sides), number):
            began, ended = next(sides[name])
            times[name].append(ended - began)
    return slowest({name: values[WARM_UP:] for name, values in times.items()})


def main() -> None:
    parser = rank_parser(bare=True)
    parser.add_argument("--millions", type=int, required=True)
    options = parser.parse_args()

    run = lockstep.init(seed=0)
    count, group = options.millions * 1_000_000, dist.new_group(backend="gloo")
    gradient = torch.randn(count, generator=torch.Generator().manual_seed(run.rank))
    models = {ZERO1: Single(count)} | {f"{GLOO} {mib} MiB": Single(count) for mib in PIECES_MIB}
    sides: dict[str, Spans] = {ZERO1: engine(run, models[ZERO1], gradient, group)}
    sides |= {f"{GLOO} {mib} MiB": stock(models[f"{GLOO} {mib} MiB"], gradient, group, mib) for mib in PIECES_MIB}
    sides |= {name: copying(copy, gradient, group) for name, copy in Bare(options.bare).limits().items()}
    times = alternate(sides, options.rounds)
    first = models[ZERO1].weight.detach()
    worst = max((first - model.weight.detach()).abs().max().item() for model in models.values())
    if not worst <= TOLERANCE:
        raise SystemExit(f"after equal updates the parameters differ by {worst}")
    if run.rank == 0:
        options.to.write_text(json.dumps({"times_ns": times, "largest_difference": worst}))


if __name__ == "__main__":
    main()
