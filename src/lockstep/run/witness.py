"""What `lockstep verify` records in a rank: after each step a hash of everything that should not depend on the ranks.

One JSON object per line in the evidence folder: `{"step": 3, "items": {"parameter fc.weight": "9f…", …}}`. Items stand
in the order in which a difference would spread: loss, gradients, buffers, parameters, optimizer, the script's own. The
first word of an item says its kind. A number is written in hexadecimal, exact.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.layout.run_folder import RunFolder
from lockstep.run.calm import autocast_dtypes
from lockstep.run.holdings import Holdings
from lockstep.strategy.agreement import tensor_hash
from lockstep.strategy.gradients import Slot
from lockstep.torch_private import BatchNorm

MAX_COMPARED = 2_000_000
"""Of gradients and values of more elements than this, every k-th element is written."""
MAX_LIST = 64
"""Longer lists inside a state are data, and are not looked into."""


class Witness:
    """Records the evidence of one rank.

    Args:
        folder: the run folder.
        rank: this rank.
        wanted: `steps` (stop after so many), `plain` (record each lane's first gradients), `capture` (write the values
            of one item at one step).
    """

    def __init__(self, folder: RunFolder, rank: int, wanted: Mapping[str, Any]) -> None:
        self._folder, self._rank = folder, rank
        self._last_step: int = wanted.get("steps", sys.maxsize)
        self.plain = bool(wanted.get("plain"))
        self._capture: Mapping[str, Any] = wanted.get("capture") or {}
        self._file = folder.evidence(rank).open("w")
        self._items: dict[str, str] = {}
        self._flushed = 0
        """The last step whose items are written; what is logged later in the same step is written at once."""
        self._repeats: dict[tuple[int, str], int] = {}
        self._holdings = Holdings()
        self._lanes: dict[int, dict[str, Any]] = {}

    def after_lane(self, lane: int, slot: Slot, weight: float, explicit: bool) -> None:
        """A lane's gradients, before they are weighted and added: those of its first pass are written.

        Args:
            lane: the lane.
            slot: its gradients; not changed.
            weight: what it counts, as the step will use it.
            explicit: whether the script passed `weight=`.
        """
        if not self.plain or lane in self._lanes:
            return
        self._lanes[lane] = {"weight": weight, "explicit": explicit, "dtypes": [_dtype(flat) for flat in slot.flats]}
        values = torch.cat([flat.detach().float().cpu() for flat in slot.flats])
        values[:: _stride(values.numel())].contiguous().numpy().tofile(
            self._folder.path / "evidence" / f"lane-{lane:05d}.f32"
        )

    def after_pass(
        self, step: int, number: int, numbers: tuple[float | None, float], models: Sequence[nn.Module]
    ) -> None:
        """The gradients of a pass are complete.

        Args:
            step: of the run.
            number: counts the step's passes from 1.
            numbers: the loss, and the norm of all gradients.
            models: that were prepared.
        """
        loss, norm = numbers
        if self.plain and step == 1 and number == 1:
            self._write_lanes(models)
        self._holdings.after_lanes(models)
        suffix = f" (pass {number})" if number > 1 else ""
        self._items[f"loss{suffix}"] = "none" if loss is None else loss.hex()
        gradients = {name: p.grad for name, p in _named(models, "parameters") if p.grad is not None}
        for name, gradient in gradients.items():
            self._record(step, f"gradient {name}{suffix}", gradient)
        self._items[f"norm of all gradients{suffix}"] = norm.hex()

    def _write_lanes(self, models: Sequence[nn.Module]) -> None:
        norms = [module for model in models for module in model.modules() if isinstance(module, BatchNorm)]
        told = {"lanes": self._lanes, "batch_norms": len(norms), "autocast": autocast_dtypes()}
        (self._folder.path / "evidence" / "lanes.json").write_text(json.dumps(told))

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """The script logged or averaged these; a name that comes again in a step is counted."""
        items = {}
        for name, value in values.items():
            repeat = self._repeats[step, name] = self._repeats.get((step, name), 0) + 1
            items[f"value {name}" if repeat == 1 else f"value {name} ({repeat})"] = float(value).hex()
        self._items |= items
        if step <= self._flushed:
            self._flush(step)

    def after_step(
        self,
        step: int,
        models: Sequence[nn.Module],
        taken: Sequence[Any],
        is_here: Callable[[Tensor], bool],
        state_of: Callable[[Optimizer], Mapping[Any, Any]],
    ) -> None:
        """The body of a step is finished. Ends the script after the last step that is wanted.

        Args:
            step: of the run.
            models: that were prepared.
            taken: everything that was prepared.
            is_here: whether this rank looks after a buffer, and not another stage of the model.
            state_of: an optimizer's state by parameter, each one whole.
        """
        for name, buffer in _named(models, "buffers"):
            if is_here(buffer):
                self._record(step, f"buffer {name}", buffer)
        names: dict[int, str] = {}
        for name, parameter in _named(models, "parameters"):
            self._record(step, f"parameter {name}", parameter)
            names.setdefault(id(parameter), name)
        optimizers = [thing for thing in taken if isinstance(thing, Optimizer)]
        for number, optimizer in enumerate(optimizers, 1):
            prefix = f"optimizer {number}: " if len(optimizers) > 1 else "optimizer "
            self._groups(step, prefix, optimizer.param_groups)
            self._states(step, prefix, state_of(optimizer), names)
        for other in taken:
            if not isinstance(other, (Optimizer, nn.Module)) and hasattr(other, "state_dict"):
                self._state(step, f"script {type(other).__name__}", other.state_dict())
        for name, thing in self._holdings.after_step(models, taken):
            self._state(step, f"script {name}", thing.state_dict() if hasattr(thing, "state_dict") else thing)
        self._repeats = {place: count for place, count in self._repeats.items() if place[0] == step}
        self._flush(step)
        if step >= self._last_step:
            raise SystemExit(0)

    def _groups(self, step: int, prefix: str, groups: Sequence[Mapping[str, Any]]) -> None:
        for number, group in enumerate(groups):
            of_group = f" of group {number}" if len(groups) > 1 else ""
            for key, value in group.items():
                if key != "params":
                    self._state(step, f"{prefix}{key}{of_group}", value)

    def _states(self, step: int, prefix: str, states: Mapping[Any, Any], names: Mapping[int, str]) -> None:
        for parameter, state in states.items():
            if isinstance(parameter, Tensor):
                for key, value in state.items():
                    self._state(step, f"{prefix}{key} of {names.get(id(parameter), '?')}", value)

    def _state(self, step: int, name: str, value: Any) -> None:
        for path, leaf in _leaves(name, value):
            if isinstance(leaf, Tensor):
                self._record(step, path, leaf)
            else:
                self._items.setdefault(path, leaf.hex() if isinstance(leaf, float) else repr(leaf))

    def _record(self, step: int, item: str, tensor: Tensor) -> None:
        if item not in self._items and not tensor.is_meta:
            self._items[item] = tensor_hash(tensor)
            if self._capture and (step, item) == (self._capture["step"], self._capture["item"]):
                self._write_values(tensor)

    def _write_values(self, tensor: Tensor) -> None:
        values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        stride = _stride(values.numel())
        values = values.reshape(-1)[::stride].cpu()
        wide = values.to(torch.float64) if values.is_floating_point() else values.to(torch.int64)
        code = "d" if values.is_floating_point() else "q"
        told = {"dtype": _dtype(tensor), "shape": list(tensor.shape), "code": code, "stride": stride}
        path = self._folder.path / "evidence" / f"values-{self._rank:05d}"
        path.with_suffix(".json").write_text(json.dumps(told))
        wide.contiguous().numpy().tofile(path.with_suffix(".bin"))

    def _flush(self, step: int) -> None:
        if self._items:
            self._file.write(json.dumps({"step": step, "items": self._items}) + "\n")
            self._file.flush()
        self._items = {}
        self._flushed = step


def _stride(num_elements: int) -> int:
    return max(-(-num_elements // MAX_COMPARED), 1)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _named(models: Sequence[nn.Module], kind: str) -> Iterator[tuple[str, Any]]:
    for number, model in enumerate(models):
        label = f"{type(model).__name__}{number or ''}." if len(models) > 1 else ""
        named = model.named_parameters() if kind == "parameters" else model.named_buffers()
        for name, tensor in named:
            yield f"{label}{name}", tensor


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    elif isinstance(value, (list, tuple)) and len(value) <= MAX_LIST:
        for number, item in enumerate(value):
            yield from _leaves(f"{path}.{number}", item)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        yield path, torch.from_numpy(np.ascontiguousarray(value))
    elif isinstance(value, np.generic):
        yield path, value.item()
    elif isinstance(value, (Tensor, int, float, str, bool, type(None))):
        yield path, value
