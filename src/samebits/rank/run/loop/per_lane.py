"""`run.per_lane`: a value for each lane, which a lane hands on to itself in the next step.

A hidden state of truncated backpropagation, an environment, a buffer of recent samples. A plain variable would go from lane to
lane, in an order that depends on the ranks. Here each lane reads what it left itself. Behind the lanes ranks exchange what
was written, so every rank has the values of all lanes: they are in every state, and outlive the rank that made them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.rank.caller import where
from samebits.rank.checkpoint.parts.tracking import track
from samebits.rank.position.exact_json import decode, encode
from samebits.rank.position.moment import Region
from samebits.rank.position.run_state import RunState

CALL, NAME = "run.per_lane", "per_lane"
FORM = "    hidden = run.per_lane(lambda: torch.zeros(1, 128))\n    for batch in step:\n        out, new = model(batch, hidden.value)\n        hidden.value = new.detach()"


class PerLane:
    """What `run.per_lane` returns: `value` is that of the lane whose batch the loop is at."""

    def __init__(self, run: RunState, make: Callable[[], Any]) -> None:
        self._run, self._make = run, make
        self._values: dict[int, Any] = {}
        """By lane, the same on every rank."""
        self._open: dict[int, Any] = {}
        """What this rank's lanes have read or written in the open pass."""

    @property
    def value(self) -> Any:
        """The lane's value: what it was at the end of the step before, or what `make` returns. It may be changed in place.

        Raises:
            UsageError: outside a step's lanes, and for a value that no state can hold.
        """
        lane = self._lane()
        if lane not in self._open:
            # A copy, so that a pass that is given up leaves nothing behind.
            self._open[lane] = copy.deepcopy(self._values[lane]) if lane in self._values else self._make()
        return self._open[lane]

    @value.setter
    def value(self, value: Any) -> None:
        lane = self._lane()
        _check(value)
        self._open[lane] = value

    def reset(self) -> None:
        """Let every lane begin anew with what `make` returns. Collective: call it on every rank, outside lanes."""
        self._run.loop_state.position.require_same_on_every_rank("per_lane.reset")
        self._values.clear()

    def state_dict(self) -> dict[str, Any]:
        """The values of all lanes that have one."""
        return {"lanes": self._num_lanes, "values": {str(lane): self._values[lane] for lane in sorted(self._values)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the values of a state.

        Raises:
            UsageError: where they are of another number of lanes.
        """
        if state["lanes"] != self._num_lanes:
            raise UsageError(
                f"The state has values of {CALL} for {state['lanes']} lanes, but this run has {self._num_lanes}.",
                f"Start with --lanes {state['lanes']}.",
            )
        self._values = {int(lane): value for lane, value in state["values"].items()}

    @property
    def _num_lanes(self) -> int:
        return self._run.config.placement.num_lanes

    def _lane(self) -> int:
        position = self._run.loop_state.position
        if position.region is not Region.LANE:
            raise UsageError("A value for each lane is known inside the step's lanes only.", f"Use it there:\n{FORM}")
        return position.lane

    def take_open(self) -> dict[int, Any]:
        """What this rank's lanes have read or written in the open pass; it has nothing afterwards."""
        left, self._open = self._open, {}
        return left

    def put(self, values: Mapping[int, Any]) -> None:
        """Take what lanes on any rank left."""
        self._values.update(values)


def per_lane(run: RunState, make: Callable[[], Any]) -> PerLane:
    """See `Run.per_lane`."""
    mesh, made = run.config.mesh, run.loop_state.prepared.per_lane
    if mesh.stages > 1 or mesh.asynchronous:
        raise UsageError(
            f"{CALL} needs each lane on one rank, which {run.components.strategy.name} does not have.",
            "Use --strategy ddp or zero1.",
        )
    if not callable(make):
        raise UsageError(
            f"{CALL} takes a function that makes a lane's first value, but got a {type(make).__name__}.",
            f"Write it like this:\n{FORM}",
        )
    one = PerLane(run, make)
    track(run, {f"{NAME}_{len(made) + 1}" if made else NAME: one})
    made.append(one)
    return one


def forget_open(run: RunState) -> None:
    """Forget what a pass has left that was given up."""
    for one in run.loop_state.prepared.per_lane:
        one.take_open()


def share_values(run: RunState) -> None:
    """Let every rank know what the lanes of the pass left. Collective, as the pass ends, where something is kept."""
    kept: Sequence[PerLane] = run.loop_state.prepared.per_lane
    mine = [one.take_open() for one in kept]
    for value in (value for values in mine for value in values.values()):
        _check(value)
    transport = run.components.transport
    if transport.world_size == 1:
        for one, values in zip(kept, mine, strict=True):
            one.put(values)
        return
    tensors: list[Tensor] = []
    documents = [{str(lane): _encoded(value, tensors) for lane, value in values.items()} for values in mine]
    packed = [_bytes_of(one) for one in tensors]
    forms = [[str(one.dtype), list(one.shape), one.device.type] for one in tensors]
    gathered = transport.all_gather_object([documents, forms, sum(map(len, packed))], CALL, where())
    padded = torch.zeros(max(size for _, _, size in gathered), dtype=torch.uint8, device=run.config.device)
    if packed:
        data = torch.cat(packed)
        padded[: len(data)].copy_(data)
    pieces = transport.all_gather(padded) if len(padded) else [padded] * len(gathered)
    for (of_rank, kinds, _), piece in zip(gathered, pieces, strict=True):
        found = enumerate(_unpacked(kinds, piece.cpu(), run.config.device))
        take = {str(number): tensor for number, tensor in found}.__getitem__
        for one, values in zip(kept, of_rank, strict=True):
            one.put({int(lane): decode(document, take) for lane, document in values.items()})


def _check(value: Any) -> None:
    def keep(path: str, tensor: Tensor) -> str:
        if tensor.requires_grad:
            raise UsageError(
                "A value for each lane must not hold a graph of this step: the next one would follow it, or need it twice.",
                "Use new.detach(): hidden.value = new.detach().",
            )
        return path

    encode(value, "the value of a lane", keep)


def _encoded(value: Any, tensors: list[Tensor]) -> Any:
    def keep(_: str, tensor: Tensor) -> str:
        tensors.append(tensor)
        return str(len(tensors) - 1)

    return encode(value, "the value of a lane", keep)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _unpacked(forms: Sequence[Sequence[Any]], data: Tensor, device: torch.device) -> list[Tensor]:
    found, start = [], 0
    for name, shape, kind in forms:
        dtype = getattr(torch, name.removeprefix("torch."))
        count = torch.Size(shape).numel() * dtype.itemsize
        tensor = data[start : start + count].clone().view(dtype).reshape(shape)
        found.append(tensor.to(device) if kind == device.type else tensor)
        start += count
    return found
