"""`model_parallel` in one process: consecutive layers on the GPUs of one rank, as `.to("cuda:0")`, `.to("cuda:1")` would.

The whole graph stays in one process, so forward and backward are torch's own; only what goes into a stage's first layer
is moved. One GPU works at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.layout.placement import Placement
from lockstep.strategy.cut_at_first_call import CutAtFirstCall
from lockstep.strategy.model_cut import ModelCut
from lockstep.strategy.other_users import refuse_other_users
from lockstep.torch_private import pytree
from lockstep.transport.contract import Transport


class SeveralDevices(CutAtFirstCall):
    """The stages of a model on several devices of this process.

    Args:
        transport: all ranks; each has all stages.
        placement: lanes on ranks.
        devices: one for each stage; the first one is where batches are, and where results come back to.
    """

    def __init__(self, transport: Transport, placement: Placement, devices: Sequence[torch.device]) -> None:
        looks = transport.rank == 0
        super().__init__("model_parallel", transport, placement, transport, len(devices), looks, devices[0])
        self._devices = list(devices)
        self._moves: list[Any] = []

    def _install(self, model: nn.Module, cut: ModelCut) -> None:
        named = [*model.named_parameters(), *model.named_buffers()]
        moved = [(name, tensor) for name, tensor in named if tensor.device != self._devices[cut.holders.get(name, 0)]]
        refuse_other_users(
            moved, "Its layer goes to another device. Do without the view, or use --strategy ddp.", self._laid()
        )
        for name, tensor in named:
            stage = cut.holders.get(name, 0)
            gradient, tensor.grad = tensor.grad, None
            tensor.data = tensor.data.to(self._devices[stage])
            tensor.grad = gradient.to(self._devices[stage]) if gradient is not None else None
        for part, device in zip(cut.stages, self._devices, strict=True):
            if part.entry is not None:
                module = model.get_submodule(part.entry)
                self._moves.append(module.register_forward_pre_hook(_move_inputs(device), with_kwargs=True))
        self._moves.append(model.register_forward_hook(self._move_result))
        self._lay_out(compact=True)

    def _move_result(self, _module: nn.Module, _args: Any, result: Any) -> Any:
        return _moved(result, self._devices[0])

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        self._require_cut()
        super().backward(loss, weight, retain_graph=retain_graph)

    def close(self) -> None:
        super().close()
        for hook in self._moves:
            hook.remove()


def _move_inputs(device: torch.device) -> Callable[..., Any]:
    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _moved((args, kwargs), device)

    return hook


def _moved(tree: Any, device: torch.device) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


def spans_devices(model: nn.Module) -> bool:
    """Whether a module's author has put it on several devices already; then it is left as it is."""
    return len({tensor.device for tensor in model.parameters()}) > 1
