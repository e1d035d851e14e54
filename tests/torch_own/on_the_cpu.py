"""Code that is written for GPUs, run on the CPU: each device that it names becomes the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def is_gpu(value: Any) -> bool:
    """Whether an argument says `cuda`, `cuda:1` or a device of that kind."""
    return (isinstance(value, str) and value.partition(":")[0] == "cuda") or (
        isinstance(value, torch.device) and value.type == "cuda"
    )


class _DevicesReplaced(TorchFunctionMode):
    """In every function of torch that takes a device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], CPU, *args[2:])
        if kwargs.get("device") is not None:
            kwargs["device"] = CPU
        return func(*(CPU if is_gpu(each) else each for each in args), **kwargs)


class _OnCpu(DistributedDataParallel):
    """Without `device_ids`, which are for GPUs."""

    def __init__(
        self, module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, **named: Any
    ) -> None:
        super().__init__(module, **named)


@contextlib.contextmanager
def on_the_cpu() -> Iterator[None]:
    """While this is open, requested GPUs are the CPU. What asks torch.cuda for more than a device still fails."""
    from torch.testing._internal.distributed import distributed_test

    def unmoved(module: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        return module

    to = torch.nn.Module.to

    def moved(module: torch.nn.Module, *arguments: Any, **named: Any) -> torch.nn.Module:
        if arguments and (type(arguments[0]) is int or is_gpu(arguments[0])):
            return module
        return to(module, *arguments, **named)

    with contextlib.ExitStack() as stack:
        for owner, name, instead in (
            (torch.nn.Module, "cuda", unmoved),
            (torch.nn.Module, "to", moved),
            (torch.nn.parallel, "DistributedDataParallel", _OnCpu),
            (distributed_test, "DistributedDataParallel", _OnCpu),
            (torch.cuda, "set_device", lambda _: None),
            (torch.cuda, "synchronize", lambda _=None: None),
            (torch.cuda, "device", lambda _: contextlib.nullcontext()),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        stack.enter_context(_DevicesReplaced())
        yield
