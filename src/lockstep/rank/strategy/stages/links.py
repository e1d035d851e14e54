"""The messages between a replica's stages: activations forward, gradients back, results to all.

Every message that is sent is received; otherwise a stage that waits for delivery of its messages would hang.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.rank.transport.channel import Channel
from lockstep.rank.transport.contract import Transport

ACTIVATIONS, GRADIENTS, RESULTS = 1, 2, 3
"""Tags of the three kinds of messages between the stages of a replica."""


Backward = tuple[int, int]
"""Which backward: the number of the model's call, and which backward since then, from 1."""


class Links:
    """The three channels between the stages of a replica.

    Args:
        transports: for activations, gradients and results; on GPUs they must be different, as NCCL keeps one order.
        device: where tensors arrive.
    """

    def __init__(self, transports: Sequence[Transport], device: torch.device) -> None:
        self.stage, self.num_stages = transports[0].rank, transports[0].world_size
        self._ahead, self._back, self._results = (
            Channel(transport, tag, device)
            for transport, tag in zip(transports, (ACTIVATIONS, GRADIENTS, RESULTS), strict=True)
        )
        self._early: dict[Backward, tuple[Any, list[Tensor]]] = {}
        self._waits: list[tuple[float, float]] = []

    def hand_over(self, words: Any, tensors: Sequence[Tensor]) -> None:
        """Send activations to the next stage."""
        self._ahead.send(self.stage + 1, words, tensors)

    def take_over(self) -> tuple[Any, list[Tensor]]:
        """Receive the previous stage's activations."""
        return self._waiting(self._ahead, self.stage - 1)

    def give_back(self, backward: Backward, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients to the previous stage; None for what was not used."""
        present = [gradient is not None for gradient in gradients]
        self._back.send(self.stage - 1, [*backward, present], [g for g in gradients if g is not None])

    def get_back(self, backward: Backward) -> list[Tensor | None]:
        """Receive the gradients of what a call handed over; those of other calls may come first."""
        while backward not in self._early:
            (call, number, present), tensors = self._waiting(self._back, self.stage + 1)
            self._early[call, number] = (present, tensors)
        present, tensors = self._early.pop(backward)
        arrived = iter(tensors)
        return [next(arrived) if is_present else None for is_present in present]

    def publish(self, words: Any, tensors: Sequence[Tensor]) -> None:
        """Send the last stage's result to all others."""
        for stage in range(self.num_stages - 1):
            self._results.send(stage, words, tensors)

    def get_result(self) -> tuple[Any, list[Tensor]]:
        """Receive the last stage's result."""
        return self._waiting(self._results, self.num_stages - 1)

    def _waiting(self, channel: Channel, source: int) -> tuple[Any, list[Tensor]]:
        began = time.monotonic()
        message = channel.receive(source)
        self._waits.append((began, time.monotonic()))
        return message

    def take_waits(self) -> list[tuple[float, float]]:
        """Return when this stage waited for messages since the last call: begins and ends, in order."""
        waits, self._waits = self._waits, []
        return waits

    def flush(self) -> None:
        """Wait until everything sent is delivered."""
        for channel in (self._ahead, self._back, self._results):
            channel.flush()
