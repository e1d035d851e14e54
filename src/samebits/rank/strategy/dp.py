"""`dp`: torch's DataParallel. One rank with a replica of the model per device; forwards are scattered and gathered.

It is for comparison and for small scripts: ddp copies no model in a forward, and is not held up by the GIL. Everything
but the forward is as on one rank. The bits are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.layout.cut import StepCut
from samebits.rank.strategy.agreement import refuse_spread
from samebits.rank.strategy.contract import OpenLane, OrderedPass, Pass, PassResult, Strategy
from samebits.rank.strategy.delegating import DelegatingStrategy
from samebits.rank.strategy.split_forward import SplitForward


class DataParallel(DelegatingStrategy):
    """One rank whose models run on several devices, or on several threads of the CPU.

    Args:
        inner: the strategy of one rank.
        copies: the number of replicas; 0: one for each CUDA device, or one on the CPU.
    """

    def __init__(self, inner: Strategy, copies: int) -> None:
        super().__init__(inner)
        self._copies = copies
        self._split: dict[int, SplitForward] = {}
        self._is_checked = False
        """Whether a first pass, which checks that the script calls the model, has begun."""

    def adopt(self, models: Sequence[nn.Module]) -> None:
        refuse_spread(models, self.name)
        for model in models:
            if id(model) not in self._split:
                _refuse_what_cannot_be_replicated(model)
        self._inner.adopt(models)
        for model in models:
            devices = replica_devices(self._copies, _device_of(model), torch.cuda.device_count())
            if len(devices) > 1 and id(model) not in self._split:
                self._split[id(model)] = SplitForward(model, devices)
                self._split[id(model)].hang()

    def begin_pass(self, cut: StepCut, where: str) -> Pass | OrderedPass:
        current = self._inner.begin_pass(cut, where)
        if self._is_checked or not self._split or not isinstance(current, Pass):
            return current
        return _FirstPass(current, list(self._split.values()), self._checked)

    def _checked(self) -> None:
        self._is_checked = True

    def close(self) -> None:
        for forward in self._split.values():
            forward.take_away()
        self._split.clear()
        self._inner.close()


class _FirstPass(Pass):
    """The pass whose end checks whether the script has called the model itself."""

    def __init__(self, inner: Pass, split: Sequence[SplitForward], checked: Callable[[], None]) -> None:
        self._inner, self._split, self._checked = inner, split, checked

    def begin_lane(self, lane: int) -> OpenLane:
        return self._inner.begin_lane(lane)

    def end(self, rows: Mapping[str, Any], seen: int) -> PassResult:
        self._checked()
        if not any(forward.num_calls for forward in self._split):
            say(
                "dp splits model(...), but the first step called only other methods of the model, which run in "
                "one piece. Call the model itself, or use --strategy ddp."
            )
        return self._inner.end(rows, seen)

    def abandon(self) -> None:
        self._inner.abandon()


def replica_devices(copies: int, device: torch.device, num_gpus: int) -> list[torch.device]:
    """Return the device of each replica. The model's own comes first.

    Raises:
        UsageError: for more replicas than GPUs.
    """
    if device.type == "cpu":
        return [device] * max(copies, 1)
    if copies > num_gpus:
        raise UsageError(
            f"{copies} replicas need {copies} GPUs, but torch sees {num_gpus}.", f"Start with -n {num_gpus}."
        )
    others = [torch.device(device.type, index) for index in range(num_gpus) if index != device.index]
    return [device, *others][: copies or num_gpus]


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _refuse_what_cannot_be_replicated(model: nn.Module) -> None:
    if any(_is_compiled(module) for module in model.modules()):
        raise UsageError(
            f"{type(model).__name__} is compiled, and dp makes new replicas of its modules in every forward, each of "
            "which would be compiled again.",
            "Prepare the model without torch.compile, or use --strategy ddp.",
        )
    if "forward" in model.__dict__:
        raise UsageError(
            f"{type(model).__name__}.forward was replaced on the object, so its replicas would run the original "
            "object's.",
            "Write forward as a method of the class, or use --strategy ddp.",
        )


def _is_compiled(module: nn.Module) -> bool:
    compiled = "_orig_mod" in module._modules or module._compiled_call_impl is not None  # noqa: SLF001 - what torch.compile leaves
    return compiled or isinstance(module, torch.jit.ScriptModule)
