"""What the parts of a model between places cost: forward and backward of one lane, measured, without side effects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.strategy.trace import Place, arguments
from lockstep.torch_private import pytree

REPEATS = 3
"""The least of so many measurements counts; others on the machine only ever make one longer."""


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Whatever forwards inside do to buffers is undone."""
    kept = [
        (module, key, buffer, buffer.clone())
        for module in model.modules()
        for key, buffer in module._buffers.items()  # noqa: SLF001 - named_buffers does not say which module
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, key, buffer, value in kept:
                buffer.copy_(value)
                module._buffers[key] = buffer  # noqa: SLF001


def measure(model: nn.Module, forward: Callable[[], Any], places: Sequence[Place]) -> list[float]:
    """Seconds of each part: from the begin to the first place, between places, from the last one to the end.

    `forward` calls the model once; gradients go nowhere. Wrap in `unchanged`.
    """
    best = [float("inf")] * (len(places) + 1)
    for _ in range(REPEATS):
        best = list(map(min, best, _once(model, forward, places)))
    return best


def _once(model: nn.Module, forward: Callable[[], Any], places: Sequence[Place]) -> list[float]:
    order = {place.module: number for number, place in enumerate(places)}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    forwards, backwards = [0.0] * len(places), [0.0] * len(places)

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        number = order[names[module]]
        forwards[number] = _now(device)
        for position in places[number].carried:
            tensor = arguments(args, kwargs)[position]
            if tensor.requires_grad:
                tensor.register_hook(lambda _: backwards.__setitem__(number, _now(device)))

    names = {module: name for name, module in model.named_modules() if name in order}
    handles = [module.register_forward_pre_hook(enter, with_kwargs=True) for module in names]
    try:
        begin = _now(device)
        with torch.enable_grad():
            result = forward()
        middle = _now(device)
    finally:
        for handle in handles:
            handle.remove()
    total = [
        leaf.float().sum() for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    if total and parameters:
        torch.autograd.grad(torch.stack(total).sum(), parameters, allow_unused=True)
    end = _now(device)
    ahead = [begin, *forwards, middle]
    back = [end, *(moment or middle for moment in backwards), middle]
    return [
        max(ahead[part + 1] - ahead[part], 0.0) + max(back[part] - back[part + 1], 0.0)
        for part in range(len(places) + 1)
    ]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
