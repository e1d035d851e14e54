"""A strategy that leaves everything to an inner one; subclasses replace what they do differently.

The delegation is written out here once, so their files hold only the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.protocol.layout.cut import StepCut
from samebits.rank.strategy.contract import OrderedPass, Pass, Strategy


class DelegatingStrategy(Strategy):
    """A strategy that passes every call on to `inner`.

    Args:
        inner: the strategy that does the work.
    """

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self.name = inner.name
        self.placement = inner.placement
        # The inner strategy makes the lanes, and scales the losses.
        self.observers, self.precision = inner.observers, inner.precision

    def bring(self, model: nn.Module, device: torch.device) -> None:
        self._inner.bring(model, device)

    def adopt(self, models: Sequence[nn.Module]) -> None:
        self._inner.adopt(models)

    def begin_pass(self, cut: StepCut, where: str) -> Pass | OrderedPass:
        return self._inner.begin_pass(cut, where)

    def clip_grad_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float) -> float:
        return self._inner.clip_grad_norm(parameters, max_norm, norm_type)

    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        return self._inner.gradient_norm(parameters, norm_type)

    def checksums(self, *, only_moving: bool = False) -> list[int]:
        return self._inner.checksums(only_moving=only_moving)

    def tensors(self, *, only_moving: bool = False) -> list[tuple[str, Tensor]]:
        return self._inner.tensors(only_moving=only_moving)

    def restore_buffers(self) -> list[str]:
        return self._inner.restore_buffers()

    def keep_buffers(self) -> None:
        self._inner.keep_buffers()

    def before_update(self, optimizer: Optimizer) -> None:
        self._inner.before_update(optimizer)

    def take_optimizer(self, optimizer: Optimizer, updates_by: str | None, require_same: Callable[[str], None]) -> None:
        self._inner.take_optimizer(optimizer, updates_by, require_same)

    def whole_state(self, optimizer: Optimizer, *, everyone: bool) -> Mapping[Any, Any]:
        return self._inner.whole_state(optimizer, everyone=everyone)

    def carry_buffers(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        self._inner.carry_buffers(modules)

    def set_buffer_rules(self, rules: Mapping[str, str]) -> None:
        self._inner.set_buffer_rules(rules)

    def name_cuts(self, layers: Sequence[str]) -> None:
        self._inner.name_cuts(layers)

    def take_waited_s(self) -> float:
        return self._inner.take_waited_s()

    @property
    def gradient_bytes(self) -> int:
        return self._inner.gradient_bytes

    def report(self) -> dict[str, Any] | None:
        return self._inner.report()

    def holder_of(self, tensor: Tensor) -> int | None:
        return self._inner.holder_of(tensor)

    def close(self) -> None:
        self._inner.close()
