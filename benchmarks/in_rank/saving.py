"""What runs in the ranks of `save`: one state saved in several ways, in turn; the clock runs while training would wait.

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

import lockstep
from benchmarks.gpu_day.programs.models import Gpt
from benchmarks.in_rank.contestants import adamw
from benchmarks.in_rank.options import rank_parser
from benchmarks.in_rank.turns import Turn, slowest, take_turns
from benchmarks.parts.saving import BYTES_EACH, COPY, GPT_M, NOW, OURS
from lockstep.machine.memory_pressure import read_memory_pressure
from lockstep.run.saving.aside.aside import Aside
from lockstep.run.saving.state import save_state

WIDTH = 1000
"""Of each layer: a million parameters."""
WARM_UP = 1


LENGTH = 64
"""Words of a text of GPT."""


def trained(run: lockstep.Run, millions: int) -> tuple[nn.Module, torch.optim.Optimizer]:
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

    def __init__(self, run: lockstep.Run, model: nn.Module, optimizer: torch.optim.Optimizer, place: Path) -> None:
        self._run, self._place = run, place
        self._aside = Aside(1)
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
        save_state(self._run._run, self._place / "states" / "step-00000001", {}, self._aside.take, self._aside.tell())
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
    run = lockstep.init(seed=0)
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
