"""What `samebits replay` wants of a rank: run until one step, look into it, and end behind it.

Of its last step a rank writes, for each pass, each of its lanes: the samples' indices, the loss and the norm of the gradients.

Runs in: the main thread of each rank.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.protocol.run_folder import RunFolder
from samebits.rank.caller import caller_frame
from samebits.rank.data.loader import LanePart
from samebits.rank.position.observers import Observer
from samebits.rank.position.run_state import RunState
from samebits.rank.strategy.contract import PassResult


class Replayed(Observer):
    """Ends the script behind one step.

    Args:
        folder: of the run.
        rank: of this process.
        wanted: `step`; `saves` (end only where the next step begins: a state of the last one is wanted); `rows` (measure each lane's gradients); `pdb` (open the debugger at the step's first lane);
            `anomaly` (let torch name the forward line of a NaN in a backward).
    """

    def __init__(self, folder: RunFolder, rank: int, wanted: Mapping[str, Any]) -> None:
        self._folder, self._rank, self._wanted = folder, rank, wanted
        self._last: int = wanted["step"]
        self._samples: dict[int, list[Any]] = {}
        """By lane."""
        self._norms: dict[int, float] = {}
        """Of the pass that is open, by lane."""
        self._passes: list[dict[int, dict[str, Any]]] = []
        self._has_stopped = self._has_left = False
        self._is_there = False
        """Whether this is the step."""
        self._first = 0
        """The step that this start began with."""
        self._run: RunState

    def attach(self, run: RunState) -> None:
        """Look at this run."""
        self._run = run
        if self._wanted.get("rows"):
            run.components.strategy.observers.append(self._take_lane)

    def before_step(self) -> None:
        if self._run.components.step_timer.step >= self._last:
            self._end()

    def begin_step(self, step: int, _num_samples: int, _is_first: bool) -> None:
        self._first = self._first or step
        self._is_there = step == self._last
        if self._is_there and self._wanted.get("anomaly"):
            torch.autograd.set_detect_anomaly(True, check_nan=True)

    def fetched(self, part: LanePart, _batch: Any) -> None:
        if not self._is_there:
            return
        self._samples[part.lane] = list(part.indices)
        if self._wanted.get("pdb") and self._rank == 0 and not self._has_stopped:
            self._has_stopped = True
            debugger = importlib.import_module("samebits.rank.start.debugger")
            debugger.stop_in_script(caller_frame(), self._folder.journal(self._rank))

    def _take_lane(self, lane: int, gradients: Sequence[Tensor], weight: float, _explicit: bool) -> None:
        """A `LaneObserver`. A weight of 0: the lane has only been looked at."""
        if self._is_there and weight:
            squares = [float(torch.linalg.vector_norm(flat.detach().double())) ** 2 for flat in gradients]
            self._norms[lane] = sum(squares) ** 0.5

    def end_pass(self, _step: int, _number: int, result: PassResult) -> None:
        if self._is_there:
            losses = result.pass_loss.lanes
            self._passes.append(
                {
                    lane: {"samples": samples, "loss": losses.get(lane), "norm": self._norms.get(lane)}
                    for lane, samples in self._samples.items()
                }
            )
            self._norms = {}

    def end_step(self) -> None:
        if self._run.components.step_timer.step >= self._last and not self._wanted.get("saves"):
            self._end()

    def left_loop(self) -> None:
        """All ranks end together, where they are next."""
        self._has_left = self._run.components.step_timer.step >= self._last

    def begin_loop(self) -> None:
        if self._has_left and not self._wanted.get("saves"):
            self._end()

    def end_run(self) -> None:
        """The script has come to its end; behind the step, where its loop was left there."""
        self._write()

    def _end(self) -> None:
        """Write what was seen, and end the script as `sys.exit` does."""
        self._write()
        raise SystemExit(0)

    def _write(self) -> None:
        seen = {"first": self._first, "last": self._run.components.step_timer.step, "passes": self._passes}
        with self._folder.replayed(self._rank).open("w") as file:
            json.dump(seen, file, default=str)
