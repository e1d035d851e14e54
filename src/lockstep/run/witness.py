"""What `lockstep verify` records in a rank: after each step a hash of everything that should not depend on the ranks.

One JSON object per line in the evidence folder: `{"step": 3, "items": {"parameter fc.weight": "9f…", …}}`. Items stand
in the order in which a difference would spread: loss, gradients, buffers, parameters, optimizer, the script's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.layout.run_folder import RunFolder
from lockstep.strategy.agreement import tensor_hash
from lockstep.strategy.gradients import Slot
from lockstep.strategy.norm import gradient_norm

_OWN = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))
MAX_COMPARED = 2_000_000
"""Gradients of more elements than this are compared on every k-th element."""


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
        self._lanes_written: set[int] = set()

    def after_pass(self, step: int, number: int, loss: float | None, models: Sequence[nn.Module]) -> None:
        """The gradients of a pass are complete."""
        suffix = f" (pass {number})" if number > 1 else ""
        self._items[f"loss{suffix}"] = "none" if loss is None else loss.hex()
        gradients = {name: p.grad for name, p in _named(models, "parameters") if p.grad is not None}
        self._items[f"gradient norm{suffix}"] = gradient_norm(list(gradients.values()), 2.0).hex()
        for name, gradient in gradients.items():
            self._record(step, f"gradient {name}{suffix}", gradient)

    def after_lane(self, lane: int, slot: Slot) -> None:
        """A lane's gradients, before they are weighted and added: written once for each lane."""
        if self.plain and lane not in self._lanes_written:
            self._lanes_written.add(lane)
            values = torch.cat([flat.detach().float().cpu() for flat in slot.flats])
            stride = -(-len(values) // MAX_COMPARED)
            values[::stride].numpy().astype(np.float32).tofile(self._folder.path / "evidence" / f"lane-{lane:05d}.f32")

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """The script logged or averaged these."""
        for name, value in values.items():
            self._items[f"value {name}"] = float(value).hex()
            self._write(step, {f"value {name}": float(value).hex()})

    def after_step(self, step: int, models: Sequence[nn.Module], taken: Sequence[Any]) -> None:
        """The body of a step is finished. Ends the script after the last step that is wanted."""
        for name, buffer in _named(models, "buffers"):
            self._record(step, f"buffer {name}", buffer)
        for name, parameter in _named(models, "parameters"):
            self._record(step, f"parameter {name}", parameter)
        known = {id(thing) for thing in taken}
        optimizers = [thing for thing in taken if isinstance(thing, Optimizer)]
        for number, optimizer in enumerate(optimizers):
            self._state(step, f"optimizer{number or ''}", optimizer.state_dict())
        others = [thing for thing in taken if not isinstance(thing, (Optimizer, nn.Module)) and hasattr(thing, "state_dict")]
        for other in others:
            self._state(step, type(other).__name__, other.state_dict())
        for name, thing in _holders(known):
            self._state(step, f"script {name}", thing if isinstance(thing, dict) else thing.state_dict())
        self._write(step, self._items)
        self._items = {}
        if step >= self._last_step:
            raise SystemExit(0)

    def _state(self, step: int, name: str, value: Any) -> None:
        for path, leaf in _leaves(name, value):
            if isinstance(leaf, Tensor):
                self._record(step, path, leaf)
            else:
                self._items[path] = leaf.hex() if isinstance(leaf, float) else repr(leaf)

    def _record(self, step: int, item: str, tensor: Tensor) -> None:
        if item not in self._items:
            self._items[item] = tensor_hash(tensor)
            if self._capture and (step, item) == (self._capture["step"], self._capture["item"]):
                self._write_values(tensor)

    def _write_values(self, tensor: Tensor) -> None:
        values = tensor.detach().cpu().contiguous()
        wide = values.to(torch.float64) if values.is_floating_point() else values.to(torch.int64)
        path = self._folder.path / "evidence" / f"values-{self._rank:05d}"
        path.with_suffix(".json").write_text(
            json.dumps({"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "code": "d" if values.is_floating_point() else "q"})
        )
        wide.numpy().tofile(path.with_suffix(".bin"))

    def _write(self, step: int, items: Mapping[str, str]) -> None:
        self._file.write(json.dumps({"step": step, "items": dict(items)}) + "\n")
        self._file.flush()


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
    elif isinstance(value, (list, tuple)) and len(value) <= 64:
        for number, item in enumerate(value):
            yield from _leaves(f"{path}.{number}", item)
    elif isinstance(value, (Tensor, int, float, str, bool, type(None))):
        yield path, value


def _holders(known: set[int]) -> Iterator[tuple[str, Any]]:
    """Everything in the script's frames that has a `state_dict`, or is a dictionary of tensors, once."""
    seen = set(known)
    for frame in _script_frames():
        for name, thing in [*frame.f_locals.items(), *frame.f_globals.items()]:
            for label, candidate in [(name, thing), *_attributes(name, thing)]:
                if id(candidate) not in seen and _holds_state(candidate):
                    seen.add(id(candidate))
                    yield label, candidate


def _script_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to see the script's variables
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN) and "<frozen" not in frame.f_code.co_filename:
            yield frame
        frame = frame.f_back


def _attributes(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object of a class that the script defines (a trainer that holds its model average)."""
    if type(thing).__module__ == "__main__" and not isinstance(thing, nn.Module):
        for attribute, value in getattr(thing, "__dict__", {}).items():
            yield f"{name}.{attribute}", value


def _holds_state(thing: Any) -> bool:
    if isinstance(thing, type):
        return False
    if isinstance(thing, dict):
        return bool(thing) and all(isinstance(value, Tensor) for value in thing.values())
    module = type(thing).__module__
    return callable(getattr(thing, "state_dict", None)) and not module.startswith("lockstep.")
