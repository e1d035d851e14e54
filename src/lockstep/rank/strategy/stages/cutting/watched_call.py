"""The first call of a model in a lane, watched as it happens: it decides how the model is cut.

No layer is called just to look (only the clock repeats pure operations), so nothing has to be restored: what forward
does to its inputs, attributes, files or the random streams, it does once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.rank.strategy.stages.carried_streams import CarriedStreams
from lockstep.rank.strategy.stages.cutting.operation_clock import BackwardWatch, OperationClock
from lockstep.rank.strategy.stages.cutting.trace import Candidate, Trace, traced
from lockstep.rank.strategy.stages.result_tree import tensors_of


class WatchedCall:
    """A call of `model`, made by `forward`.

    Args:
        model: the whole model.
        forward: calls its layers.
        device: where it computes.
        copies: parameters' names by the identity of their copies; may grow during the call.

    Raises: whatever the model raises.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[], Any],
        device: torch.device,
        copies: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._clock = OperationClock(device)
        streams = CarriedStreams(device)
        made = traced(model, forward, self._clock, lambda: list(streams.states().values()), copies)
        self._result = made.result
        is_reentrant = _meets(tensors_of(made.result), "CheckpointFunctionBackward")
        self.trace: Trace = replace(made.trace, is_reentrant=is_reentrant)
        self._end = made.end
        self._backward = BackwardWatch(self._clock)
        self._hooks = [
            tensor.register_hook(partial(self._reached, candidate.event))  # type: ignore[no-untyped-call]
            for candidate, sent in zip(made.trace.candidates, made.sent, strict=True)
            for tensor in sent
            if tensor.requires_grad
        ]

    def _reached(self, position: int, _gradient: Tensor) -> None:
        self._backward.reached(position)

    def take_result(self) -> Any:
        """Return what the call returned, without keeping it."""
        result, self._result = self._result, None
        return result

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """A context for a backward through the call, which is measured."""
        with self._backward.going_back(self._end):
            yield

    def costs(self, candidates: Sequence[Candidate]) -> list[float]:
        """The seconds of forward and backward before the first candidate, between candidates, and after the last."""
        return self._clock.between([candidate.event for candidate in candidates])

    def forget(self) -> None:
        """Watch the lane's graph no more: the lane is over."""
        for hook in self._hooks:
            hook.remove()


def _meets(tensors: Sequence[Tensor], name: str) -> bool:
    """Whether the graph of `tensors` has a node of this name."""
    nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.name() == name:
            return True
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        nodes.extend(following)
    return False
