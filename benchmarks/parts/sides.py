"""What ranks compare: sides that make a training step at each `next`, and turns of which the slowest rank's time counts.

All sides fetch the same samples from the same data set in memory through a DataLoader, so fetching is part of every step. All
use fused AdamW. The exact side has torch's deterministic switch on, as `samebits.init` sets it; the others have it off.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset

from benchmarks.summary import BACKWARD, FORWARD, REST, UPDATE
from benchmarks.workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    import samebits  # the bare loop of `started` must not have it

Turn = Callable[[], None]
Hide = Callable[[Optimizer], None]
"""Keeps a run from looking at another side's optimizer. It looks in each lane at the gradients of optimizers that it does not
know, 0.2 ms of a step for 600 tensors; a script has none of these, so that would be counted against us."""

OURS, GLOO, LIMIT, BARE = "samebits", "Gloo", "no exchange", "bare loop"
BUCKET_CAPS_MIB = (1, 4, 25)
STEPS_PER_EPOCH = 16


def rank_parser(*, workload: bool = False, bare: bool = False) -> argparse.ArgumentParser:
    """Options of every comparison: `--rounds`, `--to`; where wanted, what to train and the library of bare loops."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--to", type=Path, required=True)
    if workload:
        parser.add_argument("--workload", choices=WORKLOADS, required=True)
    if bare:
        parser.add_argument("--bare", type=Path, required=True)
    return parser


def take_turns(
    sides: Mapping[str, Turn],
    rounds: int,
    *,
    warm_up: int,
    barrier: Turn,
    before: Callable[[str], None] = lambda _: None,
) -> dict[str, list[int]]:
    """Nanoseconds of each side's turns on this rank. Every round begins with a different side.

    Args:
        sides: what each does in its turn.
        rounds: those that count.
        warm_up: rounds before them.
        barrier: lets the ranks start a turn together.
        before: called with the side's name before the barrier; its time does not count.
    """
    names = list(sides)
    times: dict[str, list[int]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        for name in rotated(names, number):
            before(name)
            barrier()
            started = time.perf_counter_ns()
            sides[name]()
            times[name].append(time.perf_counter_ns() - started)
    return {name: values[warm_up:] for name, values in times.items()}


def rotated(names: Sequence[str], number: int) -> list[str]:
    """The same names, beginning with a different one in each round."""
    at = number % len(names)
    return [*names[at:], *names[:at]]


def slowest(times: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Collective: the longest time over ranks of each turn."""
    table = torch.tensor(list(times.values()))
    if dist.is_initialized():
        dist.all_reduce(table, dist.ReduceOp.MAX)
    return dict(zip(times, table.tolist(), strict=True))


class Laps:
    """Nanoseconds of each phase, step by step. A phase may come several times in a step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self._now: dict[str, int] = defaultdict(int)
        self._last = 0

    def begin(self) -> None:
        """What follows belongs to the first phase that ends."""
        self._last = time.perf_counter_ns()

    def end(self, phase: str) -> None:
        """The time since the last call belongs to `phase`."""
        now = time.perf_counter_ns()
        self._now[phase] += now - self._last
        self._last = now

    def end_step(self) -> None:
        """Keep the step's phases."""
        self.steps.append(dict(self._now))
        self._now.clear()


@dataclass
class Record:
    """What one side leaves behind: its first gradients, and where its steps' time went."""

    gradients: list[Tensor] = field(default_factory=list)
    laps: Laps = field(default_factory=Laps)

    def keep_first(self, model: nn.Module) -> None:
        """Called in every step when the gradients are complete."""
        if not self.gradients:
            self.gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]


def adamw(model: nn.Module) -> Optimizer:
    """The same optimizer for every side."""
    return AdamW(model.parameters(), lr=1e-4, fused=True)


def _update(model: nn.Module, optimizer: Optimizer, record: Record) -> None:
    """The rest of a step, whose gradients are complete."""
    laps = record.laps
    laps.end(BACKWARD)
    record.keep_first(model)
    laps.end(REST)
    optimizer.step()
    laps.end(UPDATE)
    optimizer.zero_grad()


def samebits_side(
    run: samebits.Run, workload: Workload, model: nn.Module, data: Dataset[Any], record: Record
) -> Iterator[None]:
    """Our engine: one lane per rank."""
    loader = DataLoader(data, batch_size=workload.batch * run.world_size)
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    laps = record.laps
    while True:
        for step in run.steps(loader):
            for inputs, targets in step:
                laps.end(REST)
                loss = F.cross_entropy(model(inputs), targets)
                laps.end(FORWARD)
                run.backward(loss)
            _update(model, optimizer, record)
            yield


def plain_side(
    model: nn.Module,
    data: Dataset[Any],
    batches: list[list[int]],
    record: Record,
    *,
    exchange: bool,
    hide: Hide = lambda _: None,
) -> Iterator[None]:
    """An ordinary loop over `model`, which may be wrapped in DDP; `exchange` False takes DDP's exchange out."""
    optimizer = adamw(model)
    hide(optimizer)
    loader = DataLoader(data, batch_sampler=batches)
    laps = record.laps
    while True:
        for inputs, targets in loader:
            laps.end(REST)
            with nullcontext() if exchange else model.no_sync():
                loss = F.cross_entropy(model(inputs), targets)
                laps.end(FORWARD)
                loss.backward()
            _update(model, optimizer, record)
            yield


def bucketed(name: str, bucket_cap_mib: int) -> str:
    """The name of a DDP side with this bucket cap."""
    return f"{name} {bucket_cap_mib} MiB"


class Models:
    """Equal models for all sides, and each rank's own batches."""

    def __init__(self, workload: Workload, rank: int, world_size: int, num_samples: int) -> None:
        torch.manual_seed(0)
        self.first = workload.model()
        self._weights = {name: value.clone() for name, value in self.first.state_dict().items()}
        self._make = workload.model
        step, start = workload.batch * world_size, workload.batch * rank
        self.batches = [list(range(at + start, at + start + workload.batch)) for at in range(0, num_samples, step)]

    def another(self) -> nn.Module:
        """A model with the first one's weights."""
        model = self._make()
        model.load_state_dict(self._weights)
        return model

    def wrapped(self, group: dist.ProcessGroup, bucket_cap_mib: int = 25) -> nn.Module:
        """The same in DDP."""
        return DistributedDataParallel(
            self.another(), process_group=group, bucket_cap_mb=bucket_cap_mib, gradient_as_bucket_view=True
        )


def ddp_sides(
    models: Models,
    data: Dataset[Any],
    groups: dict[str, dist.ProcessGroup],
    record: Callable[[str], Record],
    hide: Hide = lambda _: None,
) -> dict[str, Iterator[None]]:
    """DDP over each group with each bucket cap, and over the first one without any exchange."""
    found = {}
    for label, group in groups.items():
        for cap in BUCKET_CAPS_MIB:
            name = bucketed(label, cap)
            wrapped = models.wrapped(group, cap)
            found[name] = plain_side(wrapped, data, models.batches, record(name), exchange=True, hide=hide)
    without = models.wrapped(next(iter(groups.values())))
    found[LIMIT] = plain_side(without, data, models.batches, record(LIMIT), exchange=False, hide=hide)
    return found
