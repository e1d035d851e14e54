"""Gradients between a replica's stages: each backward of a lane sends exactly one message per call of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from lockstep.errors import UsageError
from lockstep.rank.strategy.stages.hand_over import Call
from lockstep.rank.strategy.stages.links import Links
from lockstep.rank.strategy.stages.tied_parameters import Loans


class GradientExchange:
    """One stage's exchange of gradients. See `hand_over.Exchange`.

    Args:
        links: to the other stages.
        loans: for layers to find again in a backward, for activation checkpointing.
        model: what messages call the model.
    """

    def __init__(self, links: Links, loans: Loans, model: str) -> None:
        self._links, self._loans, self._model = links, loans, model
        self._goes_back = False
        self.lacks = False
        """Whether the current backward got nothing for some of what was handed over; it still reaches parameters."""

    @contextmanager
    def going_back(self, calls: Sequence[Call]) -> Iterator[None]:
        """A context for a backward of these calls. Each earlier stage gets a message per call, whatever it reaches."""
        for call in calls:
            call.backwards += 1
            call.gave = call.took = False
        self._goes_back, self.lacks = True, False
        if borrowed := next((call.borrowed for call in calls if call.borrowed), []):
            self._loans.use(borrowed)
        try:
            yield
            for call in calls:
                if call.owes and not call.gave:
                    self.give_back(call, [])
            for call in calls:
                if any(call.flags) and not call.took:
                    self.get_back(call)
        finally:
            self._goes_back = False
            self._loans.put_back()

    def give_back(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients of what the previous stage handed over."""
        self._require_backward()
        call.gave = True
        self._links.give_back((call.number, call.backwards), gradients)

    def get_back(self, call: Call) -> list[Tensor | None]:
        """Receive gradients of what `call` handed over, one for each tensor."""
        self._require_backward()
        call.took = True
        gradients = self._links.get_back((call.number, call.backwards)) or [None] * len(call.handed)
        self.lacks = self.lacks or any(gradient is None for gradient in gradients)
        return gradients

    def _require_backward(self) -> None:
        if not self._goes_back:
            raise UsageError(
                f"{self._model} is cut into stages, so its gradients come only from run.backward(loss) or "
                "step.backward(loss_of), not from torch.autograd.grad or Tensor.backward.",
                "Use --strategy ddp for them.",
            )
