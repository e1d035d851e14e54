"""Whether lanes pass tensors to each other: `samebits verify` looks on one rank, when losses differ although samples do not.

A recurrent state in a variable of the script goes from lane to lane on one rank, and starts anew on another. This mode sees
every operation of torch: memory that an operation inside a lane makes or writes belongs to that lane, and what the next lane
computes from it depends on it.

Parameters and buffers belong to no lane, nor does what samebits itself computes. What goes through NumPy or Python
numbers is not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from samebits.machine.torch_private import TorchDispatchMode, pytree
from samebits.protocol.recording import CarriedTensor
from samebits.rank.caller import PACKAGE
from samebits.rank.checks.look.frames import is_a_frame_of_the_script
from samebits.rank.recording.evidence_file import dtype_name
from samebits.rank.run.position.moment import LoopPosition, Region
from samebits.rank.strategy.contract import LaneObserver

ENOUGH = 2
"""In how many lanes a loss must depend on what came from the lane before."""


@dataclass
class _Made:
    """What is known of a piece of memory."""

    memory: StorageWeakRef
    """Keeps the address from being given to other memory."""
    lane: int
    """The number of the lane among all that this rank has carried."""
    at: str
    depends_on: CarriedTensor | None


class LaneWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Entered by `begin`, and never left.

    Args:
        position: where the script is.
        models: the prepared ones; the list may still grow.
        path: where to write the first tensor that losses depend on.
    """

    def __init__(self, position: LoopPosition, models: Sequence[nn.Module], path: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._position, self._models, self._path = position, models, path
        self.observer = _Lanes(self)
        """Reports lanes and losses to it."""
        self._made: dict[int, _Made] = {}
        self._lane = 0
        self._of_models: set[int] = set()
        self._seen: dict[str, set[int]] = {}
        """Lanes whose losses depend on the lane before, by the line that uses it."""

    def begin(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def begin_lane(self) -> None:
        self._lane += 1
        # Memory that was freed may come back at the same address, for something else.
        self._made = {address: made for address, made in self._made.items() if not made.memory.expired()}  # type: ignore[no-untyped-call]
        owned = [tensor for model in self._models for tensor in (*model.parameters(), *model.buffers())]
        self._of_models = {_address(tensor) for tensor in _tensors(owned)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        frame = _frame_of_the_script() if self._position.region is Region.LANE else None
        if frame is None:
            return func(*args, **kwargs)
        given = list(_tensors((args, kwargs)))
        carried = self._carried_by(given, frame)
        result = func(*args, **kwargs)
        written = given if func._schema.is_mutable else []  # noqa: SLF001 - the only way to ask
        viewed = set() if written else {_address(tensor) for tensor in given}
        for tensor in _tensors(result):
            if _address(tensor) not in viewed | self._of_models:
                self._note(tensor, carried, frame)
        return result

    def _carried_by(self, given: Sequence[Tensor], frame: FrameType) -> CarriedTensor | None:
        """What the arguments depend on: they come from the lane before, or were computed from what did."""
        for tensor in given:
            made = self._made.get(_address(tensor))
            if made is None or made.memory.expired():  # type: ignore[no-untyped-call]
                continue
            if made.lane == self._lane - 1:
                name = _name_of(tensor, frame)
                return CarriedTensor(tuple(tensor.shape), dtype_name(tensor), made.at, _line(frame), name)
            if made.lane == self._lane and made.depends_on is not None:
                return made.depends_on
        return None

    def _note(self, tensor: Tensor, carried: CarriedTensor | None, frame: FrameType) -> None:
        """Note that the current lane made the memory of `tensor`, or wrote to it."""
        made = self._made.get(_address(tensor))
        if made is not None and made.lane == self._lane:
            made.depends_on = carried or made.depends_on
        else:
            memory = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._made[_address(tensor)] = _Made(memory, self._lane, _line(frame), carried)

    def look_at_loss(self, loss: Tensor) -> None:
        """Look at a loss before its backward."""
        made = self._made.get(_address(loss))
        if made is None or made.depends_on is None:
            return
        lanes = self._seen.setdefault(made.depends_on.used_at, set())
        lanes.add(self._lane)
        # [Note: why a dependence counts only in two lanes' losses]
        # A sum of losses over lanes changes no loss, and a mask that the first lane makes for all others is made once.
        if len(lanes) == ENOUGH and not self._path.exists():
            made.depends_on.write(self._path)


class _Lanes(LaneObserver):
    def __init__(self, watch: LaneWatch) -> None:
        self._watch = watch

    def begins(self, lane: int) -> None:  # noqa: ARG002
        self._watch.begin_lane()

    def has_loss(self, loss: Tensor) -> None:
        self._watch.look_at_loss(loss)


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and _has_memory(leaf))


def _has_memory(tensor: Tensor) -> bool:
    try:
        return tensor.untyped_storage() is not None
    except (RuntimeError, NotImplementedError):
        # Sparse, or a subclass without memory of its own.
        return False


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - what StorageWeakRef goes by, too


def _frame_of_the_script() -> FrameType | None:
    """The script's innermost frame; None when the operation is our own, between the script and torch."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.stack() costs milliseconds
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE) and file != __file__:
            return None
        if is_a_frame_of_the_script(frame):
            return frame
        frame = frame.f_back
    return None


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def _name_of(tensor: Tensor, frame: FrameType) -> str:
    """The variable of the frame, or the attribute of its `self`, with the memory of `tensor`."""
    address = _address(tensor)
    attributes = getattr(frame.f_locals.get("self"), "__dict__", {})
    named = [*frame.f_locals.items(), *((f"self.{name}", value) for name, value in attributes.items())]
    for name, value in [*named, *frame.f_globals.items()]:
        if any(_address(held) == address for held in _tensors(value)):
            return name
    return ""
