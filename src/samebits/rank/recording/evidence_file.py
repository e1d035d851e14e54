"""The evidence of one rank as it is written: items of a step, one JSON object per line.

`{"step": 3, "items": {"parameter fc.weight": "9f…", …}}`. An item's value is a hash of a tensor, a number in
hexadecimal, or the text of something else; equal texts mean equal bits. An item recorded twice in a step counts the
first time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samebits.machine.torch_private import BatchNorm
from samebits.protocol.recording import NAN_MARK
from samebits.rank.init.numerics import rounded_to
from samebits.rank.recording.calm import autocast_dtypes
from samebits.rank.strategy.agreement import tensor_hash
from samebits.witness.evidence import leaves

MAX_COMPARED = 2_000_000
"""Of gradients and values with more elements than this, every k-th element is written."""


class EvidenceFile:
    """Writes the items of one rank.

    Args:
        path: the file; a run that the same script began earlier may have written to it.
        capture: `step` and `item` of the one tensor whose values are wanted; empty for none.
        norms: whether the norm of each tensor is written too.
    """

    def __init__(self, path: Path, capture: Mapping[str, Any], *, norms: bool = False) -> None:
        earlier = _lines(path)
        self.number = 1 + sum("begin" in line for line in earlier)
        """Counts the runs of this process, from 1."""
        self.steps_before = max((line["last"] for line in earlier if "last" in line), default=0)
        """Steps of its earlier runs."""
        self._path, self._capture = path, capture
        self._file = path.open("a")
        self._items: dict[str, str] = {}
        self._norms: dict[str, str] | None = {} if norms else None
        self._write({"begin": self.number})

    def number_item(self, item: str, value: float | None) -> None:
        """Record a number exactly; None differs from every number."""
        self._items.setdefault(item, "none" if value is None else float(value).hex())

    def text_item(self, item: str, text: str) -> None:
        self._items.setdefault(item, text)

    def tensor_item(self, step: int, item: str, tensor: Tensor) -> None:
        """Record the hash of a tensor; one on the meta device is another rank's."""
        if item not in self._items and not tensor.is_meta:
            self._items[item] = marked_hash(tensor)
            if self._norms is not None:
                self._norms[item] = _norm(tensor).hex()
            if self._capture and (step, item) == (self._capture["step"], self._capture["item"]):
                self._write_values(tensor)

    def state_items(self, step: int, name: str, value: Any) -> None:
        """Record everything in a state that can be compared."""
        for path, leaf in leaves(name, value):
            if isinstance(leaf, Tensor):
                self.tensor_item(step, path, leaf)
            else:
                self._items.setdefault(path, leaf.hex() if isinstance(leaf, float) else repr(leaf))

    def flush(self, step: int) -> None:
        """Write what was recorded since the last time as items of `step`."""
        if self._items:
            self._write({"step": step, "items": self._items, **({"norms": self._norms} if self._norms else {})})
        self._items = {}
        self._norms = self._norms if self._norms is None else {}

    def note_last(self, step: int) -> None:
        """Note that `step` was the last one, for later runs of this process."""
        self._write({"last": step})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _write_values(self, tensor: Tensor) -> None:
        values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        stride = stride_of(values.numel())
        values = values.reshape(-1)[::stride].cpu()
        wide = values.to(torch.float64) if values.is_floating_point() else values.to(torch.int64)
        code = "d" if values.is_floating_point() else "q"
        header = {"dtype": dtype_name(tensor), "shape": list(tensor.shape), "code": code, "stride": stride}
        path = self._path.with_name(f"values-{self._path.stem.removeprefix('rank-')}")
        path.with_suffix(".json").write_text(json.dumps(header))
        wide.contiguous().numpy().tofile(path.with_suffix(".bin"))


def marked_hash(tensor: Tensor) -> str:
    """The hash of a tensor's bits, and a mark where it has a NaN."""
    floats = tensor.is_floating_point() or tensor.is_complex()
    return tensor_hash(tensor) + (NAN_MARK if floats and bool(torch.isnan(tensor.detach()).any()) else "")


def stride_of(num_elements: int) -> int:
    """The k such that every k-th of this many elements is written."""
    return max(-(-num_elements // MAX_COMPARED), 1)


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _norm(tensor: Tensor) -> float:
    values = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    wide = torch.complex128 if values.is_complex() else torch.float64
    return float(torch.linalg.vector_norm(values.to(wide)))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class LaneGradients:
    """The gradients of each lane's first pass.

    Args:
        folder: the evidence folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lanes: dict[int, dict[str, Any]] = {}

    def take(self, lane: int, gradients: Sequence[Tensor], weight: float, explicit: bool) -> None:
        """Take those of a lane that is over: a `LaneObserver`."""
        # A weight of 0: the lane has only been looked at, for `over_batch=`.
        if self._lanes.get(lane, {}).get("weight"):
            return
        self._lanes[lane] = {"weight": weight, "explicit": explicit, "dtypes": [dtype_name(flat) for flat in gradients]}
        values = torch.cat([flat.detach().float().cpu() for flat in gradients])
        values[:: stride_of(values.numel())].contiguous().numpy().tofile(self._folder / f"lane-{lane:05d}.f32")

    def after_first_pass(self, models: Sequence[nn.Module]) -> None:
        """Write them, once all lanes of the first pass are done."""
        norms = [module for model in models for module in model.modules() if isinstance(module, BatchNorm)]
        devices = {parameter.device.type for model in models for parameter in model.parameters()}
        lower = {*autocast_dtypes, *chain.from_iterable(map(rounded_to, devices))}
        found = {"lanes": self._lanes, "batch_norms": len(norms), "autocast": sorted(lower)}
        (self._folder / "lanes.json").write_text(json.dumps(found))
