"""What `samebits bench` measures in a rank: when each step began and ended, and what the rank did in between.

One JSON file per rank, written after the last step. Times are nanoseconds of `time.perf_counter_ns`, which on Linux is
one clock for all processes of a node, so that the ranks' steps can be drawn under each other. It is not a profiler: it
reads the step timer, which every rank keeps anyway, and costs a few microseconds per lane.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from samebits.protocol.journal.ring import Phase
from samebits.protocol.run_folder import RunFolder
from samebits.rank.position.observers import Observer
from samebits.rank.position.run_state import RunState
from samebits.rank.position.step_timer import StepTimer

PARTS = {Phase.DATA: "data", Phase.COMPUTE: "compute", Phase.EXCHANGE: "exchange", Phase.UPDATE: "update"}
"""The phases that `bench` names; every other one is the script's."""
WORK = {"F": "forward", "B": "backward", "W": "wait"}
"""What a stage reports."""


class Meter(Observer):
    """Measures the steps of one rank.

    Args:
        wanted: `warm_up` steps that are made but not measured, then `steps` that are; after them the script ends.
        step_timer: the rank's account of its phases; from now on it keeps every interval.
        device: on CUDA a step begins and ends when the device has finished what it was given.
    """

    def __init__(
        self, folder: RunFolder, rank: int, wanted: Mapping[str, int], step_timer: StepTimer, device: torch.device
    ) -> None:
        self._folder, self._rank, self._step_timer, self._device = folder, rank, step_timer, device
        self._warm_up, self._last = wanted["warm_up"], wanted["warm_up"] + wanted["steps"]
        self._steps: list[dict[str, int]] = []
        self._layers: list[str] = []
        self._work: list[tuple[str, int, int, int]] = []
        step_timer.intervals = []
        # `optimizer.step()` ends the update; what the loop's body does after it is the script's own.
        self._hook = register_optimizer_step_post_hook(self._after_update)
        self._written = False
        self.report: Callable[[], Mapping[str, Any] | None] = lambda: None
        """What the strategy says of this rank's stage of the model; None where there are no stages."""

    def attach(self, run: RunState) -> None:
        self.report = run.components.strategy.report

    def begin_step(self, step: int, num_samples: int, is_first: bool) -> None:
        """Begin a step; end the one before it, unless an epoch ended between them."""
        now = self._boundary("step")
        if self._steps and not is_first and self._steps[-1]["step"] == step - 1:
            self._steps[-1]["end_ns"] = now
        if step == self._warm_up + 1 and self._step_timer.intervals is not None:
            self._step_timer.intervals.clear()
        if step > self._warm_up:
            self._steps.append({"step": step, "samples": num_samples, "begin_ns": now})

    def end_step(self) -> None:
        """End the body of a step; after the last wanted step, end the script."""
        step, stage = self._step_timer.step, self.report()
        if step <= self._warm_up:
            return
        self._steps[-1]["end_ns"] = self._boundary("between steps")
        if stage is not None:
            self._layers = stage["layers"]
            self._work += [
                (WORK[kind], lane, int(begin * 1e9), int(end * 1e9)) for kind, lane, begin, end in stage["timeline"]
            ]
        if step >= self._last:
            self.close()
            raise SystemExit(0)

    def end_run(self) -> None:
        self.close()

    def close(self) -> None:
        """Write what was measured, once; a script that ends early has fewer steps in it."""
        self._hook.remove()
        if self._written:
            return
        self._written = True
        whole = [step for step in self._steps if "end_ns" in step]
        measured = {
            "rank": self._rank,
            "steps": whole,
            "intervals": [
                [PARTS.get(phase, "script"), operation, begin, end]
                for phase, operation, begin, end in self._step_timer.intervals or ()
            ],
            "layers": self._layers,
            "work": self._work,
            "memory": {**_process_memory(), "cuda_peak": self._cuda_peak()},
        }
        self._folder.measured(self._rank).write_text(json.dumps(measured))

    def _boundary(self, operation: str) -> int:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._step_timer.enter(Phase.SCRIPT, operation)
        return time.perf_counter_ns()

    def _cuda_peak(self) -> int | None:
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None

    def _after_update(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._step_timer.enter(Phase.SCRIPT, "after the update")


def _process_memory() -> dict[str, int]:
    """Bytes of this process: the peak of its resident memory, and what it has now, alone and together with others."""
    status, now = _kibibytes(Path("/proc/self/status")), _kibibytes(Path("/proc/self/smaps_rollup"))
    return {
        "peak_rss": status.get("VmHWM", 0) * 1024,
        "pss": now.get("Pss", 0) * 1024,
        "private": (now.get("Private_Clean", 0) + now.get("Private_Dirty", 0)) * 1024,
        "shared": (now.get("Shared_Clean", 0) + now.get("Shared_Dirty", 0)) * 1024,
    }


def _kibibytes(file: Path) -> dict[str, int]:
    """The lines `Name: 123 kB` of a file of /proc; empty where this kernel has no such file."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    return {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
