"""A strategy that leaves everything to another one; `hogwild` and `dp` replace the few methods in which they differ.

The delegation is written out here once, so that those files hold only what is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.strategy.contract import OnLane, PassResult, StepCut, Strategy
from lockstep.strategy.precision import Precision


class Around(Strategy):
    """Every method goes to `inner`.

    Args:
        inner: the strategy that does the work.
    """

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self.name = inner.name
        self.placement = inner.placement

    @property
    def on_lane(self) -> OnLane | None:  # one observer: the inner one's
        return self._inner.on_lane

    @on_lane.setter
    def on_lane(self, told: OnLane | None) -> None:
        self._inner.on_lane = told

    @property
    def precision(self) -> Precision:  # the inner one's too: it scales the losses
        return self._inner.precision

    @precision.setter
    def precision(self, precision: Precision) -> None:
        self._inner.precision = precision

    @property
    def seen(self) -> int:  # the inner one's too: it makes the exchange
        return self._inner.seen

    @seen.setter
    def seen(self, seen: int) -> None:
        self._inner.seen = seen

    def adopt(self, models: Sequence[nn.Module]) -> None:
        self._inner.adopt(models)

    def begin_pass(self, cut: StepCut, where: str) -> None:
        self._inner.begin_pass(cut, where)

    def begin_lane(self, lane: int) -> None:
        self._inner.begin_lane(lane)

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        self._inner.backward(loss, weight, retain_graph=retain_graph)

    def end_lane(self) -> None:
        self._inner.end_lane()

    def end_pass(self, notes: Mapping[int, Any]) -> PassResult:
        return self._inner.end_pass(notes)

    def abandon(self) -> None:
        self._inner.abandon()

    def clip_grad_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float) -> float:
        return self._inner.clip_grad_norm(parameters, max_norm, norm_type)

    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        return self._inner.gradient_norm(parameters, norm_type)

    def checksums(self) -> list[int]:
        return self._inner.checksums()

    def name_difference(self) -> str:
        return self._inner.name_difference()

    def restore_buffers(self) -> list[str]:
        return self._inner.restore_buffers()

    def keep_buffers(self) -> None:
        self._inner.keep_buffers()

    def before_update(self, optimizer: Optimizer) -> None:
        self._inner.before_update(optimizer)

    def set_buffer_rules(self, rules: Mapping[str, str]) -> None:
        self._inner.set_buffer_rules(rules)

    def close(self) -> None:
        self._inner.close()
