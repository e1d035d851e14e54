"""Stages in one process: consecutive layers on the GPUs of one rank, as if by `.to("cuda:0")`, `.to("cuda:1")`.

The whole graph stays in one process, so forward and backward are torch's own; only what goes into a stage's first layer
is moved. One GPU works at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.machine.torch_private import pytree
from samebits.rank.strategy.optimizer_kinds import follow_parameters
from samebits.rank.strategy.other_users import refuse_named
from samebits.rank.strategy.replica.model_layout import ModelLayout
from samebits.rank.strategy.stages.contract import Arguments, Gate, Passing, Stages
from samebits.rank.strategy.stages.cutting.model_cut import ModelCut
from samebits.rank.strategy.stages.replaced_method import replace_method
from samebits.rank.strategy.stages.results import with_tensors
from samebits.rank.strategy.stages.tied_parameters import StandIns


class DeviceStages(Stages):
    """The stages of a model on several devices of this process.

    Args:
        devices: one for each stage; batches are on the first, and results come back to it.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.num_stages = len(devices)
        self._devices = list(devices)
        self._drawing = self._devices[0]
        """Where the forward draws its random numbers now."""
        self._gates: list[Gate] = []
        self._stand_ins: list[StandIns] = []
        self._undo: list[Callable[[], None]] = []
        self._optimizers: list[Optimizer] = []
        self._borrowed: dict[str, Tensor] = {}
        """Parameters of earlier stages on the device of the current one, with their graph."""

    def install(self, model: nn.Module, cut: ModelCut, used: Collection[str], layout: ModelLayout) -> None:
        named = [*model.named_parameters(), *model.named_buffers()]
        moved = [(name, tensor) for name, tensor in named if tensor.device != self._devices[cut.holders.get(name, 0)]]
        fix = "Drop the view, because its layer moves to another device, or use --strategy ddp."
        refuse_named([name for name, _ in moved], used, fix)
        homes = {id(tensor): self._devices[cut.holders.get(name, 0)] for name, tensor in named}
        for tensor in model.buffers():
            tensor.data = tensor.data.to(homes[id(tensor)])
        for part, device in zip(cut.stages, self._devices, strict=True):
            if part.entry is not None:
                passing = self._moving_to(device, model, part.borrowed)
                self._gates.append(Gate(model, part.entry, passing, _coming_back_to(device)))
        self._undo = [replace_method(model, "forward", self._run(model.forward)), *(g.remove for g in self._gates)]
        layout.lay_out(compact=True, place=lambda parameter: homes[id(parameter)])
        for optimizer in self._optimizers:
            follow_parameters(optimizer)

    def take_optimizer(self, optimizer: Optimizer, declared: str | None) -> None:  # noqa: ARG002 - it updates all
        self._optimizers.append(optimizer)

    def _run(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            for gate in self._gates:
                gate.count = 0
            self._borrowed.clear()
            self._drawing = self._devices[0]
            try:
                result = forward(*args, **kwargs)
                self._draw_on(self._devices[0])
                return with_tensors(result, lambda tensor: tensor.to(self._devices[0]))
            finally:
                for gate in self._gates:
                    gate.count = None
                self._put_back()

        return run

    def _moving_to(self, device: torch.device, model: nn.Module, names: Sequence[str]) -> Passing:
        """Move what goes into a stage's first layer to its device, along with the parameters also used there."""
        own, stand_ins = {name: model.get_parameter(name) for name in names}, StandIns(model, names)
        self._stand_ins.append(stand_ins)

        def passing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            self._draw_on(device)
            self._borrowed.update(
                {name: self._borrowed.get(name, parameter).to(device) for name, parameter in own.items()}
            )
            stand_ins.use([self._borrowed[name] for name in names])
            return _moved(args, kwargs, device)

        return passing

    def _draw_on(self, device: torch.device) -> None:
        """Let the device's generator continue where the one of the stage before has stopped, as on one device."""
        if device != self._drawing:
            torch.cuda.set_rng_state(torch.cuda.get_rng_state(self._drawing), device)
            self._drawing = device

    def _put_back(self) -> None:
        for stand_ins in self._stand_ins:
            stand_ins.put_back()

    def close(self) -> None:
        for undo in self._undo:
            undo()


def _coming_back_to(device: torch.device) -> Passing:
    """For a layer that is computed again in the backward: its random numbers are those that it drew before."""

    def passing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        # A checkpoint restores the generators of the devices where its arguments are, which is the stage before.
        places = {leaf.device for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)} - {device}
        for place in (place for place in places if place.type == "cuda"):
            torch.cuda.set_rng_state(torch.cuda.get_rng_state(place), device)
        return _moved(args, kwargs, device)

    return passing


def _moved(args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Arguments:
    moved: Arguments = pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), (args, kwargs))
    return moved
