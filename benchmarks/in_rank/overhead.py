"""What runs in the ranks: steps of a tiny model, first with no clock inside, then with one around each part.

lockstep run -n 2 -m benchmarks.in_rank.overhead --steps 200 --to overhead.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from benchmarks.in_rank.contestants import adamw
from lockstep.feed.lane_dataset import LaneDataset
from lockstep.rank.streams import Streams
from lockstep.run.loop.step import Step
from lockstep.run.position.ledger import Ledger
from lockstep.strategy.replica.arena import ParameterArena
from lockstep.strategy.replica.buffer_pass import BufferPass
from lockstep.strategy.replica.buffers import BufferBank
from lockstep.strategy.replica.lane_pass import LanePass, ReplicaLane
from lockstep.strategy.replica.only_lane import OnlyLane
from lockstep.strategy.replica.replica import Replica
from lockstep.strategy.replica.slot_lane import SlotLane
from lockstep.transport.contract import Transport

BATCH, STEPS_PER_EPOCH, WARM_UP = 16, 50, 20
PARTS: dict[str, list[tuple[type, str]]] = {
    "journal": [(Ledger, "enter"), (Ledger, "publish"), (Ledger, "move")],
    "checks": [
        (ParameterArena, "has_changed"),
        (ParameterArena, "marks"),
        (ParameterArena, "name_of_moved"),
        (BufferBank, "has_changed"),
        (OnlyLane, "check_untouched"),
        (SlotLane, "check_untouched"),
        (Replica, "before_update"),
    ],
    "streams": [(Streams, "enter")],
    "fetching, with its stream": [(LaneDataset, "__getitems__")],
    "buffers": [(BufferPass, name) for name in ("__init__", "after_lane", "header", "begin", "finish")],
    "frames": [(Transport, "all_gather_object")],
    "lanes and gradients": [
        (Replica, "begin_pass"),
        (LanePass, "begin_lane"),
        (ReplicaLane, "backward"),
        (ReplicaLane, "end"),
        (LanePass, "end"),
    ],
    "the loop around": [(Step, name) for name in ("_enter_lane", "_leave_lane", "_end_pass", "skip_rest")],
}


class Clocks:
    """Time spent in each part, without the parts that it calls."""

    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = {part: [] for part in PARTS}
        self._spent = dict.fromkeys(PARTS, 0)
        self._inside: list[int] = []

    def wind(self) -> None:
        """Put a clock around each part, for the rest of this process."""
        for part, methods in PARTS.items():
            for owner, name in methods:
                setattr(owner, name, self._around(part, owner.__dict__[name]))

    def _around(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter_ns()
            self._inside.append(0)
            try:
                return method(*args, **kwargs)
            finally:
                spent = time.perf_counter_ns() - began
                self._spent[part] += spent - self._inside.pop()
                if self._inside:
                    self._inside[-1] += spent

        return timed

    def end_step(self) -> None:
        """Note what the step spent."""
        for part, spent in self._spent.items():
            self.steps[part].append(spent)
        self._spent = dict.fromkeys(PARTS, 0)


def bare_steps(model: nn.Module, data: TensorDataset) -> Iterator[None]:
    """An ordinary loop."""
    optimizer, loader = adamw(model), DataLoader(data, batch_size=BATCH)
    while True:
        for inputs, targets in loader:
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield


def prepared_steps(run: lockstep.Run, model: nn.Module, data: TensorDataset) -> Iterator[None]:
    """The same, prepared."""
    loader = DataLoader(data, batch_size=BATCH * run.world_size)
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    while True:
        for step in run.steps(loader):
            for inputs, targets in step:
                run.backward(F.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            yield


def times_ns(loop: Iterator[None], steps: int, after: Callable[[], None] = lambda: None) -> list[int]:
    """The time of each step."""
    found = []
    for number in range(WARM_UP + steps):
        began = time.perf_counter_ns()
        next(loop)
        if number >= WARM_UP:
            found.append(time.perf_counter_ns() - began)
        after()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()

    run = lockstep.init(seed=0)
    samples = STEPS_PER_EPOCH * BATCH * run.world_size
    data = TensorDataset(torch.randn(samples, 4), torch.randint(2, (samples,)))
    bare = times_ns(bare_steps(nn.Linear(4, 2), data), options.steps)
    prepared = prepared_steps(run, nn.Linear(4, 2), data)
    whole = times_ns(prepared, options.steps)
    clocks = Clocks()
    clocks.wind()
    times_ns(prepared, options.steps, clocks.end_step)
    parts = {part: spent[WARM_UP:] for part, spent in clocks.steps.items()}
    told: list[Any] = [None] * run.world_size
    mine = {"step_ns": whole, "bare_ns": bare, "parts_ns": parts}
    if run.world_size > 1:
        dist.all_gather_object(told, mine)
    else:
        told = [mine]
    if run.rank == 0:
        options.to.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
