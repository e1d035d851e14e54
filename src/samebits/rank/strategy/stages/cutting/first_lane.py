"""The lane in which the model is called for the first time: every rank computes all of it, and one watches.

So the model can be cut by what its forward actually does, and no layer is called just to look. All ranks of a replica
compute the same numbers, which is checked; each keeps its own stage's gradients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.rank.strategy.agreement import bit_sums
from samebits.rank.strategy.stages.carried_streams import CarriedStreams
from samebits.rank.strategy.stages.cutting.model_cut import allowed_candidates, bytes_between, decide_cut
from samebits.rank.strategy.stages.cutting.module_marks import StatePlace, changed, marks_of
from samebits.rank.strategy.stages.cutting.trace import Candidate, Trace, traced
from samebits.rank.strategy.stages.cutting.watch import BackwardWatch, OperationClock
from samebits.rank.strategy.stages.results import tensors_of
from samebits.rank.transport.together import encode


class WatchedCall:
    """A call of `model`, made by `forward`.

    Args:
        forward: calls its layers.
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


class FirstLane:
    """The first lane, until the model is cut.

    Args:
        looks: whether this rank watches.
        copies: parameters' names by the identity of their copies; may grow during a call.
    """

    def __init__(
        self, model: nn.Module, looks: bool, device: torch.device, copies: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        self._model, self._looks, self._device, self._copies = model, looks, device, copies
        self._watched: WatchedCall | None = None
        self._is_seen = False
        self.num_calls = 0
        """The number of calls of the model in the lane."""
        self.num_calls_with_gradients = 0
        self._changing: list[StatePlace] = []

    def call(self, forward: Callable[[], Any]) -> Any:
        """Call `forward`, which calls the model's layers. The first call is watched, or the first with gradients."""
        self.num_calls += 1
        self.num_calls_with_gradients += torch.is_grad_enabled()
        if self._is_seen:
            return forward()
        self._is_seen = torch.is_grad_enabled()
        before = marks_of(self._model)
        result = self._watch(forward) if self._looks else forward()
        self._changing = list(dict.fromkeys([*self._changing, *changed(before, marks_of(self._model))]))
        return result

    def _watch(self, forward: Callable[[], Any]) -> Any:
        self.forget()
        self._watched = WatchedCall(self._model, forward, self._device, self._copies)
        return self._watched.take_result()

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """A context for a backward of the lane."""
        if self._watched is None:
            yield
            return
        with self._watched.going_back():
            yield

    def decide(self, num_stages: int, wanted: Sequence[str]) -> dict[str, Any] | list[str] | None:
        """Decide how to cut, as JSON, or which error forbids it (together.py). None if this rank watched no call."""
        if self._watched is None:
            return None
        name = type(self._model).__name__
        trace = self._watched.trace
        try:
            candidates = allowed_candidates(name, trace, num_stages, wanted)
        except UsageError as error:
            return encode(error)
        # A model that is offloaded does not fit one device: what must be balanced is its memory.
        weights = bytes_between(trace, candidates, self._sizes()) if self._copies else None
        cut = decide_cut(trace, candidates, self._watched.costs(candidates), num_stages, weights)
        return replace(cut, changing=tuple(self._changing)).encode()

    def _sizes(self) -> dict[str, int]:
        return {name: one.nbytes * (1 + one.requires_grad) for name, one in self._model.named_parameters()}

    def forget(self) -> None:
        if self._watched is not None:
            self._watched.forget()
            self._watched = None


def digest_of_lane(losses: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> str:
    """A digest that is equal on ranks that computed the same; empty if bits are not promised."""
    if not torch.are_deterministic_algorithms_enabled():
        return ""
    words = [[float(loss).hex() for loss in losses], [one is not None for one in gradients]]
    # `to_dense` copies only sparse ones.
    sums = bit_sums([one.detach().to_dense() for one in gradients if one is not None])
    return hashlib.blake2b(repr([words, sums]).encode(), digest_size=8).hexdigest()


def refuse_different_lanes(reports: Sequence[tuple[int, str]]) -> None:
    """Raise `UsageError` if ranks got different results for one lane; `reports` are lane (or -1) and digest."""
    first: dict[int, tuple[int, str]] = {}
    for rank, (lane, digest) in enumerate(reports):
        other, known = first.setdefault(lane, (rank, digest))
        if lane >= 0 and known != digest:
            raise UsageError(
                f"Ranks {other} and {rank} ran the whole model on the same samples with the same random numbers, and "
                "got different losses or gradients, so they cannot be stages of one model.",
                "Make forward independent of the rank, the clock and its own generators; `samebits verify` under "
                "--strategy ddp names what differs.",
            )
