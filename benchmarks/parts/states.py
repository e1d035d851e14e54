"""How long a step stands still for a state, beside `torch.save`, DCP's `async_save` and a bare copy of the same bytes (C13, D4).

One state is saved in each way, in turn; the clock runs while training would wait.

Each turn ends, outside of the clock, when its state is on the disk. `torch.save` and DCP do not flush to the disk and
compute no hash; ours does both, in its own process.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.gpu_day.programs.models import Gpt
from benchmarks.parts.sides import Turn, adamw, rank_parser, slowest, take_turns
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare
from samebits.machine.memory_pressure import read_memory_pressure
from samebits.rank.checkpoint.store.checkpointer import AsyncCheckpointer
from samebits.rank.checkpoint.store.save import save_state

GPT_M = 124
"""GPT-2's smallest; the others are stacks of layers."""
SIZES = ((10, 1), (GPT_M, 1), (10, 2), (GPT_M, 2))
"""Millions of float32 parameters, with AdamW: 12 bytes each are saved; and ranks, under ddp."""
BYTES_EACH = 50
"""Memory that the measurement needs for each parameter: the state, its gradients, and a copy for each side."""
OURS, NOW, COPY = "automatic state", "run.save_state", "memcpy"
WIDTH = 1000
"""Of each layer: a million parameters."""
LENGTH = 64
"""Words of a text of GPT."""
WARM_UP = 1


def measure_saving(size_m: int, num_ranks: int, rounds: int) -> list[Line]:
    """Ranks save their state in turn in each way; a line for each other way, with the bare copy as the limit.

    Sides that do not work here are left out. No lines where the memory does not suffice.
    """
    times = measure_in_ranks("states", num_ranks, ["--millions", size_m, "--rounds", rounds])["times_ns"]
    copy = times.pop(COPY, None)
    if copy is None:
        return []
    ours = (OURS, times.pop(OURS))
    aim = Aim("S1", f"standing still for a state, {size_m} M parameters, ranks: {num_ranks}")
    return [compare(aim, ours, other, (COPY, copy)) for other in times.items()]


def trained(run: samebits.Run, millions: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model that has made a step, so that its optimizer has a state: GPT-2's smallest, or as many layers as millions."""
    model: nn.Module
    if millions == GPT_M:
        model, inputs = Gpt(length=LENGTH), torch.zeros(2, LENGTH, dtype=torch.long)
    else:
        model, inputs = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(millions))), torch.randn(2, WIDTH)
    loader = DataLoader(TensorDataset(inputs), batch_size=2)
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    for step in run.steps(loader):
        for (inputs,) in step:
            run.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


class Sides:
    """Each way of saving, and how to wait for its end."""

    def __init__(self, run: samebits.Run, model: nn.Module, optimizer: torch.optim.Optimizer, place: Path) -> None:
        self._run, self._place = run, place
        self._aside = AsyncCheckpointer(1)
        self._tensors: list[Tensor] = [*model.state_dict().values()]
        self._tensors += [v for state in optimizer.state.values() for v in state.values()]
        self._room = torch.zeros(sum(tensor.nbytes for tensor in self._tensors), dtype=torch.uint8)
        self._state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        self._future: Future[Any] | None = None

    def turns(self) -> dict[str, Turn]:
        """All that may be tried."""
        return {OURS: self.ours, COPY: self.copy, NOW: self.now, "torch.save": self.stock} | {
            f"DCP async_save, {kind.value}": self._dcp(kind) for kind in AsyncCheckpointerType
        }

    def ours(self) -> None:
        save_state(self._run._run, self._place / "states" / "step-00000001", {}, self._aside.take, self._aside.offer())
        if problem := self._aside.hand_over():
            raise SystemExit(problem)

    def now(self) -> None:
        self._run.save_state(self._place / "now")

    def stock(self) -> None:
        if self._run.is_main:
            torch.save(self._state, self._place / "stock.pt")

    def _dcp(self, kind: AsyncCheckpointerType) -> Callable[[], None]:
        def turn() -> None:
            found = dcp.async_save(
                self._state, checkpoint_id=self._place / f"dcp-{kind.value}", async_checkpointer_type=kind
            )
            self._future = found if isinstance(found, Future) else found.upload_completion

        return turn

    def copy(self) -> None:
        """The same bytes, by memcpy; with several ranks each copies some of the tensors."""
        at = self._room.data_ptr()
        for tensor in sorted(self._tensors, key=lambda one: one.nbytes)[self._run.rank :: self._run.world_size]:
            ctypes.memmove(at, tensor.data_ptr(), tensor.nbytes)
            at += tensor.nbytes

    def settle(self, _: str = "") -> None:
        """Wait for what is being written, and make room on the disk."""
        if problem := self._aside.settle():
            raise SystemExit(problem)
        if self._future is not None:
            self._future.result()
            self._future = None
        self._run.barrier()
        if self._run.is_main:
            for folder in self._place.glob("dcp-*"):
                shutil.rmtree(folder)

    def close(self) -> None:
        self.settle()
        self._aside.close()


def that_work(turns: dict[str, Turn], settle: Callable[[], None]) -> dict[str, Turn]:
    """Those that can be used here; each is tried once."""
    found = {}
    for name, turn in turns.items():
        try:
            turn()
            settle()
            found[name] = turn
        except (RuntimeError, OSError, ValueError, TypeError, AttributeError) as error:
            if name == OURS:
                raise
            print(f"{name} does not work here: {error}", file=sys.stderr)
    return found


def main() -> None:
    parser = rank_parser()
    parser.add_argument("--millions", type=int, required=True)
    options = parser.parse_args()
    run = samebits.init(seed=0)
    times: dict[str, list[int]] = {}
    if run.world_size * options.millions * 1_000_000 * BYTES_EACH + (2 << 30) < read_memory_pressure().available_bytes:
        place = options.to.parent / "saved"
        place.mkdir(exist_ok=True)
        model, optimizer = trained(run, options.millions)
        if run.world_size == 1:  # DCP wants a group
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        sides = Sides(run, model, optimizer, place)
        turns = that_work(sides.turns(), sides.settle)
        times = take_turns(turns, options.rounds, warm_up=WARM_UP, barrier=run.barrier, before=sides.settle)
        times = slowest(times)
        sides.close()
        if run.world_size == 1:
            dist.destroy_process_group()
    if run.is_main:
        options.to.write_text(json.dumps({"times_ns": times}))


if __name__ == "__main__":
    main()
